"""The bytes of a csv file, record by record. A cell may contain line breaks and have any length."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_CELL = re.compile(r'(?:"((?:[^"]|"")*)"|([^,]*))(,|$)')


def records(file: Path) -> Iterator[bytes]:
    """The records of a file, each with its newline, without an incomplete record at the end.

    A newline ends a record unless it is quoted, that is, unless the number of quotes before it is odd.
    """
    with file.open("rb") as lines:
        yield from _records(lines)


def whole_size(file: Path) -> int:
    """How many bytes the complete records of a file have."""
    return sum(map(len, records(file)))


def cells(record: bytes) -> list[str]:
    text = record.decode("utf-8", "surrogatepass")[:-1]
    if len(text) <= csv.field_size_limit():
        return next(csv.reader([text]), [])
    return list(_long_cells(text))


def widened(records: Iterable[bytes], columns: int) -> Iterator[bytes]:
    """The same records, each with this many more empty cells at its end."""
    commas = b"," * columns + b"\n"
    return (record[:-1] + commas for record in records)


def split(data: bytes) -> Iterator[bytes]:
    """The records in a piece of a file."""
    return _records(io.BytesIO(data))


def _records(lines: Iterable[bytes]) -> Iterator[bytes]:
    begun: list[bytes] = []
    quoted = False
    for line in lines:
        quoted ^= line.count(b'"') % 2 == 1
        if begun or quoted or not line.endswith(b"\n"):
            begun.append(line)
            if quoted or not line.endswith(b"\n"):
                continue
            yield b"".join(begun)
            begun = []
        else:
            yield line


def _long_cells(text: str) -> Iterator[str]:
    """What `csv.reader` returns, but without its limit on the length of a cell, which is global to the process."""
    place = 0
    while (cell := _CELL.match(text, place)) is not None:
        quoted, bare, end = cell.groups()
        yield bare if quoted is None else quoted.replace('""', '"')
        place = cell.end()
        if not end:
            return
    raise ValueError("a record that is not csv")
