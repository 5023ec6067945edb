"""The bytes of a batch of rows: one event for each row, whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lox.loggers.kinds import Column
from lox.tensorboard._events import record, scalar_records
from lox.tensorboard._rows import Rows
from lox.tensorboard._values import ValueEncoder, as_float32

Numbers = npt.NDArray[np.intp]


class _Pattern(NamedTuple):
    """Rows that hold the same columns."""

    rows: Numbers
    columns: list[tuple[Column, Numbers]]
    """Each with the numbers of the records that stand in these rows."""


def encode(rows: Rows, wall_times: npt.NDArray[np.float64], values: ValueEncoder) -> bytes:
    """The records of all rows, in their order."""
    patterns = list(_patterns(rows))
    if len(patterns) == 1 and _is_scalar(patterns[0]):
        return _scalar_block(patterns[0], rows.steps, wall_times).tobytes()
    pieces: dict[int, bytes] = {}
    for pattern in patterns:
        if _is_scalar(pattern):
            block = _scalar_block(pattern, rows.steps, wall_times)
            made: Iterator[bytes] = (line.tobytes() for line in block)
        else:
            made = _mixed_records(pattern, rows.steps, wall_times, values)
        pieces.update(zip(pattern.rows.tolist(), made, strict=True))
    return b"".join(pieces[row] for row in sorted(pieces))


def _patterns(rows: Rows) -> Iterator[_Pattern]:
    records = np.full((len(rows.steps), len(rows.tracks)), -1, np.intp)
    for number, track in enumerate(rows.tracks):
        records[track.rows, number] = np.arange(len(track.rows))
    present = records >= 0
    if present.all():
        kinds, kind_of_row = np.ones((1, len(rows.tracks)), bool), np.zeros(len(rows.steps), np.intp)
    else:
        kinds, kind_of_row = np.unique(present, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        mine = np.flatnonzero(kind_of_row.reshape(-1) == number)
        columns = [
            (column, records[mine, place])
            for place in np.flatnonzero(kind).tolist()
            for column in rows.tracks[place].columns
        ]
        if columns:
            yield _Pattern(mine, columns)


def _is_scalar(pattern: _Pattern) -> bool:
    return all(column.kind == "scalar" for column, _ in pattern.columns)


def _scalar_block(
    pattern: _Pattern, steps: npt.NDArray[np.int64], wall_times: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    values = np.empty((len(pattern.rows), len(pattern.columns)), np.float32)
    for place, (column, records) in enumerate(pattern.columns):
        values[:, place] = as_float32(column.values[records])
    tags = [column.name for column, _ in pattern.columns]
    return scalar_records(tags, wall_times[pattern.rows], steps[pattern.rows], values)


def _mixed_records(
    pattern: _Pattern, steps: npt.NDArray[np.int64], wall_times: npt.NDArray[np.float64], values: ValueEncoder
) -> Iterator[bytes]:
    for place, row in enumerate(pattern.rows.tolist()):
        shown = [value for column, records in pattern.columns for value in values(column, int(records[place]))]
        summary = Summary(value=shown)
        yield record(Event(wall_time=float(wall_times[row]), step=int(steps[row]), summary=summary))
