"""`MemoryLogger`: keeps what is logged, for notebooks and tests."""

from __future__ import annotations

from typing import Any

import lox
from lox.loggers._logger import Logger
from lox.loggers._records import join_tables
from lox.loggers._run import Run


class MemoryLogger(Logger):
    """Keeps the records of each run in memory: `logger.logs` is `{run name: logdict}`."""

    flush_interval = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._writers: dict[str, MemoryWriter] = {}

    @property
    def logs(self) -> dict[str, lox.logdict]:
        """All that was logged so far, by run, in the order in which the runs were opened."""
        self.flush()
        return {name: writer.logs() for name, writer in self._writers.items()}

    def open(self, run: Run) -> MemoryWriter:
        self._writers[run.name] = MemoryWriter()
        return self._writers[run.name]

    def remove(self, name: str) -> None:
        del self._writers[name]


class MemoryWriter:
    def __init__(self) -> None:
        self._tables: list[lox.logdict] = []

    def write(self, logs: lox.logdict) -> None:
        self._tables.append(logs)

    def logs(self) -> lox.logdict:
        """Joined once, however often it is asked for."""
        if len(self._tables) > 1:
            self._tables[:] = [join_tables(self._tables)]
        return self._tables[0].copy() if self._tables else lox.logdict()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
