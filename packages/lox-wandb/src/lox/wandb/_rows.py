"""Columns as rows: values of equal steps, along the same axes, are one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from lox import logdict
from lox.loggers.kinds import Column
from lox.wandb._errors import WandbKeyError

Axes = tuple[str, ...]
Steps = tuple[Any, ...]


class Rows:
    """The rows along some step axes that wait for more of their keys."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._rows: dict[tuple[Steps, int], dict[str, Any]] = {}
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether one of these names is in a row already: then the rows are as full as they get."""
        return not self._names.isdisjoint(names)

    def add(self, name: str, steps: list[Steps], values: list[Any], skipped: Collection[Steps]) -> None:
        """Adds one name to the rows of these steps. Records that have no value, or whose steps are skipped, add nothing."""
        self._names.add(name)
        # A step may come again: the n-th record of a step meets the n-th of the other names. Without steps that
        # means: the n-th record of all.
        seen: Counter[Steps] = Counter()
        for step, value in zip(steps, values, strict=True):
            occurrence = seen[step]
            seen[step] = occurrence + 1
            if value is None or step in skipped:
                continue
            row = self._rows.get((step, occurrence))
            if row is None:
                row = self._rows[step, occurrence] = dict(zip(self._axes, step, strict=True))
            row[name] = value

    def take(self) -> list[dict[str, Any]]:
        """All rows, which then no longer wait."""
        rows = list(self._rows.values())
        self._rows.clear()
        self._names.clear()
        return rows


def by_axes(logs: logdict, columns: list[Column]) -> dict[Axes, list[Column]]:
    """The columns by the step axes of their keys."""
    groups: dict[Axes, list[Column]] = {}
    for column in columns:
        axes = tuple(axis for axis, keys in logs.steps.items() if column.key in keys)
        groups.setdefault(axes, []).append(column)
    return groups


def steps_of(logs: logdict, axes: Axes, column: Column) -> list[Steps]:
    """The steps of each record of a column."""
    if not axes:
        return [()] * logs.counts[column.key]
    return list(zip(*(logs.steps[axis][column.key].tolist() for axis in axes), strict=True))


def check_names(names: Iterable[str], axes: Iterable[str] = ()) -> None:
    """Refuses what wandb keeps for itself: names with a leading underscore, such as `_step` and `_timestamp`."""
    for what, found in (("key", names), ("step axis", axes)):
        for name in found:
            if name.startswith("_"):
                raise WandbKeyError(
                    f"WandbLogger: the {what} {name!r} begins with an underscore, and wandb keeps such names for itself. "
                    f"Rename it, for example to {name.lstrip('_') or 'value'!r}."
                )
            if not name:
                raise WandbKeyError(f"WandbLogger: a {what} has the empty name, which wandb cannot show. Give it one.")
