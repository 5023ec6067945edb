"""`MultiLogger`: several loggers as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lox._host.delivery import Delivery
from lox.loggers._delivery.logger import Logger, run_ids
from lox.loggers._delivery.run import Run, Writer
from lox.loggers._delivery.sink import Sink
from lox.loggers._errors import LoggerOptionError, LoggerStateError


class MultiLogger(Logger):
    """Delivers each record once to each of several loggers, from one traversal of the program.

    Every logger keeps its own runs, queue and options; one that fails does not stop the others. If several fail,
    their errors are raised together, as an exception group.

    >>> memory = lox.loggers.MemoryLogger()
    >>> with lox.loggers.MultiLogger(memory, lox.loggers.CsvLogger("tables")) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> memory.logs
    {'0000000000000000': {'loss': [0.25]}}
    """

    def __init__(self, *loggers: Logger) -> None:
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise LoggerOptionError(f"MultiLogger takes loggers; got {logger!r} (see lox.loggers.create)")
        if len(set(map(id, loggers))) != len(loggers):
            raise LoggerOptionError(
                "MultiLogger was given the same logger twice, so every record would be written twice"
            )
        super().__init__()
        self.loggers = loggers
        self._members: dict[int, tuple[int, ...]] = {}  # run id -> the id at each of the loggers

    def open(self, run: Run) -> Writer:
        raise NotImplementedError("a MultiLogger opens no runs itself; its loggers do")

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for logger in self.loggers for run in logger.runs)

    def _sinks(self) -> list[Sink]:
        return [self._sink, *(sink for logger in self.loggers for sink in logger._sinks())]

    def _writes_here(self) -> bool:
        return any(logger._writes_here() for logger in self.loggers)

    def _open_one(self, impl: str | None, process_index: int, words: tuple[int, ...], config: Mapping[str, Any]) -> int:
        run_id = next(run_ids)
        self._members[run_id] = tuple(logger._open_one(impl, process_index, words, config) for logger in self.loggers)
        return run_id

    def _receive(self, delivery: Delivery) -> None:
        ids = np.asarray(delivery.operands)
        try:
            members = np.asarray([self._members[run_id] for run_id in ids.reshape(-1).tolist()])
        except KeyError as error:
            foreign = LoggerStateError(
                f"run {error} does not belong to this MultiLogger: use the state that its init returned"
            )
            self._sink.failures.keep(foreign, "delivering")
            return
        for logger, its_ids in zip(self.loggers, members.T, strict=True):
            logger._receive(delivery._replace(operands=its_ids.reshape(ids.shape)))
