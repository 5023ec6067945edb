"""Records that come from Python rather than from a running program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import lox
from lox.loggers import _dtypes
from lox.loggers._errors import LoggerStateError, RecordError


def one_record(data: Mapping[str, Any], steps: Mapping[str, Any]) -> lox.logdict:
    """A plain dict as one record with the given steps."""
    for key, value in data.items():
        if not isinstance(key, str):
            raise LoggerStateError(f"the keys of a record are str; got {key!r}")
        if not jax.tree_util.tree_leaves(value):
            raise LoggerStateError(f"the value of {key!r} holds no arrays or numbers: {value!r}")
    for axis, step in steps.items():
        if np.ndim(step) != 0:
            raise LoggerStateError(f"the step {axis!r} must be a scalar; got shape {np.shape(step)}")
    return lox.logdict(data, steps={axis: dict.fromkeys(data, step) for axis, step in steps.items()})


def to_host(logs: lox.logdict) -> lox.logdict:
    """The same logs as numpy arrays that nobody else can change any more."""
    leaves, tree = jax.tree_util.tree_flatten(logs)
    return jax.tree_util.tree_unflatten(tree, [_to_numpy(leaf) for leaf in leaves])


def _to_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _dtypes.key_words(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    array = np.array(leaf)
    if array.dtype == object:
        raise LoggerStateError(f"a value of type {type(leaf).__name__} cannot be logged: {leaf!r}")
    return array


def join_tables(tables: Sequence[lox.logdict]) -> lox.logdict:
    """Tables one after the other, each key's columns joined once: `sum(tables)` in linear time."""
    parts: dict[str, list[lox.logdict]] = {}
    for table in tables:
        for key in table:
            parts.setdefault(key, []).append(table)
    data = {key: _join(key, [table[key] for table in of_key]) for key, of_key in parts.items()}
    steps: dict[str, dict[str, np.ndarray]] = {}
    for key, of_key in parts.items():
        axes = [[axis for axis, by_key in table.steps.items() if key in by_key] for table in of_key]
        if any(set(other) != set(axes[0]) for other in axes):
            raise RecordError(f"the records of {key!r} have different step axes: {axes}")
        for axis in axes[0]:
            steps.setdefault(axis, {})[key] = np.concatenate([table.steps[axis][key] for table in of_key])
    return lox.logdict(data, steps=steps, stacked=list(data))


def _join(key: str, values: Sequence[Any]) -> Any:
    try:
        return jax.tree_util.tree_map(lambda *leaves: np.concatenate(leaves), *values)
    except (ValueError, TypeError) as error:
        raise RecordError(f"the records of {key!r} have different structures, shapes or dtypes: {error}") from error
