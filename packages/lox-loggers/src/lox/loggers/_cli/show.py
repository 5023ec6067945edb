"""`lox loggers` and `lox show`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.display.numbers import as_float, short, sparkline, whole
from lox.loggers._backends.save.manifest import FILE
from lox.loggers._errors import LoggerLoadError, RunFormatError
from lox.loggers._readers.load import load
from lox.loggers._registry import available, load_backend

# More runs than this are shown in one table.
_MANY = 8


def list_loggers() -> bool:
    """Prints what is installed; returns whether all of it can be used."""
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
    return all(state == "ok" for *_, state in rows[1:])


def show(paths: Sequence[str], keys: Sequence[str], *, each: bool) -> None:
    runs = load_runs(paths, keys)
    if len(runs) > _MANY and not each:
        _show_together(runs)
        return
    for number, (name, logs) in enumerate(runs.items()):
        if number:
            sys.stdout.write("\n")
        sys.stdout.write(f"{name}\n")
        rows: list[tuple[str, ...]] = [("key", "records", "steps", "", "last", "mean", "min", "max")]
        for key in logs:
            rows += [_describe(label, key, column, logs) for label, column in numeric_columns(logs, key)]
        print_table(rows, indent="  ")


def load_runs(paths: Sequence[str], keys: Sequence[str]) -> dict[str, lox.logdict]:
    """The saved runs at some paths, with the keys that match. Where runs have one name, the path goes before it."""
    found: list[tuple[Path, str, lox.logdict]] = []
    for path in map(Path, paths):
        loaded = load(path)
        if (path / FILE).is_file():
            found.append((path.parent, path.resolve().name, loaded))
        else:
            found += [(path, name, logs) for name, logs in loaded.items()]
    names = Counter(name for _, name, _ in found)
    runs = {name if names[name] == 1 else str(path / name): logs for path, name, logs in found}
    unused = set(keys)
    chosen = {name: _chosen(logs, keys, unused) for name, logs in runs.items()}
    if any(chosen.values()):
        for pattern in [pattern for pattern in keys if pattern in unused]:
            sys.stderr.write(f"lox: no key matches {pattern}\n")
    else:
        every = ((key, path) for logs in runs.values() for key in logs for path, _ in _tree.leaves_of(logs[key]))
        there = sorted({_tree.label(key, path) for key, path in every})
        raise RunFormatError(
            f"{', '.join(paths)}: no key matches {' '.join(keys)}; there are {', '.join(there)}"
            if there
            else f"{', '.join(paths)}: nothing has been logged yet"
        )
    return chosen


def _chosen(logs: lox.logdict, patterns: Sequence[str], unused: set[str]) -> lox.logdict:
    """The keys that match, and of nested values the leaves whose names do. Patterns that match are taken out of `unused`."""

    def matches(name: str) -> bool:
        found = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
        unused.difference_update(found)
        return bool(found)

    parts = {}
    for key in logs:
        leaves = _tree.leaves_of(logs[key])
        named = [(path, leaf) for path, leaf in leaves if path and matches(_tree.label(key, path))]
        parts[key] = leaves if matches(key) else named
    chosen = logs.filter(lambda key: bool(parts[key]))
    for key in chosen:
        if len(parts[key]) < len(_tree.leaves_of(logs[key])):
            # By name: of a list, the numbers of those that are left would change.
            leaves = [(tuple(("dict", part) for _, part in path), leaf) for path, leaf in parts[key]]
            dict.__setitem__(chosen, key, _tree.tree_of(leaves))
    return chosen


def numeric_columns(logs: lox.logdict, key: str) -> list[tuple[str, np.ndarray]]:
    """A label and one number per record for each leaf of a key: arrays as their mean. Text has none."""
    columns = []
    for path, leaf in _tree.leaves_of(logs[key]):
        label = _tree.label(key, path)
        if str(getattr(leaf, "dtype", "")).startswith("key<"):
            continue
        if leaf.shape[1:]:
            label += f" (mean of {'x'.join(map(str, leaf.shape[1:]))})"
        numbers = [as_float(row) for row in leaf]
        if all(number is not None for number in numbers):
            columns.append((label, np.asarray(numbers, np.float64)))
    return columns


def _show_together(runs: Mapping[str, lox.logdict]) -> None:
    """One table for all runs: the range of their last values, and who has it."""
    found: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, logs in runs.items():
        for key in logs:
            for label, column in numeric_columns(logs, key):
                found.setdefault(label, []).append((name, column))
    sys.stdout.write(f"{len(runs)} runs (--each: a table for each)\n")
    rows: list[tuple[str, ...]] = [("key", "runs", "records", "last: mean ± std", "lowest", "", "highest", "")]
    for label, columns in found.items():
        last = np.asarray([column[-1] for _, column in columns])
        records = {len(column) for _, column in columns}
        low, high = (int(find(np.where(np.isnan(last), worst, last))) for find, worst in _ENDS)
        rows.append(
            (
                label,
                str(len(columns)),
                str(records.pop()) if len(records) == 1 else f"{min(records)}..{max(records)}",
                f"{short(float(last.mean()))} ± {short(float(last.std()))}",
                short(float(last[low])),
                columns[low][0],
                short(float(last[high])),
                columns[high][0],
            )
        )
    print_table(rows, indent="  ")


_ENDS = ((np.argmin, np.inf), (np.argmax, -np.inf))


def _describe(label: str, key: str, column: np.ndarray, logs: lox.logdict) -> tuple[str, ...]:
    steps = [
        f"{axis} {whole(float(by_key[key].min()))}..{whole(float(by_key[key].max()))}"
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
