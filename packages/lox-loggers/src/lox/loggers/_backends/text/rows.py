"""Records as flat rows of plain values, for backends that write text.

A row has a label for each step axis and each leaf of each value: `step`, `loss`, `params/w`. Should a step axis and a
value have the same name, the one that comes later is labelled `name (step)` or `name (value)`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.text.python_values import columns_to_python, to_python
from lox.loggers._delivery.resume import Steps
from lox.loggers._errors import RecordError

Row = dict[str, Any]
Columns = dict[str, list[Any]]


class Labels:
    """Gives step axes and values labels that do not collide."""

    def __init__(self) -> None:
        self._label: dict[tuple[str, str], str] = {}
        self._owner: dict[str, tuple[str, str]] = {}

    def of(self, kind: str, name: str) -> str:
        if (kind, name) not in self._label:
            label = name if name not in self._owner else f"{name} ({kind})"
            self._label[kind, name], self._owner[label] = label, (kind, name)
        return self._label[kind, name]

    def tables(self, logs: lox.logdict) -> Iterator[Columns]:
        """The rows of a table by column, in parts whose rows have the same labels. Keys with the same steps share a
        row."""
        aligned = _aligned(logs)
        if aligned is None:
            for same, rows in itertools.groupby(self._unaligned_rows(logs), tuple):
                cells = zip(*(row.values() for row in rows), strict=True)
                yield {label: list(column) for label, column in zip(same, cells, strict=True)}
            return
        named = [(self.of("step", axis), steps) for axis, steps in aligned.items()]
        leaves = [(key, name, column) for key in logs for name, column in _named(key, logs[key])]
        labels = self._distinct([label for label, _ in named], [(key, name) for key, name, _ in leaves])
        columns = columns_to_python([steps for _, steps in named] + [column for _, _, column in leaves])
        yield dict(zip(labels, columns, strict=True))

    def rows(self, logs: lox.logdict) -> Iterator[Row]:
        """The same, row by row."""
        for columns in self.tables(logs):
            for cells in zip(*columns.values(), strict=True):
                yield dict(zip(columns, cells, strict=True))

    def _unaligned_rows(self, logs: lox.logdict) -> Iterator[Row]:
        for steps, values in logs.rows():
            leaves = [(key, name, leaf) for key, value in values.items() for name, leaf in _named(key, value)]
            labels = self._distinct([self.of("step", axis) for axis in steps], [(key, name) for key, name, _ in leaves])
            yield dict(zip(labels, map(to_python, [*steps.values(), *(leaf for _, _, leaf in leaves)]), strict=True))

    def _distinct(self, labels: list[str], leaves: Iterable[tuple[str, str]]) -> list[str]:
        """The labels of a row: those of its steps, and those of its values."""
        taken = set(labels)
        for key, name in leaves:
            label = self.of("value", name)
            if label in taken:
                raise RecordError(f"two values of one record are called {label!r}; one of them is in the key {key!r}")
            taken.add(label)
            labels.append(label)
        return labels


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


def _named(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, np.ndarray | np.generic):
        return [(key, value)]
    return [(_tree.label(key, path), leaf) for path, leaf in _tree.leaves_of(value)]


def steps_in(rows: Iterable[Row]) -> Steps:
    """For each key the other labels of its rows: what may be its steps. The records to come know which are."""
    cells: dict[str, dict[str, list[float]]] = {}
    count: Counter[str] = Counter()
    for row in rows:
        numbers = {label: cell for label, cell in row.items() if _is_number(cell)}
        for key in {key for label in row for key in _keys_of(label)}:
            count[key] += 1
            for label, cell in numbers.items():
                cells.setdefault(key, {}).setdefault(label, []).append(cell)
    # What is missing in some of a key's rows is not one of its steps.
    return {
        key: {label: np.asarray(column) for label, column in columns.items() if len(column) == count[key]}
        for key, columns in cells.items()
    }


def _keys_of(label: str) -> list[str]:
    """The keys that a label can belong to: `a/b/c` is that key, or a leaf of `a/b`, or of `a`."""
    parts = label.removesuffix(" (value)").split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and math.isfinite(cell)
