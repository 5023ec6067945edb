"""Records as flat rows of plain values, for backends that write text.

A row has a label for each step axis and each leaf of each value: `step`, `loss`, `params/w`. Should a step axis and a
value have the same name, the one that comes later is labelled `name (step)` or `name (value)`.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._errors import RecordError
from lox.loggers._resume import Steps

Row = dict[str, Any]

_GATHER_CHARACTERS = 256 * 1024  # gathered before they go to disk; `flush` does not wait for it


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

    def rows(self, logs: lox.logdict) -> Iterator[Row]:
        """The rows of a table; keys with the same steps share a row."""
        aligned = _aligned(logs)
        if aligned is None:
            for steps, values in logs.rows():
                row = {self.of("step", axis): plain(step) for axis, step in steps.items()}
                self._add_values(row, ((key, leaf) for key, value in values.items() for leaf in _named(key, value)))
                yield row
            return
        columns: dict[str, list[Any]] = {self.of("step", axis): plain_column(steps) for axis, steps in aligned.items()}
        self._add_values(
            columns, ((key, (name, plain_column(column))) for key in logs for name, column in _named(key, logs[key]))
        )
        for cells in zip(*columns.values(), strict=True):
            yield dict(zip(columns, cells, strict=True))

    def _add_values(self, row: Row, leaves: Iterable[tuple[str, tuple[str, Any]]]) -> None:
        for key, (name, value) in leaves:
            label = self.of("value", name)
            if label in row:
                raise RecordError(f"two values of one record are called {label!r}; one of them is in the key {key!r}")
            row[label] = value if isinstance(value, list) else plain(value)


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
    return [("/".join([key, *(str(part) for _, part in path)]), leaf) for path, leaf in _tree.leaves_of(value)]


def plain_column(column: np.ndarray) -> list[Any]:
    if column.ndim == 1 and (column.dtype.kind in "biuU" or column.dtype == np.float64):
        return column.tolist()
    if column.ndim == 1 and column.dtype == np.float32:
        return [float(text) for text in column.astype(str).tolist()]
    return [plain(item) for item in column]


def plain(value: Any) -> Any:
    """Numbers, text and lists of them. A float32 is given as few digits as tell it apart from its neighbours."""
    array = np.asarray(value)
    if array.ndim:
        return [plain(item) for item in array]
    if array.dtype.kind in "biuUS" or array.dtype == np.float64:
        item = array.item()
        return item.decode(errors="replace") if isinstance(item, bytes) else item
    if array.dtype.kind == "c":
        return [plain(array.real), plain(array.imag)]
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return int(array)
    return float(str(array[()]))


class LineFile:
    """A text file that grows by whole lines. It is opened for each flush only: see `_npy`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []
        self._length = 0

    def add(self, lines: str) -> None:
        self._lines.append(lines)
        self._length += len(lines)
        if self._length >= _GATHER_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        data = "".join(self._lines).encode("utf-8", "surrogatepass")
        self._lines, self._length = [], 0
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        descriptor = os.open(self.path, flags, 0o666)
        try:
            _append(descriptor, data)
        finally:
            os.close(descriptor)

    def cut_back(self) -> None:
        """Forgets what a writer that was killed left of its last line."""
        content = self.path.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)


def _append(descriptor: int, data: bytes) -> None:
    """All of it or nothing: half a line would spoil the next one."""
    before = os.fstat(descriptor).st_size
    left = data
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            os.truncate(descriptor, before)
        error.lost_records = data.count(b"\n")  # type: ignore[attr-defined]  # see Logger: what a writer may tell
        raise


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
