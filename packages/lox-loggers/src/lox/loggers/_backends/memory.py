"""`MemoryLogger`: keeps what is logged, for notebooks and tests."""

from __future__ import annotations

from typing import Any

import lox
from lox._logdict.table import as_table
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import LaneWriter, Run
from lox.loggers._delivery.tables import join_tables, lane_of


class MemoryLogger(Logger):
    """Keeps the records of each run in memory: `logger.logs` is `{run name: logdict}`, `logger.configs` is `{run name: config}`.

    >>> logger = lox.loggers.MemoryLogger()
    >>> logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> logger.logs
    {'0000000000000000': {'loss': [0.25]}}
    """

    flush_interval = None
    keys_apart = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._writers: dict[str, MemoryWriter] = {}
        self._configs: dict[str, dict[str, Any]] = {}

    @property
    def logs(self) -> dict[str, lox.logdict]:
        """Everything that was logged so far, by run, in the order in which the runs were opened."""
        self.flush()
        return {name: writer.logs() for name, writer in self._writers.items()}

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The config that `init` was given for each run, with arrays as numbers and lists."""
        return dict(self._configs)

    def open(self, run: Run) -> MemoryWriter:
        self._configs[run.name] = run.plain_config
        self._writers[run.name] = MemoryWriter()
        return self._writers[run.name]

    def remove(self, name: str) -> None:
        del self._writers[name]


class MemoryWriter(LaneWriter):
    """Keeps what it gets as it is. Lanes are split only when the logs are read."""

    def __init__(self) -> None:
        self._parts: list[tuple[lox.logdict, tuple[int, ...] | None]] = []

    def write(self, logs: lox.logdict) -> None:
        self._parts.append((logs, None))

    def write_lane(self, logs: lox.logdict, lane: tuple[int, ...]) -> bool:
        self._parts.append((logs, lane))
        return True

    def logs(self) -> lox.logdict:
        """The records, which are joined only once."""
        tables = [logs if lane is None else as_table(lane_of(logs, lane)) for logs, lane in self._parts]
        joined = join_tables(tables)
        self._parts[:] = [(joined, None)]
        return joined.copy()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
