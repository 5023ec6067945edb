"""What is not a number: histograms, images, audio, video, text, tables."""

from __future__ import annotations

import io
import json
import wave

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lox.loggers import Histogram
from lox.loggers.kinds import KindError
from tests.wandb.offline import file_of, rows

KEY = jax.random.key(0)


@pytest.fixture
def logged(make):
    """Logs one record, and gives its row and the folder with the run's files."""

    def log(values, kinds=None, **options):
        logger = make(kinds=kinds, **options)
        state = logger.init(KEY)
        logger.log(state, values, step=3)
        (run,) = logger.runs
        logger.close()
        (row,) = rows(file_of(run))
        assert row.pop("step") == 3
        return row, file_of(run).parent / "files"

    return log


def test_arrays_are_histograms(logged):
    values = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    row, _ = logged({"weights": values})
    shown = row["weights"]
    assert shown["_type"] == "histogram"
    assert sum(shown["values"]) == values.size
    assert (shown["bins"][0], shown["bins"][-1]) == (pytest.approx(values.min()), pytest.approx(values.max()))
    counts, _ = np.histogram(values.astype(np.float64), bins=64)
    assert shown["values"] == counts.tolist()


@pytest.mark.parametrize(
    "values", [np.zeros(5), np.full(3, 1e300), np.array([1.0, np.nextafter(1.0, 2.0)]), np.array([-1.7e308, 1.7e308])]
)
def test_histograms_of_any_finite_numbers(logged, values):
    with jax.enable_x64(True):
        row, _ = logged({"x": values})
    assert sum(row["x"]["values"]) == values.size


def test_what_is_not_finite_is_counted_beside_the_histogram(logged):
    row, _ = logged({"x": np.array([1.0, np.nan, np.inf, 2.0], np.float32), "y": np.full(2, np.nan, np.float32)})
    assert sum(row["x"]["values"]) == 2
    assert row["x/nonfinite"] == 2
    assert row["y/nonfinite"] == 2
    assert "y" not in row


def test_images(logged):
    PIL = pytest.importorskip("PIL.Image")
    grey = np.linspace(0, 1, 12).reshape(3, 4).astype(np.float32)
    colour = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    row, files = logged({"a/image": grey, "b/image": colour, "c/image": np.stack([colour] * 3)}, {"*/image": "image"})
    assert np.array_equal(np.asarray(PIL.open(files / row["b/image"]["path"])), colour)
    assert np.array_equal(np.asarray(PIL.open(files / row["a/image"]["path"])), np.round(grey * 255).astype(np.uint8))
    assert row["c/image"]["count"] == 3


def test_audio(logged):
    tone = np.sin(np.arange(800) / 10).astype(np.float32)
    row, files = logged({"tone": tone}, {"tone": "audio"}, sample_rate=8000)
    with wave.open(str(files / row["tone"]["path"])) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getnchannels()) == (8000, 800, 1)
        samples = np.frombuffer(sound.readframes(800), "<i2")
    assert np.allclose(samples / 32767, tone, atol=1e-4)


def test_video(logged):
    PIL = pytest.importorskip("PIL.Image")
    frames = np.stack([np.full((8, 8, 3), value, np.uint8) for value in (0, 100, 200)])
    row, files = logged({"film": frames}, {"film": "video"}, fps=10)
    with PIL.open(io.BytesIO((files / row["film"]["path"]).read_bytes())) as film:
        assert film.n_frames == 3
        assert film.info["duration"] == 100


def test_text_of_strings_and_bytes(logged):
    row, _ = logged({"said": jnp.asarray(np.frombuffer("grüße".encode(), np.uint8))}, {"said": "text"})
    assert row == {"said": "grüße"}


def test_tables(logged):
    values = {"by_column": {"x": np.arange(3), "y": np.arange(3) / 2}, "matrix": np.arange(6).reshape(3, 2)}
    row, files = logged(values, {"*": "table"})
    by_column, matrix = (json.loads((files / row[name]["path"]).read_text()) for name in values)
    assert (by_column["columns"], by_column["data"]) == (["x", "y"], [[0, 0], [1, 0.5], [2, 1]])
    assert (matrix["columns"], matrix["data"]) == (["0", "1"], [[0, 1], [2, 3], [4, 5]])


def test_skipped_and_scalar_arrays(logged):
    row, _ = logged({"debug/x": np.ones(3), "pair": np.array([1.5, 2.5])}, {"debug/*": "skip", "pair": "scalar"})
    assert row == {"pair/0": 1.5, "pair/1": 2.5}


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.ones(3), "image", "cannot be an image: a record has shape (3,)"),
        (np.full((2, 2), 7.5), "image", "holds numbers from 7.5 to 7.5"),
        (np.ones((2, 2, 5)), "image", "channels are 1, 3 or 4"),
        (np.ones((2, 3)), "audio", "cannot be audio: a record has shape (2, 3)"),
        (np.arange(3), "audio", "Audio is floats from -1 to 1"),
        (np.ones((2, 2)), "video", "cannot be a video"),
        (np.float32(1), "table", "cannot be a table"),
        ({"x": np.ones(2), "y": np.ones(3)}, "table", "columns are vectors of one length"),
        (np.ones((0,)), "histogram", "a histogram needs at least one number"),
    ],
)
def test_values_that_cannot_be_shown(make, value, kind, message):
    logger = make(kinds={"x": kind})
    logger.log(logger.init(KEY), {"x": value})
    with pytest.raises(KindError) as caught:
        logger.flush()
    assert message in str(caught.value)


def test_what_was_counted_on_the_device_is_a_histogram(logged):
    edges = [0.0, 0.5, 1.0, 2.0, 4.0]
    row, _ = logged(
        {"w": Histogram(jnp.array([0.6, 0.7, 1.5, -1.0, 9.0, jnp.nan]), edges), "none": Histogram([-1], edges)}
    )
    assert row["w"] == {"_type": "histogram", "values": [2, 1], "bins": [0.5, 1.0, 2.0]}
    assert (row["w/below"], row["w/above"], row["w/nonfinite"]) == (1, 1, 1)
    assert "none" not in row
    assert row["none/below"] == 1


def test_more_bins_than_wandb_has_room_for_are_put_together(logged):
    values = np.random.default_rng(0).uniform(0, 1, 5000).astype(np.float32)
    row, _ = logged({"w": Histogram(jnp.asarray(values), 1300, (0, 1))})
    counts, edges = np.asarray(row["w"]["values"]), np.asarray(row["w"]["bins"])
    assert len(counts) <= 512
    assert len(edges) == len(counts) + 1
    np.testing.assert_array_equal(counts, np.histogram(values.astype(np.float64), edges)[0])
