"""The lanes of a vmap are encoded together; nobody should be able to tell from the files."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import RecordError
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import raw_events, run_folders, scalars

LANES = 5


def train(scale):
    def body(total, i):
        lox.log({"loss": total * scale, "count": i}, step=10 * i)
        return total + i, None

    return jax.lax.scan(body, jnp.float32(0), jnp.arange(30))[0]


def expected(scale):
    totals = np.concatenate([[0], np.cumsum(np.arange(29))]) * scale
    return {
        "loss": [(10 * i, float(total)) for i, total in enumerate(totals)],
        "count": [(10 * i, float(i)) for i in range(30)],
    }


@pytest.mark.parametrize("transform", ["spool", "tap"])
def test_each_lane_has_its_own_scalars_at_times_that_rise(tmp_path, transform):
    with TensorBoardLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), LANES))
        names = [run.name for run in logger.runs]
        first = jax.tree.map(lambda leaf: leaf[0], states)
        logger.log(first, {"alone": 1.0}, step=0)
        jax.jit(jax.vmap(lambda s, x: getattr(logger, transform)(train, s)(x)))(states, jnp.arange(1.0, LANES + 1))
        logger.flush()
        logger.log(first, {"alone": 2.0}, step=1)
    for lane, name in enumerate(names):
        found = scalars(tmp_path / name)
        assert found.pop("alone", None) == ([(0, 1.0), (1, 2.0)] if lane == 0 else None)
        assert found == expected(lane + 1)
        times = [event.wall_time for event in raw_events(tmp_path / name)]
        assert all(earlier < later for earlier, later in itertools.pairwise(times))


def test_lanes_without_their_own_steps_and_with_arrays_are_written_one_by_one(tmp_path):
    with TensorBoardLogger(tmp_path, kinds={"hidden": "skip"}) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), LANES))
        names = [run.name for run in logger.runs]
        record = jax.vmap(lambda s, x: logger.log(s, {"x": x, "hidden": x}, step=3))
        record(states, jnp.arange(float(LANES)))
        jax.vmap(lambda s, x: logger.log(s, {"counted": x}))(states, jnp.arange(float(LANES)))
        jax.vmap(lambda s, x: logger.log(s, {"array": x * jnp.ones(3)}, step=4))(states, jnp.arange(float(LANES)))
    for lane, name in enumerate(names):
        assert scalars(tmp_path / name) == {"x": [(3, float(lane))], "counted": [(0, float(lane))]}


def test_one_run_in_many_lanes_gets_the_records_of_all(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        jax.vmap(lambda x: logger.log(state, {"x": x}, step=x.astype(int)))(jnp.arange(4.0))
    (folder,) = run_folders(tmp_path)
    assert scalars(folder)["x"] == [(i, float(i)) for i in range(4)]
    times = [event.wall_time for event in raw_events(folder)]
    assert times == sorted(times)


def test_lanes_with_a_step_that_cannot_be_stored_lose_only_that_record(tmp_path):
    logger = TensorBoardLogger(tmp_path, step_axis="time")
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    names = [run.name for run in logger.runs]

    def record(state, times):
        jax.lax.scan(lambda _, time: (logger.log(state, {"x": time}, time=time), None), None, times)

    jax.vmap(record)(states, jnp.array([[0.0, 0.0, 0.0], [0.0, 1.5, 2.0]]))
    with pytest.raises(RecordError, match="1.5"):
        logger.close()
    assert [step for step, _ in scalars(tmp_path / names[1])["x"]] == [0, 2]
    assert len(scalars(tmp_path / names[0])["x"]) == 3
