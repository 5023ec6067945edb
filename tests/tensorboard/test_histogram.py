"""What was counted on the device is a histogram to TensorBoard's own readers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox.loggers import Histogram, load
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import modern_events, read, scalars

EDGES = np.linspace(-2, 2, 9)
VALUES = jnp.asarray([-9.0, -0.7, -0.6, 0.1, 1.4, np.nan, np.inf, 5.0, 6.0])


def train(x):
    def step(x, i):
        lox.log({"w": Histogram(x, EDGES), "all": Histogram(x)}, step=10 * i)
        return x * 0.5, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


def run(folder):
    with TensorBoardLogger(folder, name="run") as logger:
        logger.spool(train, logger.init(jax.random.key(0)))(VALUES)
    return folder / "run"


def test_tensorboard_reads_the_counts_and_the_edges(tmp_path):
    events = read(run(tmp_path)).Histograms("w")
    assert [event.step for event in events] == [0, 10, 20]
    for number, event in enumerate(events):
        values = np.asarray(VALUES, np.float64) * 0.5**number
        counts = np.histogram(values[np.isfinite(values)], EDGES)[0]
        shown = event.histogram_value
        filled = np.flatnonzero(counts)
        first, last = filled[0], filled[-1] + 1
        assert shown.bucket == counts[first:last].tolist()
        assert [shown.min, *shown.bucket_limit] == EDGES[first : last + 1].tolist()
        assert (shown.num, shown.max) == (counts.sum(), EDGES[last])


def test_the_page_gets_bins_with_both_ends(tmp_path):
    """What TensorBoard makes of the events for its page: left, right and count of each bin."""
    tensors = [
        value.tensor for event in modern_events(run(tmp_path)) for value in event.summary.value if value.tag == "w"
    ]
    bins = np.frombuffer(tensors[0].tensor_content, np.float32).reshape(-1, 3)
    assert bins[[0, -1]].tolist() == [[-1.0, -0.5, 2.0], [1.0, 1.5, 1.0]]
    assert bins[:, 2].sum() == 4


def test_what_has_no_place_in_the_bins_is_a_curve(tmp_path):
    found = scalars(run(tmp_path))
    assert found["w/nonfinite"] == [(0, 2.0), (10, 2.0), (20, 2.0)]
    assert found["w/below"] == [(0, 1.0), (10, 1.0), (20, 1.0)]
    assert found["w/above"] == [(0, 2.0), (10, 2.0)]
    assert not any(tag.startswith("all/") and tag != "all/nonfinite" for tag in found)


def test_reading_it_back_sums_it_up(tmp_path):
    logs = load(run(tmp_path))
    assert logs["w"]["count"].tolist() == [4.0, 4.0, 6.0]
    np.testing.assert_allclose(logs["all"]["mean"], [2.25 / 7, 1.125 / 7, 0.5625 / 7], atol=0.2)


def test_values_that_are_all_apart_have_no_histogram(tmp_path):
    with TensorBoardLogger(tmp_path, name="run") as logger:
        logger.log(logger.init(jax.random.key(0)), {"w": Histogram(jnp.full(3, jnp.nan), EDGES)}, step=4)
    assert scalars(tmp_path / "run") == {"w/nonfinite": [(4, 3.0)]}
    assert read(tmp_path / "run").Tags()["histograms"] == []
