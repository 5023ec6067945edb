"""`CsvLogger`: one row for each record, one file for each run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from lox.loggers._backends.save.npy import replace_file
from lox.loggers._backends.text.lines import LineFile, LineLogger, LineWriter
from lox.loggers._backends.text.rows import Columns, Row
from lox.loggers._json import to_json


class CsvLogger(LineLogger):
    """Writes `path/RUN.csv`, with a column for each step axis and each value.

    A cell is empty where a record has no such value; arrays are JSON lists in one cell. When a key appears that no
    record had before, the file is written anew with one more column, and replaced at once.

    >>> with lox.loggers.CsvLogger("tables") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> with open("tables/0000000000000000.csv") as file:
    ...     print(file.read().strip())
    step,loss
    3,0.25
    """

    suffix = ".csv"

    def writer(self, file: LineFile) -> CsvWriter:
        return CsvWriter(file)

    def read(self, file: Path) -> Iterator[Row]:
        with _open(file) as lines:
            for row in csv.DictReader(lines):
                yield {label: _number(cell) for label, cell in row.items() if cell}


class CsvWriter(LineWriter):
    def __init__(self, file: LineFile) -> None:
        super().__init__(file)
        with _open(file.path) as lines:
            self._columns = next(csv.reader(lines), [])

    def lines(self, tables: Sequence[Columns]) -> str:
        new = dict.fromkeys(label for columns in tables for label in columns if label not in self._columns)
        if new:
            self._add_columns(list(new))
        return _lines(row for columns in tables for row in self._rows(columns))

    def _rows(self, columns: Columns) -> Iterator[tuple[Any, ...]]:
        rows = len(next(iter(columns.values()), []))
        nothing = [""] * rows
        return zip(*[_cells(columns.get(label, nothing)) for label in self._columns], strict=True)

    def _add_columns(self, labels: list[str]) -> None:
        self.flush()
        with self._file.there(), _open(self._file.path) as lines:
            rows = [row + [""] * len(labels) for row in list(csv.reader(lines))[1:]]
        columns = [*self._columns, *labels]
        replace_file(self._file.path, _lines([columns, *rows]).encode("utf-8", "surrogatepass"))
        self._columns = columns


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    # Python quotes all characters of the terminator, yet before 3.13 no carriage return that is not in it: readers
    # would take one for the end of a row.
    written = _Written()
    csv.writer(written, lineterminator="\r\n").writerows(rows)
    return "".join([line[:-2] + "\n" for line in written])


class _Written(list[str]):
    """A file, for a csv.writer: the rows as they are written."""

    write = list.append


def _cells(column: list[Any]) -> list[Any]:
    return list(map(to_json, column)) if column and isinstance(column[0], list) else column


def _open(file: Path) -> IO[str]:
    return file.open(encoding="utf-8", errors="surrogatepass", newline="")


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell
