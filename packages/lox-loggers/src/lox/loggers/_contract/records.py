"""Tests of records: how they reach a backend, their values, and what happens if one cannot be written."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers._contract.base import Contract, break_writes, in_the_way, rounded, scan
from lox.loggers._errors import LoggerClosedError, LoggerWarning
from lox.loggers._histogram import Histogram


class RecordsContract(Contract):
    """A record arrives once, in order, as it was logged."""

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
        out = jax.jit(logger.spool(scan, state))(jnp.arange(20.0))
        assert float(out) == 190.0
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(20)), np.cumsum(np.arange(20.0)).tolist())

    def test_tap_delivers_the_same_records_while_the_program_runs(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        out = jax.jit(logger.tap(scan, state))(jnp.arange(20.0))
        assert float(out) == 190.0
        logger.flush()
        assert self.records(self.only_run(logger)) == (list(range(20)), np.cumsum(np.arange(20.0)).tolist())

    @pytest.mark.parametrize("transform", ["spool", "tap"])
    def test_vmapped_runs_get_their_own_lane(self, transform: str) -> None:
        logger = self.logger()
        keys = jax.random.split(jax.random.key(1), 4)
        states = jax.vmap(logger.init)(keys)
        scale = jnp.arange(1.0, 5.0)
        jax.jit(jax.vmap(lambda s, x: getattr(logger, transform)(scan, s)(x * jnp.arange(5.0))))(states, scale)
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

    def test_every_leaf_of_a_nested_value_is_kept(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        for step in range(2):
            nested = {"w": 2.5 + step, "b": (jnp.float32(3 + step), [jnp.int8(5 + step)])}
            logger.log(state, {"loss": 1.0, "nested": nested, "half": jnp.bfloat16(0.5 + step)}, step=step)
        logger.flush()
        name = self.only_run(logger)
        assert self.records(name, "nested/w") == ([0, 1], [2.5, 3.5])
        assert self.records(name, "nested/b/0") == ([0, 1], [3.0, 4.0])
        assert self.records(name, "nested/b/1/0") == ([0, 1], [5, 6])
        assert self.records(name, "half") == ([0, 1], [0.5, 1.5])

    def test_numbers_that_are_not_finite_stay_what_they_are(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        for step, value in enumerate((np.nan, np.inf, -np.inf)):
            logger.log(state, {"loss": value}, step=step)
        logger.flush()
        steps, values = self.records(self.only_run(logger))
        assert steps == [0, 1, 2]
        np.testing.assert_array_equal(values, [np.nan, np.inf, -np.inf])

    def test_a_reduction_is_one_record(self) -> None:
        """`logs.counts` is then the number of records that were reduced."""
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        jax.jit(logger.spool(scan, state, reduce="mean"))(jnp.full(5, 2.0))
        logger.flush()
        assert self.records(self.only_run(logger)) == ([4], [6.0])

    def test_only_the_rows_that_are_there_are_written(self) -> None:
        """Three of six records pass `where`, and `capacity` has room for two or four."""

        def some(xs: Any) -> None:
            jax.lax.map(lambda x: lox.log({"loss": x}, step=x.astype(int), where=x % 2 == 0), xs)

        logger = self.logger()
        state = logger.init(jax.random.key(1))
        with warnings.catch_warnings(action="ignore"):  # capacity=2 drops a record, with a warning
            for capacity in (2, 4):
                jax.jit(logger.spool(some, state, capacity=capacity))(jnp.arange(6.0))
            logger.flush()
        assert self.records(self.only_run(logger)) == ([2, 4, 0, 2, 4], [2.0, 4.0, 0.0, 2.0, 4.0])

    def test_calls_that_record_nothing_write_nothing(self) -> None:
        @jax.jit
        def step(i: Any) -> None:
            lox.log({"loss": i / 2}, step=i, where=i % 4 == 0)

        logger = self.logger()
        spooled = logger.spool(step, logger.init(jax.random.key(1)))
        for i in range(10):
            spooled(i)
        logger.flush()
        assert self.records(self.only_run(logger)) == ([0, 4, 8], [0.0, 2.0, 4.0])

    def test_every_step_axis_is_kept(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        for step in range(4):
            logger.log(state, {"loss": 1.0 * step, "accuracy": 0.5}, step=step, epoch=step // 2)
        logger.flush()
        name = self.only_run(logger)
        assert self.records(name, "loss") == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
        assert self.records(name, "loss", axis="epoch") == ([0, 0, 1, 1], [0.0, 1.0, 2.0, 3.0])
        assert self.records(name, "accuracy", axis="epoch") == ([0, 0, 1, 1], [0.5] * 4)

    def test_nested_and_odd_values_do_no_harm(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        values = {
            "loss": 1.5,
            "nested": {"w": jnp.ones((2, 3)), "b": (jnp.int8(1), [jnp.bool_(True)])},
            "half": jnp.bfloat16(0.5),
            "histogram": Histogram(jnp.asarray([0.5, 7.0, jnp.nan]), bins=4, range=(0, 1)),
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
        name = self.only_run(logger)
        assert self.records(name) == ([0, 1], [1.0, 2.0])
        assert self.records(name, "lr") == ([1], [0.5])
        assert self.records(name, "accuracy")[1] == rounded([0.1])
        assert self.records(name, "no_step")[1] == [3]

    # Failure.

    def test_what_a_writer_raises_is_raised_at_the_next_call_as_itself(self) -> None:
        logger = self.logger()
        error = RuntimeError("the disk is on fire")
        break_writes(logger, error)
        state = logger.init(jax.random.key(1))
        logger.log(state, {"loss": 1.0}, step=0)
        with pytest.raises(RuntimeError) as caught:
            logger.flush()
        assert caught.value is error

    def test_on_error_warn_warns_once_and_goes_on(self) -> None:
        logger = self.logger(on_error="warn")
        break_writes(logger, RuntimeError("the disk is on fire"))
        state = logger.init(jax.random.key(1))
        with warnings.catch_warnings(record=True, action="always") as caught:
            for step in range(5):
                logger.log(state, {"loss": 1.0}, step=step)
            logger.flush()
        told = [str(warning.message) for warning in caught if warning.category is LoggerWarning]
        assert ["the disk is on fire" in message for message in told] == [True]
        with pytest.warns(LoggerWarning, match="5 records were lost"):
            logger.close()

    def test_what_cannot_be_written_does_not_go_unnoticed(self) -> None:
        """Puts a file where the folder was. A backend that has the run's file open may continue; others must raise."""
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        name = self.only_run(logger)
        logger.log(state, {"loss": 1.0}, step=0)
        logger.flush()
        assert self.records(name) == ([0], [1.0])
        with in_the_way(self._folder):
            try:
                logger.log(state, {"loss": 2.0}, step=1)
                logger.flush()
            except Exception:
                return
        assert self.records(name) == ([0, 1], [1.0, 2.0]), "flush raised nothing, and yet the record is not there"
