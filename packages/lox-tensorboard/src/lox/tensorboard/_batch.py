"""The bytes of a batch of rows: one event for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lox.loggers.kinds import Column
from lox.tensorboard._events import record, scalar_records
from lox.tensorboard._rows import EVERY, EventRows, Numbers, Track
from lox.tensorboard._values import ValueEncoder, as_float32


class _Pattern(NamedTuple):
    """Rows that have values in the same columns."""

    rows: Numbers
    columns: list[tuple[Column, Numbers]]
    """The tracks, each with the numbers of the records in these rows."""


def encode(rows: EventRows, wall_times: npt.NDArray[np.float64], values: ValueEncoder) -> bytes:
    """The file records of all rows, in order."""
    patterns = list(_patterns(rows))
    if len(patterns) == 1 and _is_scalar(patterns[0]):
        return _scalar_block(patterns[0], rows.steps, wall_times).tobytes()
    pieces: dict[int, bytes] = {}
    for pattern in patterns:
        if _is_scalar(pattern):
            block = _scalar_block(pattern, rows.steps, wall_times)
            made: Iterator[bytes] = (line.tobytes() for line in block)
        else:
            made = _mixed_records(pattern, rows, wall_times, values)
        pieces.update(zip(_numbers(pattern.rows, rows), made, strict=True))
    return b"".join(pieces[row] for row in sorted(pieces))


def _patterns(rows: EventRows) -> Iterator[_Pattern]:
    if all(track.rows is EVERY for track in rows.tracks):
        yield _Pattern(EVERY, [(column, EVERY) for track in rows.tracks for column in track.columns])
        return
    records = np.stack([_record_of_row(track, len(rows.steps)) for track in rows.tracks], axis=1)
    kinds, kind_of_row = np.unique(records >= 0, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        mine = np.flatnonzero(kind_of_row.reshape(-1) == number)
        places = np.flatnonzero(kind).tolist()
        columns = [(column, records[mine, place]) for place in places for column in rows.tracks[place].columns]
        if columns:
            yield _Pattern(mine, columns)


def _record_of_row(track: Track, size: int) -> npt.NDArray[np.intp]:
    """The inverse: which record of the track is in each row; -1 if there is none."""
    if isinstance(track.rows, slice):
        return np.arange(size)
    records = np.full(size, -1, np.intp)
    records[track.rows] = np.arange(len(track.rows))
    return records


def _is_scalar(pattern: _Pattern) -> bool:
    return all(column.kind == "scalar" for column, _ in pattern.columns)


def _scalar_block(
    pattern: _Pattern, steps: npt.NDArray[np.int64], wall_times: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    values = as_float32(np.stack([column.values[records] for column, records in pattern.columns], axis=1))
    tags = [column.name for column, _ in pattern.columns]
    return scalar_records(tags, wall_times[pattern.rows], steps[pattern.rows], values)


def _mixed_records(
    pattern: _Pattern, rows: EventRows, wall_times: npt.NDArray[np.float64], values: ValueEncoder
) -> Iterator[bytes]:
    cells = [(column, _numbers(records, rows)) for column, records in pattern.columns]
    for place, row in enumerate(_numbers(pattern.rows, rows)):
        summary = Summary(value=[value for column, records in cells for value in values(column, records[place])])
        yield record(Event(wall_time=float(wall_times[row]), step=int(rows.steps[row]), summary=summary))


def _numbers(chosen: Numbers, rows: EventRows) -> list[int]:
    return list(range(len(rows.steps))) if isinstance(chosen, slice) else chosen.tolist()
