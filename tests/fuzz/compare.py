"""Logs against what is expected of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.fuzz import expect
from tests.fuzz.expect import Column, Select, Use, Uses, not_explicit
from tests.fuzz.oracle import Row


class Broken(AssertionError):
    """A law does not hold."""


def require(condition: Any, what: str, *details: Any) -> None:
    if not condition:
        raise Broken(what + "".join(f"\n  {detail}" for detail in details))


def close(actual: Any, expected: Any, tolerance: float = 1e-5) -> bool:
    actual, expected = np.asarray(actual), np.asarray(expected)
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    return actual.shape == expected.shape and np.allclose(
        actual.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def same_tree(actual: Any, expected: Any, what: str) -> None:
    a, b = jax.tree.structure(actual), jax.tree.structure(expected)
    require(a == b, f"{what}: structures differ", a, b)
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        require(x.dtype == y.dtype and close(x, y), f"{what}: values differ", repr(x), repr(y))


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a spool that decide what its logs look like."""

    interval: int | None = None
    capacity: int | None = None
    reduce: Any = None
    select: Select = not_explicit
    prefix: str = ""

    def arguments(self) -> dict[str, Any]:
        given = {"interval": self.interval, "capacity": self.capacity, "reduce": self.reduce, "prefix": self.prefix}
        return {name: value for name, value in given.items() if value}


def needs_option(uses: Uses) -> bool:
    return any(use.count is None and use.key.reduce is None for use in uses.values())


def check_logs(logs: lox.logdict, uses: Uses, rows: list[Row], options: Options, what: str) -> None:
    """Everything about the logs of a spool."""
    found = expect.rows_by_key(rows, options.select)
    names = {options.prefix + name for name in uses}
    require(set(logs) == names, f"{what}: keys differ", sorted(logs), sorted(names))
    for name, use in uses.items():
        actual, mine = _OneKey(logs, options.prefix + name), found.get(name, [])
        how = use.key.reduce or options.reduce
        if how is None or how == "append":
            column = expect.column(use, mine, options.interval, options.capacity)
            _check_column(actual, column, f"{what}: {name}")
        else:
            _check_reduced(actual, use, mine, how, options, f"{what}: {name}")


class _OneKey:
    def __init__(self, logs: lox.logdict, key: str) -> None:
        self.value = logs[key]
        self.steps = {axis: by_key[key] for axis, by_key in logs.steps.items() if key in by_key}
        self.count = logs.counts[key]
        self.stacked = key in logs.stacked


def _check_column(actual: _OneKey, column: Column, what: str) -> None:
    require(actual.stacked == column.stacked, f"{what}: stacked is {actual.stacked}")
    require(int(actual.count) == column.count, f"{what}: {actual.count} records, expected {column.count}")
    leaves = expect.leaves_of(actual.value)
    for name, leaf in column.leaves.items():
        require(close(leaves[name], leaf), f"{what}: rows differ", repr(np.asarray(leaves[name])), repr(leaf))
        dtype = dtype_of(column.use, name)
        require(leaves[name].dtype == dtype, f"{what}: dtype {leaves[name].dtype}, expected {dtype}")
    require(set(actual.steps) == set(column.steps), f"{what}: step axes {sorted(actual.steps)}")
    for axis, steps in column.steps.items():
        require(close(actual.steps[axis], steps), f"{what}: steps differ", axis, repr(actual.steps[axis]), repr(steps))


def is_wide(use: Use) -> bool:
    """Whether some of the values of a key have 64 bits."""
    return any("64" in dtype and dtype != "complex64" for dtype in use.dtypes)


def dtype_of(use: Use, leaf: str) -> Any:
    if use.key.form == "tree":
        return np.dtype("int32" if leaf == "b1" else "float32")
    with jax.enable_x64(is_wide(use) or bool(jax.config.jax_enable_x64)):
        return jnp.result_type(*map(jnp.dtype, sorted(use.dtypes)))


def _check_reduced(actual: _OneKey, use: Use, rows: list[Row], how: Any, options: Options, what: str) -> None:
    names = (how,) if isinstance(how, str) else how
    if "append" in names:
        _check_kept(actual, use, rows, options, what)
        names = tuple(name for name in names if name != "append")
    half = any(dtype in ("float16", "bfloat16") for dtype in use.dtypes)
    for one in names:
        expected = expect.reduced(use, rows, one, options.interval)
        leaves = expect.leaves_of(actual.value if isinstance(how, str) else actual.value[one])
        for name, leaf in expected.items():
            leaf = _extreme(leaf, one, dtype_of(use, name))
            tolerance = 1e-2 if half else 1e-4
            require(
                close(leaves[name], leaf, tolerance),
                f"{what}: {one} differs",
                repr(np.asarray(leaves[name])),
                repr(leaf),
            )
    every = expect.column(dataclasses.replace(use, count=None, looped=True), rows, options.interval)
    require(int(actual.count) == every.count, f"{what}: {actual.count} records, expected {every.count}")
    require(not actual.stacked, f"{what}: a reduced key has a record axis")
    last = "first" if set(names) == {"first"} else "last"
    for axis, steps in every.steps.items():
        step = expect.reduce_rows(steps, last)
        require(close(actual.steps[axis], step), f"{what}: steps differ", axis, repr(actual.steps[axis]), repr(step))


def _check_kept(actual: _OneKey, use: Use, rows: list[Row], options: Options, what: str) -> None:
    """The rows beside the reductions."""
    column = expect.column(use, rows, options.interval, options.capacity)
    leaves = expect.leaves_of(actual.value["append"])
    for name, leaf in column.leaves.items():
        require(close(leaves[name], leaf), f"{what}: kept rows differ", repr(np.asarray(leaves[name])), repr(leaf))


def _extreme(leaf: np.ndarray, how: str, dtype: Any) -> np.ndarray:
    """No record at all: the extremes of the dtype."""
    if how not in ("min", "max") or not np.isinf(leaf).any() or jnp.issubdtype(dtype, jnp.floating):
        return leaf
    if jnp.dtype(dtype).kind == "b":
        return np.full(leaf.shape, how == "min")
    limits = jnp.iinfo(dtype)
    return np.full(leaf.shape, limits.max if how == "min" else limits.min)


# --- deliveries of a tap ---------------------------------------------------------------------------------------------


def delivered_rows(deliveries: list[lox.logdict]) -> dict[str, list[Any]]:
    """Every delivered record as (leaves, steps), by key."""
    found: dict[str, list[Any]] = {}
    for logs in deliveries:
        require(
            all(isinstance(x, np.ndarray | np.generic) for x in jax.tree.leaves(logs)), "tap: a callback got no numpy"
        )
        for key in logs:
            leaves = expect.leaves_of(logs[key])
            steps = {axis: by_key[key] for axis, by_key in logs.steps.items() if key in by_key}
            if key not in logs.stacked:
                found.setdefault(key, []).append((leaves, steps))
                continue
            for i in range(int(logs.counts[key])):
                record = ({n: x[i] for n, x in leaves.items()}, {a: x[i] for a, x in steps.items()})
                found.setdefault(key, []).append(record)
    return found


def canonical(record: Any) -> str:
    def plain(x: Any) -> Any:
        return (np.asarray(x).astype(np.complex128).round(4) + 0).tolist()  # the sign of a zero is the arithmetic's

    return repr([{name: plain(x) for name, x in part.items()} for part in record])


def check_delivered(
    deliveries: list[lox.logdict], expected: dict[str, list[Any]], what: str, ordered: dict[str, bool] | bool = True
) -> None:
    """``expected``: records by key. ``ordered``: whether the order of a key's records matters."""
    actual = {key: list(map(canonical, records)) for key, records in delivered_rows(deliveries).items()}
    wanted = {key: list(map(canonical, records)) for key, records in expected.items() if records}
    require(set(actual) == set(wanted), f"{what}: keys differ", sorted(actual), sorted(wanted))
    for key, records in wanted.items():
        in_order = ordered if isinstance(ordered, bool) else ordered[key]
        same = actual[key] == records if in_order else Counter(actual[key]) == Counter(records)
        require(same, f"{what}: {key}: deliveries differ", actual[key], records)
