"""`CsvLogger`: one row for each record, one file for each run."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lox
from lox.loggers._jsonl import create_file, to_json
from lox.loggers._logger import Logger
from lox.loggers._npy import replace_file
from lox.loggers._resume import Steps
from lox.loggers._run import Run
from lox.loggers._text import Labels, LineFile, Row, steps_in


class CsvLogger(Logger):
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

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # also after a change of folder

    def open(self, run: Run) -> CsvWriter:
        file = self._file(run.name)
        if run.resume:
            LineFile(file).cut_back()
            return CsvWriter(file, _columns(file))
        create_file(file)
        return CsvWriter(file, [])

    def exists(self, name: str) -> bool:
        return self._file(name).exists()

    def remove(self, name: str) -> None:
        self._file(name).unlink()

    def written(self, name: str) -> Steps:
        LineFile(self._file(name)).cut_back()
        return steps_in(_read(self._file(name)))

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.csv"


class CsvWriter:
    def __init__(self, file: Path, columns: list[str]) -> None:
        self._file = LineFile(file)
        self._labels = Labels()
        self._columns = columns

    def write(self, logs: lox.logdict) -> None:
        rows = list(self._labels.rows(logs))
        labels = dict.fromkeys(label for row in rows for label in row)
        if not labels.keys() <= set(self._columns):
            self._add_columns([label for label in labels if label not in self._columns])
        self._file.add(_lines([_cell(row.get(column)) for column in self._columns] for row in rows))

    def flush(self) -> None:
        self._file.flush()

    close = flush

    def _add_columns(self, labels: list[str]) -> None:
        self.flush()
        with self._file.path.open(encoding="utf-8", errors="surrogatepass", newline="") as lines:
            rows = [row + [""] * len(labels) for row in list(csv.reader(lines))[1:]]
        self._columns = [*self._columns, *labels]
        content = _lines([self._columns, *rows])
        replace_file(self._file.path, content.encode("utf-8", "surrogatepass"))


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return to_json(value) if isinstance(value, list) else "" if value is None else value


def _columns(file: Path) -> list[str]:
    with file.open(encoding="utf-8", errors="surrogatepass", newline="") as lines:
        return next(csv.reader(lines), [])


def _read(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8", errors="surrogatepass", newline="") as lines:
        for row in csv.DictReader(lines):
            yield {label: _number(cell) for label, cell in row.items() if cell}


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell
