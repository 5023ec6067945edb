"""The suite for readers: all tests for backends, with records read back through `lox.loggers.load`, and more."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

import lox
from lox.loggers._contract.base import rounded
from lox.loggers._contract.suite import LoggerContract
from lox.loggers._delivery.logger import Logger
from lox.loggers._errors import RunFormatError, UnreadableRunsError
from lox.loggers._readers.load import load
from lox.loggers._readers.reader import installed_readers
from lox.loggers._readers.runs import Runs


class ReaderContract(LoggerContract):
    """What a backend with a reader promises. Set `reader`, and do not override `read` and `read_config`."""

    reader: ClassVar[str]
    """The name of its entry point in the group `lox.readers`."""

    def read(self, folder: Path, name: str) -> lox.logdict | None:
        return self.runs(folder)[name]

    def read_config(self, folder: Path, name: str) -> Mapping[str, Any] | None:
        return self.runs(folder).configs[name]

    def runs(self, folder: Path | None = None, **options: Any) -> Runs:
        """All runs, loaded from the folder above the one that they are in."""
        below = self._folder if folder is None else folder
        found = load(below.parent, readers=self.reader, **options)
        return _named_from(below.name, found)

    def files(self) -> list[Path]:
        """The files that the reader looks for."""
        (reader,) = installed_readers([self.reader]).values()
        below = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return [path for path in below if any(fnmatch.fnmatch(path.name, pattern) for pattern in reader.patterns)]

    def _two_runs(self) -> tuple[Logger, list[str]]:
        """Runs with 5 records each, flushed but not closed."""
        logger = self.logger()
        for seed in (1, 2):
            state = logger.init(jax.random.key(seed), {"seed": seed})
            for step in range(5):
                logger.log(state, {"loss": seed + step / 2, "accuracy": step / 4}, step=step)
        names = [run.name for run in logger.runs]
        logger.flush()
        return logger, names

    def test_runs_come_with_their_names_in_the_order_of_init(self) -> None:
        _, names = self._two_runs()
        assert list(self.runs()) == names
        assert [config["seed"] for config in self.runs().configs.values()] == [1, 2]
        assert list(self.runs().by("seed")) == [1, 2]

    def test_some_keys_can_be_read_alone(self) -> None:
        _, names = self._two_runs()
        logs = self.runs(keys="acc*")[names[1]]
        assert list(logs) == ["accuracy"]
        assert rounded(logs["accuracy"]) == [0.0, 0.25, 0.5, 0.75, 1.0]

    def test_a_run_can_be_read_while_it_is_written(self) -> None:
        logger = self.logger()
        state = logger.init(jax.random.key(1))
        name = self.only_run(logger)
        for step in range(3):
            logger.log(state, {"loss": step / 2}, step=step)
            logger.flush()
            assert self.records(name) == (list(range(step + 1)), [step / 2 for step in range(step + 1)])

    def test_every_key_is_stacked(self) -> None:
        _, names = self._two_runs()
        for logs in self.runs().values():
            assert logs.stacked == logs.keys()
            assert set(logs.counts.values()) == {5}

    def test_rubbish_is_an_error_that_names_the_file_and_the_other_run_is_read(self) -> None:
        logger, names = self._two_runs()
        logger.close()
        spoiled = self.files()[-1]
        spoiled.write_bytes(np.random.default_rng(0).bytes(5000))
        with pytest.raises(UnreadableRunsError) as caught:
            self.runs()
        assert str(spoiled.parent) in str(caught.value)
        assert len(caught.value.errors) == 1
        (whole,) = _named_from(self._folder.name, caught.value.runs).values()
        assert len(whole["loss"]) == 5

    def test_what_a_kill_left_is_read_or_an_error(self) -> None:
        """Cuts a file at various places: what can be read must be the first records."""
        logger, names = self._two_runs()
        whole = {name: rounded(self.runs()[name]["loss"]) for name in names}
        logger.close()
        spoiled = self.files()[0]
        content = spoiled.read_bytes()
        for size in (*range(len(content) - 9, len(content)), len(content) // 2, 40, 7, 0):
            spoiled.write_bytes(content[:size])
            try:
                runs = self.runs()
            except RunFormatError as error:
                runs = _named_from(self._folder.name, getattr(error, "runs", {}))
            for name, logs in runs.items():
                losses = rounded(logs["loss"]) if "loss" in logs else []
                assert losses == whole.get(name, losses)[: len(losses)]
            assert any(len(logs.get("loss", ())) == 5 for logs in runs.values())


def _named_from(folder: str, runs: Mapping[str, lox.logdict]) -> Runs:
    """The runs with names relative to the folder that they are in."""
    prefix = f"{folder}/"
    assert all(name.startswith(prefix) for name in runs), f"names are paths from where one looks: {list(runs)}"
    given = runs.configs if isinstance(runs, Runs) else {}
    return Runs(
        {name.removeprefix(prefix): logs for name, logs in runs.items()},
        {name.removeprefix(prefix): config for name, config in given.items()},
    )
