"""`time=True`: when records reached the host, in seconds since their run was opened."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import CsvLogger, LoggerOptionError, MemoryLogger, SaveLogger
from tests.loggers.recording import scan


def rising(times):
    times = np.asarray(times)
    return bool((times >= 0).all() and (np.diff(times) >= 0).all())


@pytest.mark.parametrize("transform", ["spool", "tap"])
def test_each_record_has_the_time_at_which_it_reached_the_host(transform):
    with MemoryLogger(time=True) as logger:
        state = logger.init(jax.random.key(0))
        jax.jit(getattr(logger, transform)(scan, state))(jnp.arange(5))
        logger.log(state, {"plain": 1.0}, step=3)
        logger.log(state, {"bare": jnp.ones(2)})
        (logs,) = logger.logs.values()
    assert logs.steps["time"]["total"].shape == (5,)
    assert rising([*logs.steps["time"]["total"], *logs.steps["time"]["plain"], *logs.steps["time"]["bare"]])
    assert logs.step["plain"].tolist() == [3]
    assert "bare" not in logs.step


def test_lanes_have_their_own_times():
    keys = jax.random.split(jax.random.key(0), 3)
    with MemoryLogger(time=True) as logger:
        states = jax.vmap(logger.init)(keys)
        jax.vmap(lambda state: logger.spool(scan, state)(jnp.arange(4)))(states)
        times = [logs.steps["time"]["total"] for logs in logger.logs.values()]
    assert all(rising(column) and column.shape == (4,) for column in times)
    assert times[0][0] >= times[1][0] >= times[2][0]  # the later a run was opened, the younger it is


def test_an_axis_of_that_name_stays_what_it_is():
    with MemoryLogger(time=True) as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1.0}, time=-5)
        (logs,) = logger.logs.values()
    assert logs.steps["time"]["x"].tolist() == [-5]


@pytest.mark.parametrize("backend", [SaveLogger, CsvLogger])
def test_resume_tells_records_apart_by_their_other_steps(tmp_path, backend):
    for first in (0, 2):
        with backend(tmp_path, if_exists="resume", time=True) as logger:
            state = logger.init(jax.random.key(0))
            for step in range(first, first + 3):
                logger.log(state, {"x": float(step)}, step=step)
    (logs,) = lox.loggers.load(tmp_path).values()
    assert logs.step["x"].tolist() == [0, 1, 2, 3, 4]
    assert len(logs.steps["time"]["x"]) == 5


def test_without_it_there_is_no_such_axis_and_it_is_true_or_false():
    with MemoryLogger() as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1.0}, step=0)
        (logs,) = logger.logs.values()
    assert list(logs.steps) == ["step"]
    with pytest.raises(LoggerOptionError, match="time=3; it must be True or False"):
        MemoryLogger(time=3)
