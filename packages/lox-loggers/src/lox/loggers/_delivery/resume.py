"""Which records a resumed run already has."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import jax
import numpy as np

import lox
from lox.loggers._backends.text.python_values import columns_to_python
from lox.loggers._errors import RunFormatError

# For each key, the steps along each axis, as `Logger.written` returns them.
Steps = Mapping[str, Mapping[str, np.ndarray]]


class WrittenSteps:
    """The steps that a run held when it was opened again, key by key.

    A run has a record if it has one with the same key and the same steps. Records without steps cannot be distinguished, so
    all of them are written.
    """

    def __init__(self, steps: Steps, source: str, ignored: Collection[str] = ()) -> None:
        """
        Args:
          steps: the steps, as `Logger.written` returns them.
          source: what errors say about where the steps come from.
          ignored: axes that are ignored when records are compared.
        """
        self._ignored = frozenset(ignored)
        if not isinstance(steps, Mapping) or not all(isinstance(axes, Mapping) for axes in steps.values()):
            raise RunFormatError(f"{source} must return steps as {{key: {{axis: steps}}}}; it returned {steps!r}")
        for key, axes in steps.items():
            columns = list(map(np.asarray, axes.values()))
            if any(column.ndim != 1 or not _holds_numbers(column) for column in columns):
                raise RunFormatError(
                    f"{source} must return steps as {{key: {{axis: steps}}}}; for {key!r} it returned {axes!r}"
                )
            rows = {axis: len(column) for axis, column in axes.items()}
            if len(set(rows.values())) > 1:
                listed = ", ".join(f"{number} along {axis!r}" for axis, number in rows.items())
                raise RunFormatError(
                    f"{source} returned steps of {key!r} that do not belong together: {listed}. Row i of all axes of a key "
                    "must be record i"
                )
        self._steps = {key: dict(axes) for key, axes in steps.items()}
        self._known: dict[tuple[str, ...], np.ndarray] = {}

    def unwritten(self, logs: lox.logdict) -> lox.logdict:
        """`logs`, a table, without the records that the run already has."""
        kept = {key: mask for key in logs if (mask := self._new(key, logs)) is not None and not mask.all()}
        return _take(logs, kept) if kept else logs

    def _new(self, key: str, logs: lox.logdict) -> np.ndarray | None:
        """Which records of a key are new; None for all of them."""
        axes = {axis: column[key] for axis, column in logs.steps.items() if key in column and axis not in self._ignored}
        there = self._steps.get(key, {})
        if not axes or not axes.keys() <= there.keys():
            return None
        name = (key, *sorted(axes))
        if name not in self._known:
            self._known[name] = np.unique(_row_codes({axis: there[axis] for axis in axes}))
        known = self._known[name]
        if not len(known):
            return None
        new = ~_among(known, _row_codes(axes))
        if new.any() and any(_is_short(column) for column in axes.values()):
            # Text backends write the shortest digits of a float32 (0.1), not all of them.
            new &= ~_among(known, _row_codes({axis: np.asarray(columns_to_python([c])[0]) for axis, c in axes.items()}))
        return new


def _among(known: np.ndarray, codes: np.ndarray) -> np.ndarray:
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return known[place] == codes


def _holds_numbers(column: np.ndarray) -> bool:
    if column.dtype.kind == "O":
        return all(isinstance(number, int | float) for number in column.tolist())
    return not len(column) or column.dtype.kind not in "USmM"


def _is_short(column: np.ndarray) -> bool:
    return column.dtype.kind not in "biuO" and column.dtype.itemsize < 8


def _row_codes(axes: Mapping[str, np.ndarray]) -> np.ndarray:
    """One comparable value for each row of steps.

    Numbers are compared by value, not by dtype: step 3 equals step 3, whether stored as int32, int64 or float32. So each number
    is split into its whole part and the rest. nan, infinities and numbers that are too large have no whole part.
    """
    parts = [part for axis in sorted(axes) for part in _whole_and_rest(np.asarray(axes[axis]))]
    table = np.ascontiguousarray(np.stack(parts, axis=-1))
    return table.view(f"V{table.shape[-1] * 8}").reshape(-1)


def _whole_and_rest(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if column.dtype.kind == "O":  # floats, and integers that no float can represent
        each = [_whole_and_rest(np.asarray([number])) for number in column.tolist()]
        return np.concatenate([whole for whole, _ in each]), np.concatenate([rest for _, rest in each])
    if column.dtype == np.uint64:
        large = column > np.iinfo(np.int64).max  # these have no whole part either
        return np.where(large, 0, column).astype(np.int64), np.where(large, column, 0).view(np.int64)
    if column.dtype.kind in "biu":
        return column.astype(np.int64), np.zeros(column.shape, np.int64)
    column = column.astype(np.float64)
    small = np.abs(column) < 2.0**63  # false for nan
    whole = np.floor(np.where(small, column, 0)).astype(np.int64)
    rest = np.where(small, column - whole, column) + 0.0  # -0.0 is 0.0
    rest[np.isnan(rest)] = np.nan  # one bit pattern for all nans
    return whole, rest.view(np.int64)


def _take(logs: lox.logdict, kept: Mapping[str, np.ndarray]) -> lox.logdict:
    keys = [key for key in logs if key not in kept or kept[key].any()]

    def pick(key: str, leaf: np.ndarray) -> np.ndarray:
        return leaf[kept[key]] if key in kept else leaf

    data = {key: jax.tree_util.tree_map(lambda leaf, key=key: pick(key, leaf), logs[key]) for key in keys}
    steps = {
        axis: {key: pick(key, column[key]) for key in keys if key in column} for axis, column in logs.steps.items()
    }
    return lox.logdict(data, steps=steps, stacked=keys)
