"""Logs as a pandas DataFrame: one row for each record, built column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from lox._errors import LogTypeError
from lox._logdict.alignment import merge_steps
from lox._logdict.lanes import lane_axes, lanes_of
from lox._logdict.sequence import labels_of
from lox._logdict.summary import summarized

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict


def to_frame(pandas: Any, logs: logdict, lanes: int | None) -> Any:
    """The rows of ``logs.rows()``. Logs with lanes have those of each lane, one lane after the other."""
    axes = lane_axes(logs, "to_pandas") if lanes is None else lanes
    if not axes:
        return _one_lane(pandas, logs)
    names = ["lane"] if axes == 1 else [f"lane{number}" for number in range(axes)]
    if taken := [name for name in names if name in logs or name in logs.steps]:
        raise LogTypeError(
            f"lox: logs.to_pandas() needs the column {taken[0]!r} for the lanes: rename that key or step"
        )
    frames = []
    for lane, of_lane in lanes_of(logs, axes):
        frame = _one_lane(pandas, of_lane)
        for place, (name, number) in enumerate(zip(names, lane, strict=True)):
            frame.insert(place, name, number)
        frames.append(frame)
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def _one_lane(pandas: Any, logs: logdict) -> Any:
    table = logs.table()
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for key in table:
        by_axes.setdefault(tuple(table._steps_of(key)), []).append(key)
    frames = [_of_axes(pandas, table, axes, keys) for axes, keys in by_axes.items()]
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def _of_axes(pandas: Any, table: logdict, axes: tuple[str, ...], keys: list[str]) -> Any:
    """The rows of keys with the same step axes. Records with equal steps share a row."""
    if axes and _share_steps(table, axes, keys):
        columns = {axis: _column(table._steps[axis][keys[0]]) for axis in axes}
        return pandas.DataFrame(columns | {name: leaf for key in keys for name, leaf in _leaves(key, table[key])})
    steps = [[_step_column(table._steps[axis][key]) for axis in axes] for key in keys]
    places = merge_steps(steps, [table._rows_of(key) for key in keys])
    rows, first = np.unique(np.concatenate(places), return_index=True)
    columns = {axis: np.concatenate(along)[first] for axis, along in zip(axes, zip(*steps, strict=True), strict=True)}
    frame = pandas.DataFrame(columns, index=range(len(rows)))
    for key, mine in zip(keys, places, strict=True):
        for name, leaf in _leaves(key, table[key]):
            series = pandas.Series(leaf, index=mine)
            # Reindexing turns integers into floats, so it is done only if rows are missing.
            frame[name] = series if np.array_equal(mine, rows) else series.reindex(rows)
    return frame


def _share_steps(table: logdict, axes: tuple[str, ...], keys: list[str]) -> bool:
    for axis in axes:
        first = table._steps[axis][keys[0]]
        for other in (table._steps[axis][key] for key in keys[1:]):
            if other is not first and not np.array_equal(other, first):
                return False
    return True


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    named = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(summarized(value))[0]:
        name = "/".join([key, jax.tree_util.keystr(path, simple=True, separator="/")]) if path else key
        named.append((name, _column(leaf) if leaf.ndim == 1 else list(leaf)))
    return named


def _column(rows: np.ndarray) -> Any:
    if rows.ndim > 1:
        return labels_of(rows)
    return rows.astype(np.float64) if rows.dtype.kind == "V" else rows  # pandas would treat bfloat16 as objects


def _step_column(steps: np.ndarray) -> np.ndarray:
    column = _column(steps)
    if isinstance(column, np.ndarray):
        return column
    labels = np.empty(len(column), object)  # one number for each device is one label
    labels[:] = column
    return labels
