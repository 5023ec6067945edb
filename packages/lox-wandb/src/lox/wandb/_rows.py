"""From columns to rows: values with equal steps along the same axes share a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax.tree_util import tree_leaves

from lox import logdict
from lox.loggers.backend import number_labels
from lox.wandb._errors import WandbKeyError

Axes = tuple[str, ...]
Steps = tuple[Any, ...]


class PendingRows:
    """Rows along some step axes that wait for more keys."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes
        self._rows: dict[tuple[Steps, int], dict[str, Any]] = {}
        self._names: set[str] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether one of these names is already in a row, so that the rows are complete."""
        return not self._names.isdisjoint(names)

    def add(
        self, names: list[str], steps: list[Steps], columns: list[list[Any]], skipped: Sequence[Collection[Steps]]
    ) -> None:
        """Adds names to the rows of these steps, each with a column of values, in which None is no value. ``skipped`` has the
        steps at which each name is left out."""
        self._names.update(names)
        for label, values in zip(number_labels(steps), zip(*columns, strict=True), strict=True):
            found = dict(zip(names, values, strict=True))
            if skipped or any(value is None for value in values):
                left = skipped or [()] * len(names)
                found = {
                    name: value
                    for (name, value), steps_left in zip(found.items(), left, strict=True)
                    if value is not None and label[0] not in steps_left
                }
                if not found:
                    continue
            row = self._rows.get(label)
            if row is None:
                row = self._rows[label] = dict(zip(self._axes, label[0], strict=True))
            row.update(found)

    def take(self) -> list[dict[str, Any]]:
        """Removes and returns all rows."""
        rows = list(self._rows.values())
        self._rows.clear()
        self._names.clear()
        return rows


def axes_of(logs: logdict, key: str) -> Axes:
    """The step axes of a key. The key is shown over the first one."""
    return tuple([axis for axis, keys in logs.steps.items() if key in keys])


def steps_of(logs: logdict, axes: Axes, key: str) -> list[Steps]:
    """The steps of each record of a key."""
    if not axes:
        return [()] * len(next(iter(tree_leaves(logs[key]))))
    return list(zip(*[logs.steps[axis][key].tolist() for axis in axes], strict=True))


def check_names(names: Iterable[str], axes: Iterable[str] = ()) -> None:
    """Raises an error for names that wandb reserves: those with a leading underscore, such as `_step` and `_timestamp`."""
    for what, found in (("key", names), ("step axis", axes)):
        for name in found:
            if name.startswith("_"):
                raise WandbKeyError(
                    f"WandbLogger: the {what} {name!r} begins with an underscore, and wandb reserves such "
                    f"names. Rename it, for example to {name.lstrip('_') or 'value'!r}."
                )
            if not name:
                raise WandbKeyError(
                    f"WandbLogger: a {what} has an empty name, which wandb cannot show. Give it a name."
                )
