"""Tests of runs: names, configs, and runs that already exist."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from lox.loggers._contract.base import Contract, rounded
from lox.loggers._delivery.logger import Logger
from lox.loggers._errors import LoggerOptionError, RunExistsError


class RunsContract(Contract):
    """Each key opens its own run, and `if_exists` is respected."""

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
        """Paired seeds: the same keys with several rates."""
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

    # Runs that already exist.

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
        """Logs steps 3 to 6 with a second logger, and returns the name of its run."""
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
            pytest.skip("written returns no steps, so all records were written again")
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
                pytest.skip("written returns no steps, so all records are written again")
        assert self.records(name, "params/w") == ([0, 1, 0, 1], [0.0, 0.0, 0.0, 1.0])
        assert self.records(name, "params/w", axis="epoch") == ([0, 0, 1, 1], [0.0, 0.0, 0.0, 1.0])
