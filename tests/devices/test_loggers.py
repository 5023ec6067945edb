"""Loggers over several devices: nothing twice, one step a record, and no waiting without a reason."""

import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import lox
import lox.loggers
from tests.devices.meshes import mesh, on_each, put

LINE = mesh(d=8)
X = jnp.arange(16.0)


def whole(x):
    def body(c, i):
        c = c + 1
        lox.log({"mean": c.mean(), "c": c}, step=i)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


@on_each(LINE, P("d"), P("d"))
def on_devices(x):
    def body(c, i):
        c = c + 1
        lox.log({"mean": jax.lax.pmean(c.mean(), "d"), "own": c.sum()}, step=i)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


@on_each(LINE, P("d"), P("d"))
def own_steps(x):
    lox.log({"own": x.sum()}, step=jax.lax.axis_index("d"))
    return x


def written(fun, how):
    with lox.loggers.MemoryLogger() as logger, jax.set_mesh(LINE):
        state = logger.init(jax.random.key(0))
        if how == "jit of spool":
            jax.jit(logger.spool(fun, state))(put(X, LINE, P("d")))
        else:
            getattr(logger, how)(jax.jit(fun), state)(put(X, LINE, P("d")))
        logger.flush()
        (logs,) = logger.logs.values()
    return logs


@pytest.mark.parametrize("how", ["tap", "spool", "jit of spool"])
def test_each_record_is_written_once(how):
    logs = written(whole, how)
    np.testing.assert_allclose(logs["mean"], [8.5, 9.5, 10.5])
    assert logs["c"].shape == (3, 16)
    logs = written(on_devices, how)
    np.testing.assert_allclose(logs["mean"], np.repeat([[8.5], [9.5], [10.5]], 8, axis=1))
    np.testing.assert_allclose(logs["own"][0], X.reshape(8, 2).sum(1) + 2)


@pytest.mark.parametrize("how", ["tap", "spool"])
def test_writers_get_one_step_a_record(tmp_path, how):
    for name, fun in [("same", on_devices), ("own", own_steps)]:
        with lox.loggers.create("save", path=tmp_path / name) as logger:
            getattr(logger, how)(jax.jit(fun), logger.init(jax.random.key(0)))(X)
    (same,) = lox.loggers.load(tmp_path / "same").values()
    assert same.step["own"].tolist() == [0, 1, 2]
    assert same["own"].shape == (3, 8)
    # Where devices differ in the step, each has a record of its own.
    (own,) = lox.loggers.load(tmp_path / "own").values()
    assert own.step["own"].tolist() == list(range(8))
    np.testing.assert_array_equal(own["own"], X.reshape(8, 2).sum(1))


def test_rows_of_logs_from_devices():
    _, logs = lox.spool(on_devices)(X)
    assert [(steps, values["own"].shape) for steps, values in logs.rows()] == [({"step": i}, (8,)) for i in range(3)]


def test_a_step_without_a_record_does_not_wait_for_a_backend_that_hangs():
    released = threading.Event()

    class Writer:
        def write(self, logs):
            assert released.wait(100)

        def flush(self):
            pass

        def close(self):
            pass

    class Slow(lox.loggers.Logger):
        def open(self, run):
            return Writer()

    def step(x, due):
        def log(x):
            lox.log({"x": x.sum()})
            return x

        return jax.lax.cond(due, log, lambda x: x, x) + 1

    logger = Slow(queue_size=1)
    state = logger.init(jax.random.key(0))
    tapped = jax.jit(logger.tap(step, state))
    x = jax.block_until_ready(tapped(put(X, LINE, P("d")), True))  # the writer hangs with this one
    for _ in range(5):
        x = jax.block_until_ready(tapped(x, False))  # would never return if it waited
    np.testing.assert_array_equal(x, X + 6)
    released.set()
    logger.close()


@on_each(LINE, P("d"), P("d"))
def some_of_them(x):
    lox.log({"once": x.sum()})

    def body(c, i):
        lox.log({"even": c.sum()}, step=i, where=i % 2 == 0)
        lox.log({"own": c.sum()}, step=i, where=i < c[0] / 2)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(4))[0]


def test_devices_with_the_same_number_of_records_write_them_together():
    sums = np.asarray(X.reshape(8, 2).sum(1))
    for options, steps in (({}, [0, 2]), ({"capacity": 1}, [2]), ({"reduce": "mean"}, [2]), ({"interval": 2}, [0])):
        logs = spooled(some_of_them, **options)
        assert logs.step["even"].tolist() == steps
        np.testing.assert_array_equal(logs["even"], [sums] * len(steps))
        np.testing.assert_array_equal(logs["once"], [sums])


def test_devices_with_different_numbers_of_records_write_their_own():
    """Device d has d records, of steps 0 to d - 1 (and at most 4)."""
    sums = np.asarray(X.reshape(8, 2).sum(1))
    expected = [(step, sums[device]) for step in range(4) for device in range(8) if step < device]
    assert pairs(spooled(some_of_them)) == expected
    folded = spooled(some_of_them, reduce="max")
    assert pairs(folded) == [(min(device, 4) - 1, sums[device]) for device in range(1, 8)]


@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}])
def test_lanes_of_devices(options):
    with lox.loggers.MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        run = jax.vmap(lambda state, x: logger.spool(some_of_them, state, **options)(x))
        run(states, jnp.stack([X, jnp.zeros(16)]))
        logger.flush()
        one, other = logger.logs.values()
    assert pairs(one) == pairs(spooled(some_of_them, **options))
    assert "own" not in other or len(other["own"]) == 0
    assert other["even"].shape == ((1, 8) if options else (2, 8))


def spooled(fun, x=X, **options):
    with lox.loggers.MemoryLogger() as logger, warnings.catch_warnings(action="ignore"):  # that a bound drops some
        logger.spool(jax.jit(fun), logger.init(jax.random.key(0)), **options)(x)
        logger.flush()
        (logs,) = logger.logs.values()
    return logs


def pairs(logs):
    return list(zip(logs.step["own"].tolist(), logs["own"].tolist(), strict=True))
