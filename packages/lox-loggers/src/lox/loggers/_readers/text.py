"""Reads what `CsvLogger` and `JsonlLogger` wrote, and tables of other programs if their path is given."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.config_file import config_next_to, read_config
from lox.loggers._backends.text import table
from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.lines import legend_file
from lox.loggers._backends.text.rows import Row
from lox.loggers._errors import RunFormatError
from lox.loggers._readers.reader import Reader, Recording, StoredRun, Wanted

# Common names of steps, for the files of other programs, which have no legend.
_AXES = frozenset(
    {"step", "steps", "global_step", "epoch", "episode", "iteration", "update", "timestep", "time", "_step"}
)

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}


class TextReader(Reader):
    """Files of rows. In a folder, only files with a legend are runs, because there may be other tables."""

    def find(self, root: Path, files: Sequence[Path]) -> Iterable[StoredRun]:
        runs = [file for file in files if file == root or legend_file(file).is_file()]
        return super().find(root, runs)

    def read(self, run: StoredRun, wanted: Wanted) -> Recording:
        (file,) = run.files
        try:
            rows = list(self.rows(file))
            legend = Legend.read(legend_file(file)) if legend_file(file).is_file() else _guessed(rows)
            left_out: dict[str, str] = {}
            logs = _logs(rows, legend, wanted, left_out)
        except (OSError, RunFormatError):
            raise
        except Exception as error:  # any error of the parser
            raise RunFormatError(f"{file} is damaged: {type(error).__name__}: {error}") from error
        return Recording(logs, read_config(config_next_to(file)), left_out=left_out)

    def rows(self, file: Path) -> Iterator[Row]:
        """The rows of a file, without an incomplete line at its end."""
        raise NotImplementedError


class CsvReader(TextReader):
    patterns = ("*.csv",)

    def rows(self, file: Path) -> Iterator[Row]:
        records = table.records(file)
        labels = next(map(table.cells, records), [])
        if len(set(labels)) < len(labels):
            raise ValueError("two columns have the same name")
        for record in records:
            yield {label: _cell(cell) for label, cell in zip(labels, table.cells(record), strict=True) if cell}


class JsonlReader(TextReader):
    patterns = ("*.jsonl",)

    def rows(self, file: Path) -> Iterator[Row]:
        with file.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n") and line.strip():
                    row = json.loads(line.decode("utf-8", "surrogatepass"))
                    if not isinstance(row, dict):
                        raise TypeError("a line is not a JSON object")
                    yield {label: _numbers(cell) for label, cell in row.items() if cell is not None}


def _cell(text: str) -> Any:
    """The value of a cell: a number, a list of numbers, or text."""
    if text in ("True", "False"):
        return text == "True"
    if "_" in text:  # Python would accept it between digits
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text.startswith("["):
        try:
            return _numbers(json.loads(text))
        except ValueError:
            pass
    return text


def _numbers(cell: Any) -> Any:
    """The cell, with floats for the words that stand for nan and infinities, which JSON does not have."""
    if isinstance(cell, list):
        return [_numbers(item) for item in cell]
    return _WORDS.get(cell.lower(), cell) if isinstance(cell, str) else cell


def _guessed(rows: Sequence[Row]) -> Legend:
    """A legend for a file that has none. Nested objects are not taken apart, and steps are recognised by common names."""
    legend = Legend()
    for label in dict.fromkeys(label for row in rows for label in row):
        numbers = all(isinstance(row.get(label, 0), int | float) for row in rows)
        if label in _AXES and numbers:
            legend.axis(label)
        else:
            legend.leaf(label)
    return legend


def _logs(rows: Sequence[Row], legend: Legend, wanted: Wanted, left_out: dict[str, str]) -> lox.logdict:
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    places: dict[str, list[int]] = {}  # for each label, the rows that have it
    for number, row in enumerate(rows):
        for label in row:
            places.setdefault(label, []).append(number)
    leaves: dict[str, list[tuple[_tree.Path, str]]] = {}
    for (key, path), label in legend.leaves.items():
        if label in places and any([*map(wanted, _tree.names_of(key, path))]):
            leaves.setdefault(key, []).append((path, label))
    total = {key: sum(of == key for of, _ in legend.leaves) for key in leaves}
    for key, of_key in leaves.items():
        mine = places[of_key[0][1]]
        try:
            columns = [(path, _array([rows[number][label] for number in mine])) for path, label in of_key]
        except (KeyError, ValueError):  # a logdict has one structure and one shape for all records of a key
            left_out[key] = "records of different shapes"
            continue
        whole = len(of_key) == total[key]
        data[key] = _tree.tree_of(columns if whole else [(_by_name(path), column) for path, column in columns])
        for axis, label in legend.axes.items():
            # An axis that is missing in some rows of a key is not one of its step axes.
            if all(label in rows[number] for number in mine):
                steps.setdefault(axis, {})[key] = _array([rows[number][label] for number in mine])
    return lox.logdict(data, steps=steps, stacked=list(data))


def _by_name(path: _tree.Path) -> _tree.Path:
    return tuple(("dict", part) for _, part in path)


def _array(cells: Sequence[Any]) -> np.ndarray:
    kinds = {isinstance(cell, str) for cell in cells}
    if any(isinstance(cell, Mapping) for cell in cells) or len(kinds) > 1:
        return np.asarray([cell if isinstance(cell, str) else json.dumps(cell) for cell in cells])
    array = np.asarray(cells)
    if array.dtype == object:  # integers of more than 64 bits
        return array.astype(np.float64)
    return array
