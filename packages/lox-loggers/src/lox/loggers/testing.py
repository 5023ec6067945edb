"""A contract suite for backends: subclass `LoggerContract`, say how to make the logger, and run pytest.

    from lox.loggers.testing import LoggerContract

    class TestMyLogger(LoggerContract):
        def make(self, folder, **options):
            return MyLogger(folder, **options)

        def read(self, folder, name):          # if the backend keeps what it is given
            return lox.logdict(...)            # the records of the run of that name

The options are those of `Logger` (`if_exists`, `on_error`, `queue_size`, ...); a backend has to take them all and pass
them on to `Logger.__init__`. Without `read` only the lifecycle is checked. If the backend overrides `Logger.exists`,
what `if_exists` promises is checked too.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers._errors import LoggerClosedError, LoggerWarning, RunExistsError
from lox.loggers._logger import Logger
from lox.loggers._run import Run, Writer


class LoggerContract:
    """What every backend promises. Each test makes its own loggers in an empty folder."""

    def make(self, folder: Path, **options: Any) -> Logger:
        """A logger of the backend under test that keeps what it keeps in `folder`."""
        raise NotImplementedError("a contract suite has to say how its logger is made: override make()")

    def read(self, folder: Path, name: str) -> lox.logdict | None:
        """All records of a run, as written; None if the backend keeps none."""
        return None

    @pytest.fixture(autouse=True)
    def _loggers(self, tmp_path: Path) -> Any:
        self._folder = tmp_path / "runs"
        self._made: list[Logger] = []
        yield
        for logger in self._made:
            # The test has seen what it had to see.
            with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
                logger.close()

    def logger(self, **options: Any) -> Logger:
        logger = self.make(self._folder, **options)
        self._made.append(logger)
        return logger

    def records(self, name: str, key: str = "loss") -> tuple[list[Any], list[Any]]:
        """The steps and values of a key, as lists; skips the test where the backend keeps nothing."""
        logs = self.read(self._folder, name)
        if logs is None:
            pytest.skip("this backend does not keep what it is given")
        table = logs.table()
        return _rounded(table.steps.get("step", {}).get(key, ())), _rounded(table.get(key, ()))

    def only_run(self, logger: Logger) -> str:
        (run,) = logger.runs
        return run.name

    # Lifecycle.

    def test_a_logged_record_is_there_after_flush(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        logger.log(state, {"loss": 0.5}, step=3)
        logger.flush()
        assert self.records(self.only_run(logger)) == ([3], [0.5])

    def test_leaving_with_writes_everything_and_ends_the_thread(self) -> None:
        before = set(threading.enumerate())
        with self.logger() as logger:
            state = logger.init(jax.random.key(1))
            name = self.only_run(logger)
            for step in range(10):
                logger.log(state, {"loss": step / 2}, step=step)
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("lox:")]
        assert self.records(name) == (list(range(10)), [step / 2 for step in range(10)])

    def test_closing_twice_is_fine_and_logging_afterwards_is_an_error(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        logger.close()
        logger.close()
        with pytest.raises(LoggerClosedError):
            logger.log(state, {"loss": 1.0}, step=0)
        with pytest.raises(LoggerClosedError):
            logger.init(jax.random.key(2))

    def test_a_logger_that_never_opened_a_run_flushes_and_closes(self) -> None:
        logger = self.logger()
        logger.flush()
        logger.close()

    def test_two_keys_and_the_same_key_twice_give_runs_of_their_own(self) -> None:
        logger = self.logger()
        for seed in (1, 2, 1):
            logger.init(jax.random.key(seed))
        names = [run.name for run in logger.runs]
        assert len({name.lower() for name in names}) == 3
        assert names[0] != names[2]
        assert names[2].startswith(names[0])

    # Inside JAX.

    def test_spool_delivers_the_records_of_a_jitted_scan_in_order(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        out = jax.jit(logger.spool(_scan, state))(jnp.arange(20.0))
        assert float(out) == 190.0
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(20)), np.cumsum(np.arange(20.0)).tolist())

    def test_tap_delivers_the_same_records_while_the_program_runs(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        out = jax.jit(logger.tap(_scan, state))(jnp.arange(20.0))
        assert float(out) == 190.0
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(20)), np.cumsum(np.arange(20.0)).tolist())

    @pytest.mark.parametrize("transform", ["spool", "tap"])
    def test_vmapped_runs_get_their_own_lane(self, transform: str) -> None:
        logger = self.logger()
        keys = jax.random.split(jax.random.key(1), 4)
        states = jax.vmap(logger.init)(keys)
        scale = jnp.arange(1.0, 5.0)
        jax.jit(jax.vmap(lambda s, x: getattr(logger, transform)(_scan, s)(x * jnp.arange(5.0))))(states, scale)
        logger.flush()
        runs = logger.runs
        assert [run.key for run in runs] == [tuple(map(int, words)) for words in jax.random.key_data(keys)]
        for lane, run in enumerate(runs):
            expected = ((lane + 1) * np.cumsum(np.arange(5.0))).tolist()
            assert self.records(run.name) == (list(range(5)), expected)

    def test_a_state_can_be_carried_through_scan(self) -> None:
        logger = self.logger()

        def body(state: Any, x: Any) -> tuple[Any, Any]:
            logger.log(state, {"loss": x}, step=x.astype(int))
            return state, None

        jax.jit(lambda state: jax.lax.scan(body, state, jnp.arange(6.0)))(logger.init(jax.random.key(1)))
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(6)), np.arange(6.0).tolist())

    # Values.

    def test_many_records_keep_their_order(self) -> None:
        logger = self.logger(queue_size=4)
        state = logger.init(jax.random.key(1))
        for step in range(300):
            logger.log(state, {"loss": float(step)}, step=step)
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(300)), [float(step) for step in range(300)])

    def test_nested_and_odd_values_do_no_harm(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        values = {
            "loss": 1.5,
            "nested": {"w": jnp.ones((2, 3)), "b": (jnp.int8(1), [jnp.bool_(True)])},
            "half": jnp.bfloat16(0.5),
            "not/finite": jnp.asarray([jnp.nan, jnp.inf, -jnp.inf]),
            "../Odd Key\n?*": 1,
            "odd key": 2,
        }
        logger.log(state, values, step=0)
        logger.log(state, {"loss": 2.5}, step=1)
        logger.flush()
        assert self.records(self.only_run(logger)) == ([0, 1], [1.5, 2.5])

    def test_keys_and_axes_may_come_and_go(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        logger.log(state, {"loss": 1.0}, step=0)
        logger.log(state, {"accuracy": 0.1}, epoch=0)
        logger.log(state, {"loss": 2.0, "lr": 0.5}, step=1)
        logger.log(state, {"no_step": 3})
        logger.flush()
        assert self.records(self.only_run(logger)) == ([0, 1], [1.0, 2.0])

    # Failure.

    def test_what_a_writer_raises_is_raised_at_the_next_call_as_itself(self) -> None:
        logger = self.logger()
        error = RuntimeError("the disk is on fire")
        _break(logger, error)
        state = logger.init(jax.random.key(1))
        logger.log(state, {"loss": 1.0}, step=0)
        with pytest.raises(RuntimeError) as caught:
            logger.flush()
        assert caught.value is error

    def test_on_error_warn_warns_once_and_goes_on(self) -> None:
        logger = self.logger(on_error="warn")
        _break(logger, RuntimeError("the disk is on fire"))
        state = logger.init(jax.random.key(1))
        with warnings.catch_warnings(record=True, action="always") as caught:
            for step in range(5):
                logger.log(state, {"loss": 1.0}, step=step)
            logger.flush()
        told = [str(warning.message) for warning in caught if warning.category is LoggerWarning]
        assert ["the disk is on fire" in message for message in told] == [True]
        with pytest.warns(LoggerWarning, match="5 records were lost"):
            logger.close()

    # Runs that are there already.

    def _earlier(self) -> str:
        """The name of a run with steps 0 to 4, left by an earlier logger."""
        if type(self.logger()).exists is Logger.exists:
            pytest.skip("this backend does not know earlier runs")
        with self.logger() as logger:
            state = logger.init(jax.random.key(1))
            name = self.only_run(logger)
            for step in range(5):
                logger.log(state, {"loss": 1.0}, step=step)
        return name

    def _again(self, if_exists: str) -> str:
        """Steps 3 to 6 from a second logger; the name of its run."""
        with self.logger(if_exists=if_exists) as logger:
            state = logger.init(jax.random.key(1))
            name = self.only_run(logger)
            for step in range(3, 7):
                logger.log(state, {"loss": 2.0}, step=step)
        return name

    def test_new_leaves_an_earlier_run_alone(self) -> None:
        first = self._earlier()
        second = self._again("new")
        assert second != first
        assert self.records(first) == (list(range(5)), [1.0] * 5)
        assert self.records(second) == (list(range(3, 7)), [2.0] * 4)

    def test_error_refuses(self) -> None:
        first = self._earlier()
        with pytest.raises(RunExistsError, match=first):
            self.logger(if_exists="error").init(jax.random.key(1))
        assert self.records(first) == (list(range(5)), [1.0] * 5)

    def test_replace_starts_anew(self) -> None:
        first = self._earlier()
        assert self._again("replace") == first
        assert self.records(first) == (list(range(3, 7)), [2.0] * 4)

    def test_resume_continues_without_writing_a_step_twice(self) -> None:
        first = self._earlier()
        assert self._again("resume") == first
        assert self.records(first) == (list(range(7)), [1.0] * 5 + [2.0] * 2)


def _scan(xs: jax.Array) -> jax.Array:
    def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        total = total + xs[step]
        lox.log({"loss": total}, step=step)
        return total, None

    return jax.lax.scan(body, jnp.zeros(()), jnp.arange(len(xs)))[0]


def _break(logger: Logger, error: Exception) -> None:
    """Makes every write of a logger fail."""
    open_run: Callable[[Run], Writer] = logger.open

    def broken_open(run: Run) -> Writer:
        writer = open_run(run)

        def write(logs: lox.logdict) -> None:
            raise error

        writer.write = write  # type: ignore[method-assign]
        return writer

    logger.open = broken_open  # type: ignore[method-assign]


def _rounded(values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Numbers as Python numbers: backends may keep fewer digits than float64 has, but not fewer than float32."""
    return [float(np.float32(value)) if np.asarray(value).dtype.kind == "f" else int(value) for value in values]
