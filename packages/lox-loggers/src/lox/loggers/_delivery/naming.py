"""How `name=` and `processes=` decide the name of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax

from lox.loggers._delivery.config import ConfigTemplate
from lox.loggers._delivery.failures import Failures
from lox.loggers._delivery.names import check_format, fill_format, safe_name, uses_process
from lox.loggers._delivery.run import NameFormat, Processes, Run

_MOST_LANE_AXES = 16


class Naming:
    """How one logger names its runs.

    Args:
      given: the logger's option `name=`.
    """

    def __init__(self, owner: str, given: NameFormat | None, processes: Processes) -> None:
        check_format(owner, "name", given)
        self.given = given
        self._owner = owner
        self._processes = processes

    def check(self, formats: Mapping[str, NameFormat | None], config: ConfigTemplate, words: jax.Array) -> None:
        """Raises an error for formats that do not fit the config, before a run is opened, even if `init` is compiled."""
        run = Run("", (0,) * words.shape[-1], config=config.sample(), lane_index=(0,) * _MOST_LANE_AXES)
        for option, given in formats.items():
            if isinstance(given, str):
                filled = fill_format(self._owner, option, given, run)
                if option == "name":
                    safe_name(f"{self._owner}: name={given!r}", filled)

    def named(self, run: Run, failures: Failures) -> Run:
        """The run with the name that `name=` gives it. If that fails, it keeps the name of its key, because the records of a
        running program need a place."""
        if self.given is None:
            return run
        try:
            name = fill_format(self._owner, "name", self.given, run)
            return dataclasses.replace(run, name=safe_name(f"{self._owner}: name={self.given!r}", name))
        except Exception as error:
            failures.add(error, f"naming the run of the key {run.name}")
            return run

    def here(self, run: Run) -> str | None:
        """The name under which this process writes the run; None if another process writes it."""
        if self._processes == "first":
            return run.name if run.process_index == 0 else None
        return run.name if uses_process(self.given) else f"{run.name}-p{run.process_index}"
