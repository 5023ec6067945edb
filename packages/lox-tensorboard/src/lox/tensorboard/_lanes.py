"""The records of all lanes of a `vmap`, encoded at once, so that a run costs little more than opening its file."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lox
from lox.loggers.kinds import Kinds
from lox.tensorboard._clock import Clock
from lox.tensorboard._events import scalar_records
from lox.tensorboard._values import as_float32


class LaneBlock(NamedTuple):
    """The records of all lanes as bytes."""

    records: npt.NDArray[np.uint8]
    wall_times: npt.NDArray[np.float64]

    def of(self, lane: tuple[int, ...]) -> bytes:
        return self.records[lane].tobytes()


class LaneEncoder:
    """Shared by the writers of a logger. Each of them asks for its lane of the same logs."""

    def __init__(self, kinds: Kinds) -> None:
        self.clock = Clock()  # never behind the clock of a writer
        self._kinds = kinds
        self._logs: lox.logdict | None = None
        self._block: LaneBlock | None = None

    def encode(self, logs: lox.logdict, lanes: int) -> LaneBlock | None:
        """The bytes of logs with this many lane axes in front; None unless all values are numbers that share one step axis, as in
        most programs."""
        if logs is not self._logs:
            self._logs, self._block = logs, self._encode(logs, lanes)
        return self._block

    def _encode(self, logs: lox.logdict, lanes: int) -> LaneBlock | None:
        steps, columns = self._steps(logs), list(logs.values())
        if steps is None or any(type(column) is not np.ndarray or column.shape != steps.shape for column in columns):
            return None
        if not logs.stacked:
            steps, columns = steps[..., None], [column[..., None] for column in columns]
        rows = steps.shape[-1]
        if steps.ndim != lanes + 1 or not steps.size or any(count != rows for count in logs.counts.values()):
            return None
        names = self._names(logs, [column[(0,) * lanes] for column in columns])
        if names is None:
            return None
        times = self.clock.rise(rows)
        records = scalar_records(
            names,
            np.broadcast_to(times, steps.shape).reshape(-1),
            steps.reshape(-1).astype(np.int64),
            as_float32(np.stack(columns, axis=-1)).reshape(-1, len(columns)),
        )
        return LaneBlock(records.reshape(*steps.shape[:lanes], -1), times)

    def _steps(self, logs: lox.logdict) -> npt.NDArray[np.integer[Any]] | None:
        """The steps that all keys share; None if some keys have other steps, or only some have an axis of records."""
        if len(logs.stacked) not in (0, len(logs)) or len(logs.steps) != 1:
            return None
        if not all(type(count) is int for count in logs.counts.values()):
            return None  # the lanes have different numbers of records
        (by_key,) = logs.steps.values()
        steps = {id(step): step for step in by_key.values()}
        if len(by_key) != len(logs) or len(steps) != 1:
            return None
        (shared,) = steps.values()
        return shared if shared.dtype.kind == "i" else None

    def _names(self, logs: lox.logdict, columns: list[npt.NDArray[np.generic]]) -> list[str] | None:
        """The tags, if all columns are shown as scalars."""
        if any(column.dtype.kind not in "biuf" for column in columns):
            return None
        found = self._kinds.columns(dict(zip(logs, columns, strict=True)))
        if [column.key for column in found] != list(logs) or any(column.kind != "scalar" for column in found):
            return None
        return [column.name for column in found]
