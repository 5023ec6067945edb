"""The tests of `lox.loggers.testing`. They are in a module of their own so that pytest can explain what failed."""

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
from lox.loggers._delivery.logger import Logger
from lox.loggers._errors import LoggerClosedError, LoggerOptionError, LoggerWarning, RunExistsError
from lox.loggers._histogram import Histogram


class LoggerContract(Contract):
    """What every backend promises. Each test makes its own loggers in an empty folder."""

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
        """`logs.counts` of it says how many records it is made of."""
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        jax.jit(logger.spool(scan, state, reduce="mean"))(jnp.full(5, 2.0))
        logger.flush()
        assert self.records(self.only_run(logger)) == ([4], [6.0])

    def test_only_the_rows_that_are_there_are_written(self) -> None:
        """Of six records, three pass `where`, and `capacity` has room for two, or for four."""

        def some(xs: Any) -> None:
            jax.lax.map(lambda x: lox.log({"loss": x}, step=x.astype(int), where=x % 2 == 0), xs)

        logger = self.logger()
        state = logger.init(jax.random.key(1))
        with warnings.catch_warnings(action="ignore"):  # that capacity=2 drops one
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

    # Names.

    def test_runs_have_the_names_that_a_format_gives_them(self) -> None:
        logger = self.logger(name="lr={rate:.2g}/{env}/seed={lane}")
        keys, rates = jax.random.split(jax.random.key(1), 2), jnp.asarray([0.1, 0.25])
        states = jax.vmap(lambda key, rate: logger.init(key, {"rate": rate, "env": "Cart:Pole"}))(keys, rates)
        names = [run.name for run in logger.runs]
        assert names == ["lr=0.1/Cart%3APole/seed=0", "lr=0.25/Cart%3APole/seed=1"]
        jax.vmap(lambda state, rate: logger.log(state, {"loss": rate}, step=1))(states, rates)
        logger.close()
        assert [self.records(name) for name in names] == [([1], rounded([0.1])), ([1], [0.25])]

    def test_a_function_of_the_run_names_it_too(self) -> None:
        logger = self.logger(name=lambda run: f"seed {run.lane} of {run.lane_index}")
        jax.vmap(jax.vmap(logger.init))(jax.random.split(jax.random.key(1), (1, 2)))
        assert [run.name for run in logger.runs] == ["seed 0 of (0, 0)", "seed 1 of (0, 1)"]

    @pytest.mark.parametrize("if_exists", ["new", "error", "replace", "resume"])
    def test_lanes_of_one_name_are_runs_of_their_own(self, if_exists: str) -> None:
        """Paired seeds: the same keys under several rates."""
        logger = self.logger(if_exists=if_exists, name="baseline")
        keys, rates = jax.random.split(jax.random.key(1), 2), jnp.asarray([1.0, 2.0])
        init = jax.vmap(jax.vmap(logger.init, in_axes=(0, None)), in_axes=(None, 0))
        states = init(keys, {"rate": rates})
        names = [run.name for run in logger.runs]
        assert names == ["baseline", "baseline-2", "baseline-3", "baseline-4"]
        values = jnp.arange(4.0).reshape(2, 2)
        jax.vmap(jax.vmap(lambda state, x: logger.log(state, {"loss": x}, step=0)))(states, values)
        logger.close()
        assert [self.records(name)[1] for name in names] == [[0.0], [1.0], [2.0], [3.0]]

    @pytest.mark.parametrize("if_exists", ["new", "error", "replace", "resume"])
    def test_a_second_init_never_ends_the_run_of_the_first(self, if_exists: str) -> None:
        logger = self.logger(if_exists=if_exists)
        first, second = logger.init(jax.random.key(1)), logger.init(jax.random.key(1))
        names = [run.name for run in logger.runs]
        assert len(names) == (1 if if_exists == "resume" else 2)
        logger.log(first, {"loss": 1.0}, step=0)
        logger.log(second, {"loss": 2.0}, step=1)
        logger.close()
        assert [value for name in names for value in self.records(name)[1]] == [1.0, 2.0]

    def test_what_is_wrong_with_a_name_is_told_before_a_run_opens(self) -> None:
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("{rat}", {"rate": 1.0}, r"field 'rat'.*'rate'.*'lane', 'key', 'process'"),
            ("{net.width}", {"net": {"depth": 3}}, r"'net' has no 'width'; it has 'depth'"),
            ("{env:.2g}", {"env": "CartPole"}, "cannot be written as '.2g'"),
            ("{env}", {"env": "../CartPole"}, "would leave the folder"),
        ]
        for name, config, message in wrong:
            logger = self.logger(name=name)
            with pytest.raises(LoggerOptionError, match=message):
                logger.init(jax.random.key(1), config)
            assert not logger.runs

    # Configs.

    def test_the_config_of_each_lane_is_kept_with_what_is_static(self) -> None:
        logger = self.logger()
        keys = jax.random.split(jax.random.key(1), 2)
        static = {"env": "CartPole", "clip": None, "net": {"sizes": [64, 32], "bias": True}, "steps": 2**40}
        jax.vmap(lambda key, rate: logger.init(key, {"rate": rate, **static}))(keys, jnp.asarray([0.1, 0.25]))
        names = [run.name for run in logger.runs]
        logger.close()
        assert [self.config(name) for name in names] == [{"rate": rate, **static} for rate in (0.1, 0.25)]

    def test_a_run_without_a_config_has_an_empty_one(self) -> None:
        logger = self.logger()
        logger.init(jax.random.key(1))
        name = self.only_run(logger)
        logger.close()
        assert self.config(name) == {}

    def test_a_config_that_cannot_be_kept_is_refused_before_a_run_opens(self) -> None:
        logger = self.logger()
        with pytest.raises(LoggerOptionError, match=r"config\['net'\]\['activation'\] is a function"):
            logger.init(jax.random.key(1), {"rate": 0.1, "net": {"activation": lambda x: x}})
        assert not logger.runs

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
        """Puts a file where the folder was. Who has the run's file open may go on; others must tell."""
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

    # Runs that are there already.

    def test_replace_and_resume_take_the_new_config(self) -> None:
        self._earlier()
        for if_exists, config in (("replace", {"rate": 1.0}), ("resume", {"rate": 2.0}), ("resume", {})):
            with self.logger(if_exists=if_exists) as logger:
                logger.init(jax.random.key(1), config)
                name = self.only_run(logger)
            assert self.config(name) == (config or {"rate": 2.0})

    def _earlier(self, **options: Any) -> str:
        """The name of a run with steps 0 to 4, left by an earlier logger."""
        if type(self.logger()).exists is Logger.exists:
            pytest.skip("this backend does not know earlier runs")
        with self.logger(**options) as logger:
            state = logger.init(jax.random.key(1))
            name = self.only_run(logger)
            for step in range(5):
                logger.log(state, {"loss": 1.0}, step=step)
        return name

    def _again(self, if_exists: str, **options: Any) -> str:
        """Steps 3 to 6 from a second logger; the name of its run."""
        with self.logger(if_exists=if_exists, **options) as logger:
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

    @pytest.mark.parametrize("if_exists", ["new", "replace", "resume"])
    def test_if_exists_looks_at_the_names_that_were_given(self, if_exists: str) -> None:
        first = self._earlier(name="mine/a")
        other = self._earlier(name="mine/b")
        again = self._again(if_exists, name="mine/a")
        assert (first, other, again) == ("mine/a", "mine/b", "mine/a-2" if if_exists == "new" else "mine/a")
        assert self.records(other) == (list(range(5)), [1.0] * 5)
        assert self.records(again)[0][-4:] == [3, 4, 5, 6]

    def test_error_refuses(self) -> None:
        first = self._earlier()
        with pytest.raises(RunExistsError, match=first):
            self.logger(if_exists="error").init(jax.random.key(1))
        assert self.records(first) == (list(range(5)), [1.0] * 5)

    def test_replace_starts_anew(self) -> None:
        first = self._earlier()
        assert self._again("replace") == first
        assert self.records(first) == (list(range(3, 7)), [2.0] * 4)

    @pytest.mark.parametrize("if_exists", ["error", "replace", "resume"])
    def test_a_run_that_is_open_is_refused_to_another_logger(self, if_exists: str) -> None:
        first = self.logger()
        if type(first).lock is Logger.lock:
            pytest.skip("this backend takes no lock")
        state = first.init(jax.random.key(1))
        name = self.only_run(first)
        first.log(state, {"loss": 1.0}, step=0)
        first.flush()
        with pytest.raises(RunExistsError, match=name):
            self.logger(if_exists=if_exists).init(jax.random.key(1))
        first.log(state, {"loss": 2.0}, step=1)
        first.close()
        assert self.records(name) == ([0, 1], [1.0, 2.0])
        self.logger(if_exists="resume").init(jax.random.key(1))  # now it is free

    def test_resume_continues_without_writing_a_step_twice(self) -> None:
        first = self._earlier()
        told = self.logger().written(first)
        assert self._again("resume") == first
        steps, values = self.records(first)
        if not told and steps == [*range(5), *range(3, 7)]:
            pytest.skip("written tells no steps, so all records were written again")
        assert (steps, values) == (list(range(7)), [1.0] * 5 + [2.0] * 2)

    def test_resume_knows_nested_values_and_all_step_axes(self) -> None:
        self._earlier()
        places = [(0, 0), (1, 0), (0, 1), (1, 1)]
        for first, last in ((0, 3), (1, 4)):
            with self.logger(if_exists="resume") as logger:
                state = logger.init(jax.random.key(2))
                name = self.only_run(logger)
                for step, epoch in places[first:last]:
                    logger.log(state, {"params": {"w": 1.0 * first}}, step=step, epoch=epoch)
            if first == 0 and not self.logger().written(name):
                pytest.skip("written tells no steps, so all records are written again")
        assert self.records(name, "params/w") == ([0, 1, 0, 1], [0.0, 0.0, 0.0, 1.0])
        assert self.records(name, "params/w", axis="epoch") == ([0, 0, 1, 1], [0.0, 0.0, 0.0, 1.0])
