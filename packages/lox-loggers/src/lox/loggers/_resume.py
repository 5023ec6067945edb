"""Which records of a resumed run are there already."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import lox

# Of each key, the steps along each axis: what `Logger.written` tells.
Steps = Mapping[str, Mapping[str, np.ndarray]]


class WrittenSteps:
    """The steps that a run held when it was opened again, key by key.

    Records of a key that has no steps cannot be told apart, so all of them are written.
    """

    def __init__(self, steps: Steps) -> None:
        self._rows = {key: set(_rows(axes)) for key, axes in steps.items() if axes}
        self._axes = {key: sorted(axes) for key, axes in steps.items()}

    def unwritten(self, logs: lox.logdict) -> lox.logdict:
        """`logs`, a table, without the records that are there already."""
        kept = {key: self._kept(key, logs) for key in logs}
        if all(rows is None for rows in kept.values()):
            return logs
        return _take(logs, kept)

    def _kept(self, key: str, logs: lox.logdict) -> np.ndarray | None:
        """The numbers of the records to keep; None for all of them."""
        axes = {axis: column[key] for axis, column in logs.steps.items() if key in column}
        if key not in self._rows or sorted(axes) != self._axes[key]:
            return None
        there = self._rows[key]
        new = [number for number, row in enumerate(_rows(axes)) if row not in there]
        return np.asarray(new, dtype=np.intp)


def _rows(axes: Mapping[str, np.ndarray]) -> list[tuple]:
    # By value, not by dtype: step 3 is step 3, whether it was stored as int32 or as int64.
    columns = [np.asarray(axes[axis]).tolist() for axis in sorted(axes)]
    return list(zip(*columns, strict=True))


def _take(logs: lox.logdict, kept: Mapping[str, np.ndarray | None]) -> lox.logdict:
    import jax

    def pick(key: str, column):
        rows = kept[key]
        return column if rows is None else column[rows]

    keys = [key for key in logs if kept[key] is None or len(kept[key])]
    data = {key: jax.tree_util.tree_map(lambda leaf, key=key: pick(key, leaf), logs[key]) for key in keys}
    steps = {
        axis: {key: pick(key, column[key]) for key in keys if key in column} for axis, column in logs.steps.items()
    }
    counts = {key: len(jax.tree_util.tree_leaves(data[key])[0]) for key in keys}
    return lox.logdict(data, steps=steps, counts=counts, stacked=frozenset(keys))
