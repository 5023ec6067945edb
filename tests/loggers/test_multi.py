"""MultiLogger: one traversal, each record once to each logger, and no logger in another's way."""

import threading

import jax
import jax.numpy as jnp
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerOptionError, LoggerStateError, LoggerWarning, MemoryLogger, MultiLogger, SaveLogger


class Broken(lox.loggers.Logger):
    def open(self, run):
        return BrokenWriter()


class BrokenWriter:
    def write(self, logs):
        raise OSError("broken")

    def flush(self):
        pass

    close = flush


def scan(xs):
    def body(total, x):
        total = total + x
        lox.log({"total": total}, step=x)
        return total, None

    return jax.lax.scan(body, 0, xs)[0]


@pytest.mark.parametrize("transform", ["spool", "tap"])
def test_each_record_goes_once_to_each_logger_from_one_host_call(transform, tmp_path, monkeypatch):
    calls = []
    receive = MultiLogger._receive
    monkeypatch.setattr(MultiLogger, "_receive", lambda self, d: calls.append(d.lanes) or receive(self, d))
    one, other, saved = MemoryLogger(), MemoryLogger(), SaveLogger(tmp_path)
    with MultiLogger(one, MultiLogger(other, saved)) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
        jax.jit(jax.vmap(lambda s, n: getattr(logger, transform)(scan, s)(n + jnp.arange(4))))(states, jnp.arange(3))
        logger.flush()
        expected = [[n, 2 * n + 1, 3 * n + 3, 4 * n + 6] for n in range(3)]
        for memory in (one, other):
            assert [logs["total"].tolist() for logs in memory.logs.values()] == expected
        names = [run.name for run in one.runs]
        assert [lox.loggers.load(tmp_path / name)["total"].tolist() for name in names] == expected
    # The outer one and the inner one, and in the program there is but the outer one's.
    assert len(calls) == 2 * (1 if transform == "spool" else 4)


def test_one_that_fails_does_not_stop_the_others():
    memory = MemoryLogger()
    logger = MultiLogger(Broken(), memory)
    state = logger.init(jax.random.key(0))
    logger.spool(scan, state)(jnp.arange(3))
    with pytest.raises(OSError, match="broken"):
        logger.flush()
    logger.spool(scan, state)(jnp.arange(3))
    with pytest.raises(OSError, match="broken"):
        logger.close()
    assert memory.logs["0000000000000000"]["total"].tolist() == [0, 1, 3] * 2


def test_several_that_fail_are_raised_together():
    logger = MultiLogger(Broken(), MemoryLogger(), Broken())
    logger.log(logger.init(jax.random.key(0)), {"x": 1})
    with pytest.raises(ExceptionGroup, match="2 loggers failed") as caught:
        logger.flush()
    assert [str(error) for error in caught.value.exceptions] == ["broken", "broken"]
    logger.close()


def test_each_logger_keeps_its_own_on_error():
    logger = MultiLogger(Broken(on_error="warn"), MemoryLogger())
    state = logger.init(jax.random.key(0))
    with pytest.warns(LoggerWarning, match="broken"):
        [logger.log(state, {"x": 1}), logger.flush()]
    with pytest.warns(LoggerWarning, match="1 record was lost"):
        logger.close()


def test_closing_it_closes_them_and_ends_their_threads():
    before = set(threading.enumerate())
    members = MemoryLogger(), MemoryLogger()
    with MultiLogger(*members) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1})
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("lox:")]
    for member in members:
        with pytest.raises(lox.loggers.LoggerClosedError):
            member.init(jax.random.key(0))


def test_what_it_does_not_take():
    memory = MemoryLogger()
    with pytest.raises(LoggerOptionError, match="same logger twice"):
        MultiLogger(memory, memory)
    with pytest.raises(LoggerOptionError, match="takes loggers; got 'save'"):
        MultiLogger("save")
    with MultiLogger(memory) as logger:
        state = memory.init(jax.random.key(0))
        with pytest.raises(LoggerStateError, match="does not belong to this MultiLogger"):
            logger.log(state, {"x": 1})


class Told(MemoryLogger):
    """Remembers what it was told about its runs."""

    def open(self, run):
        self.told = [*getattr(self, "told", []), run.config]
        return super().open(run)


def test_what_init_is_told_about_a_run_reaches_every_logger():
    one, other = Told(), Told()
    with MultiLogger(one, MultiLogger(other, MemoryLogger())) as logger:
        logger.init(jax.random.key(0))
        logger.init(jax.random.key(0), {"model": {"layers": [64, 64], "name": "mlp"}, "none": None})
        jax.vmap(logger.init, (0, {"rate": 0, "steps": None}))(
            jax.random.split(jax.random.key(1), 3), {"rate": jnp.arange(3.0), "steps": 10}
        )
        jax.jit(lambda key, rate: logger.init(key, config={"rate": rate}))(jax.random.key(2), 0.5)
        with pytest.raises(LoggerOptionError, match="MultiLogger: config must map names to values; got int"):
            logger.init(jax.random.key(0), 3)
    for member in (one, other):
        nothing, nested, *lanes, jitted = member.told
        assert nothing == {}
        assert nested == {"model": {"layers": [64, 64], "name": "mlp"}, "none": None}
        assert [(float(config["rate"]), config["steps"]) for config in lanes] == [(0.0, 10), (1.0, 10), (2.0, 10)]
        assert float(jitted["rate"]) == 0.5
