"""`lox loggers` and `lox show`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._errors import LoggerLoadError, RunFormatError
from lox.loggers._load import load
from lox.loggers._manifest import FILE
from lox.loggers._numbers import as_float, short, sparkline
from lox.loggers._registry import available, load_backend


def list_loggers() -> None:
    rows = [("name", "class", "from", "")]
    notes = []
    for name, backend in available().items():
        for each in (backend, *backend.rivals):
            state = "name claimed twice" if backend.rivals else "ok"
            try:
                load_backend(each)
            except LoggerLoadError as error:
                state = "broken"
                notes.append(str(error))
            rows.append((name, each.path, f"{each.distribution} {each.version}", state))
    print_table(rows)
    for note in notes:
        sys.stdout.write(f"\n{note}\n")


def show(path: str | os.PathLike[str], keys: Sequence[str]) -> None:
    for number, (name, logs) in enumerate(load_runs(path, keys).items()):
        if number:
            sys.stdout.write("\n")
        sys.stdout.write(f"{name}\n")
        rows: list[tuple[str, ...]] = [("key", "records", "steps", "", "last", "mean", "min", "max")]
        for key in logs:
            rows += [_describe(label, key, column, logs) for label, column in numeric_columns(logs, key)]
        print_table(rows, indent="  ")


def load_runs(path: str | os.PathLike[str], keys: Sequence[str]) -> dict[str, lox.logdict]:
    """The saved runs at a path, with the keys that match."""
    loaded = load(path)
    runs = {Path(path).resolve().name: loaded} if (Path(path) / FILE).is_file() else loaded
    chosen = {
        name: logs.filter(lambda key: any(fnmatchcase(key, pattern) for pattern in keys)) for name, logs in runs.items()
    }
    if not any(chosen.values()):
        there = sorted({key for logs in runs.values() for key in logs})
        raise RunFormatError(
            f"{path}: no key matches {' '.join(keys)}; there are {', '.join(there)}"
            if there
            else f"{path}: nothing has been logged yet"
        )
    return chosen


def numeric_columns(logs: lox.logdict, key: str) -> list[tuple[str, np.ndarray]]:
    """A label and one number per record for each leaf of a key: arrays as their mean. Text has none."""
    columns = []
    for path, leaf in _tree.leaves_of(logs[key]):
        label = "/".join([key, *(str(part) for _, part in path)])
        if str(getattr(leaf, "dtype", "")).startswith("key<"):
            continue
        if leaf.shape[1:]:
            label += f" (mean of {'x'.join(map(str, leaf.shape[1:]))})"
        numbers = [as_float(row) for row in leaf]
        if all(number is not None for number in numbers):
            columns.append((label, np.asarray(numbers, np.float64)))
    return columns


def _describe(label: str, key: str, column: np.ndarray, logs: lox.logdict) -> tuple[str, ...]:
    steps = [
        f"{axis} {short(float(by_key[key].min()))}..{short(float(by_key[key].max()))}"
        for axis, by_key in logs.steps.items()
        if key in by_key
    ]
    with np.errstate(invalid="ignore"):
        numbers = (column[-1], column.mean(), column.min(), column.max())
    return (label, str(len(column)), ", ".join(steps), sparkline(column), *(short(float(n)) for n in numbers))


def print_table(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{indent}{line.rstrip()}\n")
