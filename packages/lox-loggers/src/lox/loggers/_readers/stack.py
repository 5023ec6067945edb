"""Several runs as one logdict, with a leading run axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import lox
from lox.loggers._errors import RunFormatError


def stack_runs(runs: Mapping[str, lox.logdict], pad: bool = False) -> lox.logdict:
    if not runs:
        raise RunFormatError("there are no runs to stack")
    keys = list(dict.fromkeys(key for logs in runs.values() for key in logs))
    examples = {key: next((name, logs) for name, logs in runs.items() if key in logs) for key in keys}
    for key, example in examples.items():
        for name, logs in runs.items():
            _check(key, example, (name, logs), pad)
    longest = {key: max(logs._rows_of(key) for logs in runs.values() if key in logs) for key in keys}
    data, steps = {}, {axis: dict[str, Any]() for logs in runs.values() for axis in logs.steps}
    for key, (_, one) in examples.items():
        rows = longest[key]
        of_runs = [logs[key] if key in logs else _no_records(one[key]) for logs in runs.values()]
        data[key] = jax.tree_util.tree_map(lambda *leaves, rows=rows: _stack(leaves, rows), *of_runs)
        for axis, by_key in one.steps.items():
            if key in by_key:
                mine = [logs.steps[axis][key] if key in logs else by_key[key][:0] for logs in runs.values()]
                steps[axis][key] = _stack(mine, rows)
    counts = {key: np.asarray([logs.counts.get(key, 0) for logs in runs.values()]) for key in keys}
    stacked = lox.logdict(data, steps=steps, counts=counts, stacked=keys)
    # As with `capacity=`: for the logs of one run, trim() drops the padding.
    stacked._bounds = {key: None for key in keys if (counts[key] < longest[key]).any()}
    return stacked


def _check(key: str, example: tuple[str, lox.logdict], other: tuple[str, lox.logdict], pad: bool) -> None:
    (first, of_first), (name, logs) = example, other
    cannot = f"runs {first!r} and {name!r} cannot be stacked"
    if key not in logs:
        if not pad:
            raise RunFormatError(f"{cannot}: only one of them has {key!r}; {_WAYS_OUT}")
        return
    if logs.counts[key] != of_first.counts[key] and not pad:
        raise RunFormatError(f"{cannot}: {of_first.counts[key]} and {logs.counts[key]} records of {key!r}; {_WAYS_OUT}")
    axes = [[axis for axis, by_key in each.steps.items() if key in by_key] for each in (of_first, logs)]
    if set(axes[0]) != set(axes[1]):
        raise RunFormatError(f"{cannot}: {key!r} has the step axes {axes[0]} in one and {axes[1]} in the other")
    trees = [jax.tree_util.tree_structure(each[key]) for each in (of_first, logs)]
    shapes = [[leaf.shape[1:] for leaf in jax.tree_util.tree_leaves(each[key])] for each in (of_first, logs)]
    if trees[0] != trees[1] or shapes[0] != shapes[1]:
        raise RunFormatError(
            f"{cannot}: a record of {key!r} has the shape {shapes[0]} in one and {shapes[1]} in the other"
        )


_WAYS_OUT = (
    "load(path).stack(pad=True) pads the shorter ones with zeros (`counts` has the number of records of each), and "
    "load(path, keys=...) reads only some keys"
)


def _no_records(value: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf[:0], value)


def _stack(leaves: Any, rows: int) -> Any:
    numpy: Any = jax.numpy if any(isinstance(leaf, jax.Array) for leaf in leaves) else np
    if all(len(leaf) == rows for leaf in leaves):
        return numpy.stack(leaves)
    missing = [rows - len(leaf) for leaf in leaves]
    return numpy.stack(
        [
            numpy.concatenate([leaf, numpy.zeros((number, *leaf.shape[1:]), leaf.dtype)])
            for leaf, number in zip(leaves, missing, strict=True)
        ]
    )
