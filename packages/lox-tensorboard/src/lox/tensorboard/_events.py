"""Events as bytes: one at a time through protobuf, or whole blocks of scalar events in numpy.

A file of events is a sequence of records: the length of the data (8 bytes), its checksum (4), the data, which is a
serialized `Event`, and its checksum (4). Events that hold scalars under the same tags differ only in their wall
time, step and values, at fixed places. So one template is repeated for a block of rows, and these places filled in.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lox.tensorboard import _crc

_HEADER = 12  # length and its checksum
_FOOTER = 4
_BLOCK_BYTES = 1 << 17  # filled in at once; larger blocks only need larger temporary arrays
_WALL_TIME, _STEP, _SUMMARY = b"\x09", b"\x10", b"\x2a"  # field number and wire type, as in event.proto


def record(event: Event) -> bytes:
    """The bytes of one event in a file."""
    return frame(event.SerializeToString())


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join([length, _checksum(length), data, _checksum(data)])


def scalar_records(
    tags: Sequence[str],
    wall_times: npt.NDArray[np.float64],
    steps: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
) -> npt.NDArray[np.uint8]:
    """A record for each row of `values`, with a value for each tag. All records have the same number of bytes."""
    step_bytes = _varints(steps)
    template = _Template.of(tuple(tags), step_bytes.shape[1])
    fields = np.concatenate([_as_bytes(wall_times[:, None]), step_bytes, _as_bytes(values)], axis=1)
    records = np.empty((len(steps), len(template.record)), np.uint8)
    rows_at_once = max(1, _BLOCK_BYTES // fields.shape[1])
    for start in range(0, len(steps), rows_at_once):
        block = slice(start, start + rows_at_once)
        template.fill(records[block], fields[block])
    return records


class _Template:
    """The record of an event with these tags, with zeros in its fields, and the places of the fields."""

    def __init__(self, tags: tuple[str, ...], step_width: int) -> None:
        # Protobuf reads consecutive messages as one, so each tag is serialized alone. Its value is then the last four
        # bytes.
        values = [Summary(value=[Summary.Value(tag=tag, simple_value=0.0)]).SerializeToString() for tag in tags]
        head = _WALL_TIME + bytes(8) + _STEP + bytes(step_width)
        size = sum(map(len, values))
        head_and_length = head + _SUMMARY + _varints(np.array([size])).tobytes()
        data = b"".join([head_and_length, *values])
        ends = len(head_and_length) + np.cumsum([len(value) for value in values], dtype=np.intp)
        places = np.concatenate(
            [np.arange(1, 9), np.arange(10, 10 + step_width), (ends[:, None] + np.arange(-4, 0)).reshape(-1)]
        )
        self.record = np.frombuffer(frame(data), np.uint8)
        self._places = places + _HEADER
        self._tables = _crc.tables(len(data) - 1 - places)
        self._crc_of_zeros = np.uint32(_crc.crc32c(data))

    @staticmethod
    @lru_cache(maxsize=512)
    def of(tags: tuple[str, ...], step_width: int) -> _Template:
        """Templates are shared by all runs, because a thousand runs log the same tags."""
        return _Template(tags, step_width)

    def fill(self, records: npt.NDArray[np.uint8], fields: npt.NDArray[np.uint8]) -> None:
        records[:] = self.record
        records[:, self._places] = fields
        crc = self._crc_of_zeros ^ _crc.xor_of(self._tables, fields)
        records[:, -_FOOTER:] = _as_bytes(_crc.masked(crc)[:, None])


def _varints(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Protobuf's variable-length integers, all as long as the longest one. The format allows such leading zeros."""
    unsigned = numbers.astype(np.int64).view(np.uint64)
    width = max(1, -(-int(unsigned.max()).bit_length() // 7))
    shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
    result = (unsigned[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    result[:, :-1] |= 0x80
    return result


def _as_bytes(numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """The little-endian bytes of each row."""
    little_endian = np.ascontiguousarray(numbers, numbers.dtype.newbyteorder("<"))
    return little_endian.view(np.uint8)


def _checksum(data: bytes) -> bytes:
    return _as_bytes(_crc.masked(np.array([_crc.crc32c(data)], np.uint32))).tobytes()
