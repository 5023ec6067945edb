"""The config of a run: what `init` was given, and what was logged once, without steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

import lox
from lox._logdict.summary import has_summary
from lox.loggers import _tree
from lox.loggers._backends.text.python_values import to_python

_MOST_NUMBERS = 64  # larger arrays are not hyperparameters


def constants(runs: Mapping[str, lox.logdict]) -> set[str]:
    """The keys that describe a whole run. They have no steps, and each run that has them has one record, or equal ones (if it
    was resumed)."""
    found: dict[str, bool] = {}
    for logs in runs.values():
        stepped = {key for by_key in logs.steps.values() for key in by_key}
        for key in logs:
            if found.get(key, True):
                found[key] = key not in stepped and _is_one_value(logs[key])
    return {key for key, is_constant in found.items() if is_constant}


def _is_one_value(value: Any) -> bool:
    if any(map(has_summary, jax.tree_util.tree_leaves(value, is_leaf=has_summary))):
        return False
    for leaf in jax.tree_util.tree_leaves(value):
        rows = len(leaf)
        if rows > 1 and (not isinstance(leaf, np.ndarray) or leaf.size > _MOST_NUMBERS * rows):
            return False
        if rows > 1 and not all(_same(row, leaf[0]) for row in leaf):
            return False
    return True


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def logged_config(logs: lox.logdict, keys: Iterable[str]) -> dict[str, Any]:
    """The values of constant keys, as plain numbers, text and lists."""
    config: dict[str, Any] = {}
    for key in keys:
        for path, leaf in _tree.leaves_of(logs[key]) if key in logs else ():
            if isinstance(leaf, np.ndarray) and leaf[0].size <= _MOST_NUMBERS:
                config[_tree.label(key, path)] = to_python(leaf[0])
    return config


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """One name for each value: `{"model": {"width": 8}}` has `model/width`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}/")
        else:
            found[f"{prefix}{name}"] = comparable(value)
    return found


def comparable(value: Any) -> Any:
    """A value that can be compared with others: a rate of float32(0.1) is 0.1."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return to_python(np.asarray(value))
    if isinstance(value, tuple):
        return [comparable(item) for item in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two comparable values are equal. True does not equal 1, and nan equals nan."""
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other) or (one != one and other != other)


def hashable(value: Any) -> Any:
    """A comparable value as a key of a dict. All nans are the same key."""
    if isinstance(value, list | dict):
        return repr(value)
    return math.nan if value != value else value


def sort_key(value: Any) -> tuple[int, Any]:
    """Sorts values of different types: numbers, then text, then the rest."""
    if isinstance(value, bool | int | float):
        return (0, value) if value == value else (1, 0)
    return (2, value) if isinstance(value, str) else (3, repr(value))


def show(value: Any) -> str:
    """A value in a legend or a table."""
    if isinstance(value, float) and not isinstance(value, bool):
        return f"{value:.6g}"
    return value if isinstance(value, str) else repr(value)
