"""`MultiLogger`: several loggers as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from lox._host.delivery import Delivery
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.names import numbered
from lox.loggers._delivery.opening import Siblings
from lox.loggers._delivery.run import NameFormat, OpenRuns, Run, Writer
from lox.loggers._delivery.sink import STATES_DO_NOT_LAST, Sink
from lox.loggers._errors import LoggerOptionError, LoggerStateError


class MultiLogger(Logger):
    """Delivers each record once to each of several loggers, from one traversal of the program.

    A run has the same name in all of them. `name=` may be given here, or to one of the loggers.

    Every logger keeps its own runs, queue and options. If one fails, the others continue. If several fail, their errors are
    raised together, as an exception group.

    >>> memory = lox.loggers.MemoryLogger()
    >>> with lox.loggers.MultiLogger(memory, lox.loggers.CsvLogger("tables")) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> memory.logs
    {'0000000000000000': {'loss': [0.25]}}
    """

    def __init__(self, *loggers: Logger, name: NameFormat | None = None) -> None:
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise LoggerOptionError(f"MultiLogger takes loggers; got {logger!r} (see lox.loggers.create)")
        if len(set(map(id, loggers))) != len(loggers):
            raise LoggerOptionError(
                "MultiLogger was given the same logger twice, so every record would be written twice"
            )
        super().__init__(name=_one_name(name, loggers))
        self.loggers = loggers
        self._members: dict[int, tuple[int, ...]] = {}  # run id -> its id in each of the loggers

    def open(self, run: Run) -> Writer:
        raise NotImplementedError("a MultiLogger opens no runs itself; its loggers do")

    def limit_close(self, timeout: float) -> None:
        super().limit_close(timeout)
        for logger in self.loggers:
            logger.limit_close(timeout)

    @property
    def runs(self) -> tuple[Run, ...]:
        return OpenRuns(run for logger in self.loggers for run in logger.runs)

    def _sinks(self) -> list[Sink]:
        return [self._sink, *(sink for logger in self.loggers for sink in logger._sinks())]

    def _writes_here(self) -> bool:
        return any(logger._writes_here() for logger in self.loggers)

    def _all_formats(self) -> dict[str, NameFormat | None]:
        of_members = [logger._all_formats() for logger in self.loggers]
        return {option: given for formats in of_members for option, given in formats.items()} | super()._all_formats()

    def _listeners(self) -> list[Callable[[], object]]:
        return [listener for logger in self.loggers for listener in logger._listeners()]

    def _tell_others(self) -> None:
        for logger in self.loggers:
            logger._tell_others()

    def _can_open(self, run: Run, siblings: Siblings) -> bool:
        return all(logger._can_open(run, siblings) for logger in self.loggers)

    def _open_one(self, run: Run, siblings: Siblings) -> int:
        run_id = self._sink.ids.of(run.name)
        # The first name that is free in all loggers, so that the run has the same name everywhere.
        candidates = (dataclasses.replace(run, name=name) for name in numbered(run.name))
        named = next(filter(lambda each: self._can_open(each, siblings), candidates), run)
        self._members[run_id] = tuple(logger._open_one(named, siblings) for logger in self.loggers)
        return run_id

    def _destinations(self, run: np.ndarray) -> list[tuple[Logger, np.ndarray]]:
        return [place for logger, its_run in self._in_each(run) for place in logger._destinations(its_run)]

    def _receive(self, delivery: Delivery) -> None:
        try:
            for logger, its_runs in self._in_each(np.asarray(delivery.operands)):
                logger._receive(delivery._replace(operands=its_runs))
        except LoggerStateError as error:
            self._sink.failures.keep(error, "delivering")

    def _in_each(self, runs: np.ndarray) -> Iterable[tuple[Logger, np.ndarray]]:
        """Each of the loggers, with its own ids of these runs."""
        try:
            members = np.asarray([self._members[run_id] for run_id in runs.reshape(-1).tolist()])
        except KeyError as error:
            raise LoggerStateError(f"run {error} does not belong to this MultiLogger. {STATES_DO_NOT_LAST}") from error
        return zip(self.loggers, (ids.reshape(runs.shape) for ids in members.T), strict=True)


def _one_name(name: NameFormat | None, loggers: tuple[Logger, ...]) -> NameFormat | None:
    """The option `name=`, given to the MultiLogger or to one of its loggers."""
    everyone = [("MultiLogger", name), *((type(logger).__name__, logger._all_formats()["name"]) for logger in loggers)]
    given = {each: owner for owner, each in everyone if each is not None}
    if len(given) > 1:
        listed = ", ".join(f"{each!r} ({owner})" for each, owner in given.items())
        raise LoggerOptionError(
            f"MultiLogger: a run has the same name in all loggers, but several were given: {listed}. Give one name=, to the "
            "MultiLogger"
        )
    return next(iter(given), None)
