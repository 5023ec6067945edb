"""Records as flat rows of plain values, for text backends, and the steps of such rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.python_values import columns_to_python, to_python
from lox.loggers._delivery.resume import Steps

Row = dict[str, Any]
Columns = dict[str, list[Any]]


def tables(logs: lox.logdict, legend: Legend) -> Iterator[Columns]:
    """The rows of a table by column, in parts whose rows have the same labels. Keys with the same steps share a row."""
    aligned = _aligned(logs)
    if aligned is None:
        for same, rows in itertools.groupby(_unaligned_rows(logs, legend), tuple):
            cells = zip(*(row.values() for row in rows), strict=True)
            yield {label: list(column) for label, column in zip(same, cells, strict=True)}
        return
    columns = {legend.axis(axis): steps for axis, steps in aligned.items()}
    for key in logs:
        columns.update(_labelled(key, logs[key], legend))
    yield dict(zip(columns, columns_to_python(list(columns.values())), strict=True))


def rows(logs: lox.logdict, legend: Legend) -> Iterator[Row]:
    """The same, row by row."""
    for columns in tables(logs, legend):
        for cells in zip(*columns.values(), strict=True):
            yield dict(zip(columns, cells, strict=True))


def steps_in(rows: Iterable[Row], legend: Legend) -> Steps:
    """For each key, its steps along each axis."""
    axes = {label: axis for axis, label in legend.axes.items()}
    alike: dict[frozenset[str], dict[str, list[Any]]] = {}  # rows with the same labels have the same keys and axes
    for row in rows:
        columns = alike.setdefault(frozenset(row), {label: [] for label in axes if label in row})
        for label, column in columns.items():
            column.append(_number(row[label]))
    steps: dict[str, dict[str, np.ndarray]] = {}
    for key, labels in legend.keys().items():
        mine = [columns for there, columns in alike.items() if not labels.isdisjoint(there)]
        # An axis that is missing in some rows of a key is not one of its step axes.
        common = [label for label in axes if mine and all(label in columns for columns in mine)]
        steps[key] = {axes[label]: _column([step for columns in mine for step in columns[label]]) for label in common}
    return steps


def _column(numbers: list[Any]) -> np.ndarray:
    """Keeps the numbers exactly: an array of floats would round integers above 2**53."""
    if all(type(number) is int for number in numbers):
        return np.asarray(numbers)
    exact = all(type(number) is float or abs(number) <= 2**53 for number in numbers)
    return np.asarray(numbers, np.float64 if exact else object)


def _number(cell: Any) -> int | float:
    """The number in a cell. It is text in csv, and in JSON if it is not finite."""
    if not isinstance(cell, str):
        return int(cell) if isinstance(cell, bool) else cell
    if cell in ("True", "False"):
        return int(cell == "True")
    try:
        return int(cell)
    except ValueError:
        return float(cell)


def _unaligned_rows(logs: lox.logdict, legend: Legend) -> Iterator[Row]:
    for steps, values in logs.rows():
        row = {legend.axis(axis): step for axis, step in steps.items()}
        for key, value in values.items():
            row.update(_labelled(key, value, legend))
        yield {label: to_python(cell) for label, cell in row.items()}


def _aligned(logs: lox.logdict) -> dict[str, np.ndarray] | None:
    """The steps along each axis if all keys have the same; None if they do not."""
    first = None
    for key in logs:
        steps = {axis: by_key[key] for axis, by_key in logs.steps.items() if key in by_key}
        if first is None:
            first, rows = steps, logs.counts[key]
        elif (
            steps.keys() != first.keys()
            or logs.counts[key] != rows
            or any(steps[axis] is not first[axis] and not np.array_equal(steps[axis], first[axis]) for axis in first)
        ):
            return None
    return first


def _labelled(key: str, value: Any, legend: Legend) -> list[tuple[str, Any]]:
    if isinstance(value, np.ndarray | np.generic):
        return [(legend.leaf(key), value)]
    return [(legend.leaf(key, path), leaf) for path, leaf in _tree.leaves_of(value)]
