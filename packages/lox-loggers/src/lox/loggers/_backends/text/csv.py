"""`CsvLogger`: one row for each record, one file for each run."""

from __future__ import annotations

import csv
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lox.loggers import _files
from lox.loggers._backends.text import table
from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.lines import LineLogger, LineWriter
from lox.loggers._backends.text.rows import Columns, Row
from lox.loggers._files import GrowingFile
from lox.loggers._json import to_json

# A spreadsheet executes cells that begin with one of these.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class CsvLogger(LineLogger):
    """Writes `path/RUN.csv`, with a column for each step axis and each value. `RUN.csv.columns.json` lists which is which.

    A cell is empty if a record has no such value. An array is a JSON list in one cell. When a new key appears, the file is
    rewritten with one more column and replaced atomically.

    Args:
      escape_formulas: put a `'` before text (and column names) that a spreadsheet would execute as a formula. Use it if other
        people can choose what is logged.

    >>> with lox.loggers.CsvLogger("tables") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> with open("tables/0000000000000000.csv") as file:
    ...     print(file.read().strip())
    step,loss
    3,0.25
    """

    suffix = ".csv"

    def __init__(self, path: str | os.PathLike[str] = ".lox", *, escape_formulas: bool = False, **options: Any) -> None:
        super().__init__(path, **options)
        self.escape_formulas = escape_formulas

    def writer(self, file: GrowingFile, legend: Legend) -> CsvWriter:
        return CsvWriter(file, legend, self.escape)

    def escape(self, text: str) -> str:
        return f"'{text}" if self.escape_formulas and text.startswith(_FORMULA) else text

    def read(self, file: Path) -> Iterator[Row]:
        records = table.records(file)
        labels = next(map(table.cells, records), [])
        for record in records:
            yield {label: cell for label, cell in zip(labels, table.cells(record), strict=True) if cell}

    def whole_size(self, file: Path) -> int:
        return table.whole_size(file)


class CsvWriter(LineWriter):
    def __init__(self, file: GrowingFile, legend: Legend, escape: Callable[[str], str]) -> None:
        super().__init__(file, legend)
        self._escape = escape
        self._columns = next(map(table.cells, table.records(file.path)), [])
        self._in_file = len(self._columns)

    def lines(self, tables: Sequence[Columns]) -> str:
        new = dict.fromkeys(label for columns in tables for label in columns if label not in self._columns)
        if new:
            self._columns += new
            self._file.kept = [b"".join(table.widened(table.split(piece), len(new))) for piece in self._file.kept]
        return _lines(row for columns in tables for row in self._rows(columns))

    def prepare(self) -> None:
        """Adds missing columns to the file, without reading all of it into memory."""
        new = len(self._columns) - self._in_file
        if not new:
            return
        header = _lines([self._columns]).encode("utf-8", "surrogatepass")
        with self._file.there():
            old = table.records(self._file.path)
            _files.replace(
                self._file.path, itertools.chain([header], table.widened(itertools.islice(old, 1, None), new))
            )
        self._in_file = len(self._columns)

    def _rows(self, columns: Columns) -> Iterator[tuple[Any, ...]]:
        rows = len(next(iter(columns.values()), []))
        nothing = [""] * rows
        return zip(*[self._cells(columns.get(label, nothing)) for label in self._columns], strict=True)

    def _cells(self, column: list[Any]) -> list[Any]:
        if column and isinstance(column[0], list):
            return list(map(to_json, column))
        if column and isinstance(column[0], str):
            return list(map(self._escape, column))
        return column


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    # Before 3.13, Python quotes a carriage return only if it is part of the line terminator. Readers would treat an unquoted
    # one as the end of a row.
    written = _Written()
    csv.writer(written, lineterminator="\r\n").writerows(rows)
    return "".join([line[:-2] + "\n" for line in written])


class _Written(list[str]):
    """Collects what a csv.writer writes, row by row."""

    write = list.append
