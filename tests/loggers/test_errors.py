"""What becomes of what a backend raises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerWarning
from tests.loggers.recording import Failing, scan, wait_until


@pytest.mark.parametrize("call", ["flush", "close", "log", "spool", "tap", "init"])
def test_a_failure_is_raised_by_the_next_call_whichever_it_is(call):
    logger = Failing()
    state = logger.init(jax.random.key(0))
    spooled, tapped = logger.spool(scan, state), logger.tap(scan, state)
    logger.gate.clear()  # so that nothing fails before all is logged
    for i in range(3):
        logger.log(state, {"x": np.full(i + 1, i)})  # no two of them look alike, so that each is a write
    logger.gate.set()
    wait_until(lambda: len(logger.calls) == 3)
    calls = {
        "flush": logger.flush,
        "close": logger.close,
        "log": lambda: logger.log(state, {"x": 3}),
        "spool": lambda: spooled(jnp.arange(2.0)),
        "tap": lambda: tapped(jnp.arange(2.0)),
        "init": lambda: logger.init(jax.random.key(1)),
    }
    with pytest.raises(OSError, match="no space left") as caught:
        calls[call]()
    assert "1 record lost" in caught.value.__notes__[0]
    after = {"close": [], "log": [3, 5]}.get(call, [5])  # a record is not lost to an earlier failure
    if call != "close":  # raised once, not again, and what comes after it is written
        logger.log(state, {"x": np.full(5, 5)})
    logger.close()
    assert [int(c[2]["x"].flat[0]) for c in logger.calls if c[0] == "write"] == [0, 1, 2, *after]


def test_a_failure_does_not_keep_other_runs_from_being_written():
    logger = Failing()
    states = [logger.init(jax.random.key(seed)) for seed in range(2)]
    logger.log(states[0], {"x": 1})
    with pytest.raises(OSError, match="no space"):
        logger.flush()
    logger.log(states[1], {"x": 7})
    logger.flush()
    assert logger.calls[-2][1:2] == (logger.runs[1].name,)
    logger.close()


def test_a_failing_close_closes_the_other_runs_and_is_raised():
    logger = Failing()
    logger.fail_on_close = True
    logger.init(jax.random.key(0))
    with pytest.raises(OSError, match="cannot close"):
        logger.close()
    logger.close()


def test_a_run_that_cannot_be_opened_is_an_error_of_init():
    class Closed(lox.loggers.Logger):
        def open(self, run):
            raise PermissionError("not here")

    logger = Closed()
    with pytest.raises(PermissionError, match="not here"):
        logger.init(jax.random.key(0))
    with pytest.raises(PermissionError, match="not here"):
        jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    logger.close()


def test_with_on_error_warn_a_run_that_cannot_be_opened_only_warns():
    class Closed(lox.loggers.Logger):
        def open(self, run):
            raise PermissionError("not here")

    logger = Closed(on_error="warn")
    with pytest.warns(LoggerWarning, match="opening a run failed: PermissionError: not here"):
        state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1})
    with pytest.warns(LoggerWarning, match="1 record was lost"):
        logger.close()


def test_a_warning_made_an_error_is_raised_to_the_caller_not_in_the_thread():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", LoggerWarning)
        logger = Failing(on_error="warn")
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1})
        with pytest.raises(LoggerWarning, match="no space left"):
            logger.flush()
        logger.log(state, {"x": 2})
        warnings.simplefilter("ignore", LoggerWarning)
        logger.close()


class RetryingWriter:
    def __init__(self, logger):
        self.logger, self.rows = logger, []

    def write(self, logs):
        self.rows += logs.rows()

    def flush(self):
        if self.logger.down:
            error = OSError("the disk is away")
            error.lost_records = self.logger.losing
            raise error
        self.logger.stored += self.rows
        self.rows = []

    close = flush


class Retrying(lox.loggers.Logger):
    """Keeps what could not be stored, until the disk is back."""

    flush_interval = None

    def __init__(self, **options):
        super().__init__(**options)
        self.down, self.losing, self.stored = True, 0, []

    def open(self, run):
        return RetryingWriter(self)


def test_after_a_flush_that_failed_the_next_one_tries_again():
    logger = Retrying()
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0}, step=0)
    with pytest.raises(OSError, match="away"):
        logger.flush()
    logger.down = False
    logger.flush()
    assert len(logger.stored) == 1
    logger.close()


def test_the_failures_of_several_runs_are_told_together():
    logger = Retrying()
    logger.losing = 2
    for state in [logger.init(jax.random.key(seed)) for seed in range(3)]:
        logger.log(state, {"x": 1.0}, step=0)
    with pytest.raises(OSError, match="away") as caught:
        logger.flush()
    assert "2 records lost" in caught.value.__notes__[0]
    assert caught.value.__notes__[1] == "and 2 more failures: 6 records lost in all"
    logger.down = False
    logger.close()


@pytest.mark.parametrize("lanes", [False, True])
def test_records_that_a_capacity_dropped_are_told_once(lanes, tmp_path):
    def train(n):
        return jax.lax.while_loop(lambda i: i < n, lambda i: lox.log({"eval": i})["eval"] + 1, 0)

    with lox.loggers.SaveLogger(tmp_path) as logger:
        keys = jax.random.split(jax.random.key(0), 2)
        state = jax.vmap(logger.init)(keys) if lanes else logger.init(keys[0])

        def run(state, n):
            return logger.spool(train, state, capacity=2)(n)

        def run_twice():
            for _ in range(2):
                jax.vmap(run)(state, jnp.array([1, 5])) if lanes else run(state, 5)
            logger.flush()

        with pytest.warns(LoggerWarning, match=r"'eval' had 5 records, but capacity=2 kept only the last 2") as caught:
            run_twice()
        assert len(caught) == 1


def test_a_failure_in_a_jitted_loop_is_told_once_before_anybody_calls_the_logger(caplog):
    logger = Failing()
    step = jax.jit(lambda state, x: logger.spool(lambda x: lox.log({"x": x}), state)(x))
    state = logger.init(jax.random.key(0))
    for _ in range(3):
        jax.block_until_ready(step(state, jnp.ones(1)))
        jax.effects_barrier()
    wait_until(lambda: caplog.records)
    (told,) = caplog.records
    assert told.name == "lox.loggers"
    assert "Failing: writing to run" in told.getMessage()
    assert "no space left" in told.getMessage()
    with pytest.raises(OSError, match="no space left"):
        logger.close()


@pytest.mark.parametrize(
    ("record", "steps", "what"),
    [
        ({"x": 1}, {"epoch": None}, "the step 'epoch' must be a number; got None"),
        ({"x": 1}, {"epoch": "warmup"}, "the step 'epoch' must be a number; got 'warmup'"),
        ({"x": {1: 2, "a": 3}}, {}, "the value of 'x' is not a pytree"),
    ],
)
def test_what_is_no_record_is_named(record, steps, what):
    with lox.loggers.MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        with pytest.raises(lox.loggers.LoggerStateError, match=what):
            logger.log(state, record, **steps)
