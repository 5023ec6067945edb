"""Logs of one lane as a table: numpy columns, one row for each record.

Writers get records in this form. A ``shard_map`` gives values, steps and counts one axis for each axis of its mesh. These
axes are resolved here, so code that reads a table need not know about them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict


def as_table(logs: logdict) -> logdict:
    """`logs.table()` for logs that are already numpy, as a writer gets them: each record has one number for each step axis,
    and the count of a key is its number of rows, not the number of records before a reduction or a bound."""
    return _with_own_counts(_with_scalar_steps(_as_columns(_with_one_count(logs))))


def _with_one_count(logs: logdict) -> logdict:
    """From a shard_map, a key without a fixed number of records has a count for each device. If all counts and all steps are
    the same, a record has the values of all devices. Otherwise each device has its own records, in the order in which they
    were made."""
    by_device = [key for key in logs if type(logs.counts[key]) is not int and np.ndim(logs.counts[key])]
    if not by_device:
        return logs
    logs = logs.filter(lambda key: key not in by_device or bool(np.any(logs.counts[key])))
    by_device = [key for key in by_device if key in logs]
    data, counts, bounds = dict(logs), dict(logs.counts), dict(logs._bounds)
    steps = {axis: dict(by_key) for axis, by_key in logs.steps.items()}
    for key in by_device:
        single, number = key not in logs.stacked, np.asarray(counts[key])
        axes = [axis for axis, by_key in steps.items() if key in by_key]
        value, key_steps = data[key], [steps[axis][key] for axis in axes]
        if single:  # a reduction: there is one if there was a record
            value, *key_steps = jax.tree_util.tree_map(lambda leaf: leaf[None], (value, *key_steps))
        rows = len(jax.tree_util.tree_leaves(value)[0])
        number = np.minimum(number, 1 if single else rows)
        used = np.arange(rows).reshape(-1, *[1] * number.ndim) < number
        flat_steps = [step.reshape(rows, -1) for step in key_steps]
        alike = (number == number.flat[0]).all() and all(
            (step == step[:, :1])[: number.flat[0]].all() for step in flat_steps
        )
        kept: Any = slice(number.flat[0]) if alike else used
        data[key] = jax.tree_util.tree_map(lambda leaf, kept=kept: leaf[kept], value)
        for axis, step in zip(axes, key_steps, strict=True):
            steps[axis][key] = step[kept]
        counts[key] = int(number.flat[0]) if alike else int(used.sum())
        bounds.pop(key, None)
    return logs._make(data, steps, counts, logs.stacked | set(by_device), bounds)


def _as_columns(logs: logdict) -> logdict:
    single = logs.keys() - logs.stacked
    # A reduction of no records (of a branch that was not taken) is a number, but not a record.
    if any(logs.counts[key] == 0 for key in single):
        logs = logs.filter(lambda key: key in logs.stacked or logs.counts[key] != 0)
        single &= logs.keys()
    if logs._bounds:
        return logs.table()
    if not single:
        return logs
    data = {key: _with_axis(value) if key in single else value for key, value in logs.items()}
    steps = map_steps(logs, lambda key, step: step[None] if key in single else step)
    return logs._make(data, steps, logs.counts, frozenset(data), {})


def _with_own_counts(table: logdict) -> logdict:
    rows = {
        key: len(value if type(value) is np.ndarray else jax.tree_util.tree_leaves(value)[0])
        for key, value in table.items()
    }
    return table if rows == table.counts else table._make(table, table.steps, rows, table.stacked, {})


def _with_scalar_steps(table: logdict) -> logdict:
    """From a shard_map, steps have an entry for each device. Usually these are equal. If not, each device's part of a record
    becomes a record of its own."""
    if all(step.ndim <= 1 for by_key in table.steps.values() for step in by_key.values()):
        return table
    data, steps, counts = dict(table), {axis: dict(by_key) for axis, by_key in table.steps.items()}, dict(table.counts)
    for key in table:
        by_device = {axis: by_key[key] for axis, by_key in steps.items() if key in by_key and by_key[key].ndim > 1}
        if not by_device:
            continue
        mesh = next(iter(by_device.values())).shape[1:]
        flat = {axis: step.reshape(len(step), -1) for axis, step in by_device.items()}
        if all((step == step[:, :1]).all() for step in flat.values()):
            new = {axis: step[:, 0] for axis, step in flat.items()}
        else:
            new = {axis: step.reshape(-1) for axis, step in flat.items()}
            rest = 1 + len(mesh)
            data[key] = jax.tree_util.tree_map(lambda leaf, r=rest: leaf.reshape(-1, *leaf.shape[r:]), data[key])
            counts[key] = len(next(iter(new.values())))
        for axis, step in new.items():
            steps[axis][key] = step
    return table._make(data, steps, counts, table.stacked, {})


def map_steps(logs: logdict, change: Callable[[str, Any], np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Changes each array of steps once, so keys of one record still share theirs."""
    changed: dict[tuple[int, bool], np.ndarray] = {}
    steps: dict[str, dict[str, np.ndarray]] = {}
    for axis, by_key in logs.steps.items():
        steps[axis] = {}
        for key, step in by_key.items():
            name = (id(step), key in logs.stacked)
            if name not in changed:
                changed[name] = change(key, step)
            steps[axis][key] = changed[name]
    return steps


def _with_axis(value: Any) -> Any:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return np.asarray(value)[None]
    return jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[None], value)
