"""The base of the tests in `lox.loggers.testing`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import Run, Writer
from lox.loggers.kinds import flatten, plain


class Contract:
    """What a suite has to define for its backend, and helpers for its tests."""

    def make(self, folder: Path, **options: Any) -> Logger:
        """A logger of the backend under test, with its files in `folder`."""
        raise NotImplementedError("override make() to return the logger to test")

    def read(self, folder: Path, name: str) -> lox.logdict | None:
        """All records of a run, as written; None if the backend keeps none.

        A nested value may come back nested, or as its leaves: `{"params": {"w": 1}}`, or `{"params/w": 1}`.
        """
        return None

    def read_config(self, folder: Path, name: str) -> Mapping[str, Any] | None:
        """The config of a run, as in `Run.plain_config`; None if the backend keeps none."""
        return None

    @pytest.fixture(autouse=True)
    def _loggers(self, tmp_path: Path) -> Any:
        self._folder = tmp_path / "runs"
        self._made: list[Logger] = []
        yield
        for logger in self._made:
            # The test is over, so failures and warnings no longer matter.
            with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
                logger.close()

    def logger(self, **options: Any) -> Logger:
        logger = self.make(self._folder, **options)
        self._made.append(logger)
        return logger

    def records(self, name: str, leaf: str = "loss", axis: str = "step") -> tuple[list[Any], list[Any]]:
        """The steps and values of a leaf, as lists. Skips the test if the backend keeps nothing."""
        logs = self.read(self._folder, name)
        if logs is None:
            pytest.skip("this backend does not keep what it is given: read returns None")
        table = logs.table()
        for key, value in table.items():
            for found, column in flatten(key, value):
                if found == leaf:
                    steps = table.steps.get(axis, {}).get(key, ())
                    return rounded(steps), rounded(plain(column, leaf, "read"))
        return [], []

    def config(self, name: str) -> Mapping[str, Any]:
        """The config of a run. Skips the test if the backend keeps none."""
        config = self.read_config(self._folder, name)
        if config is None:
            pytest.skip("this backend does not keep the configs of runs: read_config returns None")
        return config

    def only_run(self, logger: Logger) -> str:
        (run,) = logger.runs
        return run.name


def scan(xs: jax.Array) -> jax.Array:
    def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
        total = total + xs[step]
        lox.log({"loss": total}, step=step)
        return total, None

    return jax.lax.scan(body, jnp.zeros(()), jnp.arange(len(xs)))[0]


def break_writes(logger: Logger, error: Exception) -> None:
    """Makes every write of a logger fail."""
    open_run: Callable[[Run], Writer] = logger.open

    def broken_open(run: Run) -> Writer:
        writer = open_run(run)

        def write(logs: lox.logdict) -> None:
            raise error

        writer.write = write  # type: ignore[method-assign]
        return writer

    logger.open = broken_open  # type: ignore[method-assign]


@contextlib.contextmanager
def in_the_way(folder: Path) -> Iterator[None]:
    """A context in which a file is in the place of the folder."""
    aside = folder.with_name("aside")
    was_there = folder.exists()
    if was_there:
        folder.rename(aside)
    folder.write_text("in the way")
    try:
        yield
    finally:
        folder.unlink()
        if was_there:
            aside.rename(folder)


def rounded(values: Sequence[Any] | np.ndarray) -> list[Any]:
    """Python numbers, rounded to the digits of float32: backends may keep fewer digits than float64 has."""
    return [float(np.float32(value)) if np.asarray(value).dtype.kind == "f" else int(value) for value in values]
