"""Logs on the host: checking them, converting them to numpy, taking lanes, and joining tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import lox
from lox._host.delivery import Delivery
from lox._logdict.table import map_steps
from lox._storage.words import label_key_words
from lox.loggers._errors import LoggerStateError, RecordError


def check_record(data: Mapping[str, Any], steps: Mapping[str, Any]) -> None:
    for key in data:
        if not isinstance(key, str):
            raise LoggerStateError(f"the keys of a record must be str; got {key!r}")
    for axis, step in steps.items():
        if step is None or isinstance(step, (str, bytes)):
            raise LoggerStateError(f"the step {axis!r} must be a number; got {step!r}")
        if type(step) is not int and np.ndim(step) != 0:
            raise LoggerStateError(f"the step {axis!r} must be a scalar; got shape {np.shape(step)}")


def check_traced(data: Mapping[str, Any]) -> None:
    """Raises an error for text in a record of compiled code: JAX has no arrays of text."""
    for key, value in data.items():
        for leaf in jax.tree_util.tree_leaves(value):
            if isinstance(leaf, str | bytes) or getattr(getattr(leaf, "dtype", None), "kind", "") in ("U", "S"):
                raise LoggerStateError(
                    f"{key!r} is text, which cannot be logged inside jit, vmap or scan. Text that describes a run goes to its "
                    f"config, logger.init(key, {{{key!r}: ...}}); other text is logged outside"
                )


def one_record(data: Mapping[str, Any], steps: Mapping[str, Any]) -> lox.logdict:
    """A plain dict as one record with the given steps."""
    by_axis = {axis: dict.fromkeys(data, step) for axis, step in steps.items()}
    return lox.logdict._make(data, by_axis, dict.fromkeys(data, 1), frozenset(), {})


def map_record(data: Mapping[str, Any], steps: Mapping[str, Any], convert: Callable[[str, Any], Any]) -> lox.logdict:
    """The same, with `convert(name, leaf)` in place of every leaf. In one pass, because single records have to be cheap."""
    values = {key: _map_value(key, value, convert) for key, value in data.items()}
    by_axis = {axis: dict.fromkeys(data, convert("a step", step)) for axis, step in steps.items()}
    return lox.logdict._make(values, by_axis, dict.fromkeys(data, 1), frozenset(), {})


def map_leaves(logs: lox.logdict, convert: Callable[[str, Any], Any]) -> lox.logdict:
    """The same logs, with `convert(name, leaf)` in place of every value, step and count that is an array."""
    data = {key: _map_value(key, value, convert) for key, value in logs.items()}
    steps = map_steps(logs, lambda key, step: convert("a step", step))
    counts = {key: count if type(count) is int else convert("a count", count) for key, count in logs.counts.items()}
    return lox.logdict._make(data, steps, counts, logs.stacked, dict(logs._bounds))


def with_all_parts(logs: lox.logdict) -> lox.logdict:
    """The same logs, with all parts of values that are spread over several processes.

    All these processes have to call this, because they gather such a value together.
    """
    return logs if jax.process_count() == 1 else jax.tree_util.tree_map(_with_all_parts, logs)


def _with_all_parts(leaf: Any) -> Any:
    if not is_partial(leaf) or not isinstance(leaf.sharding, jax.sharding.NamedSharding):
        return leaf
    return jax.device_put(leaf, jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec()))


def is_partial(leaf: Any) -> bool:
    """Whether other processes have parts of a value that this one does not have."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def with_time(delivery: Delivery, seconds_open: Callable[[np.ndarray], np.ndarray]) -> lox.logdict:
    """The logs of a delivery with the step axis `time`, unless they already have an axis of that name."""
    logs, lanes = delivery.logs, len(delivery.lanes)
    seconds = np.broadcast_to(seconds_open(np.asarray(delivery.operands)), delivery.lanes)
    columns: dict[tuple[int, ...], np.ndarray] = {}
    times = {}
    for key, value in logs.items():
        shape = np.shape(jax.tree_util.tree_leaves(value)[0])[: lanes + (key in logs.stacked)]
        if shape not in columns:
            rows = shape[lanes:]
            columns[shape] = np.array(np.broadcast_to(seconds.reshape(delivery.lanes + (1,) * len(rows)), shape))
        times[key] = columns[shape]
    steps = {axis: dict(by_key) for axis, by_key in logs.steps.items()}
    steps["time"] = times | steps.get("time", {})
    return lox.logdict._make(dict(logs), steps, dict(logs.counts), logs.stacked, dict(logs._bounds))


def lane_of(logs: lox.logdict, lane: tuple[int, ...]) -> lox.logdict:
    """The logs of one lane, taken from numpy logs whose leading axes are the lanes."""
    data = {
        key: value[lane] if type(value) is np.ndarray else jax.tree_util.tree_map(lambda leaf: leaf[lane], value)
        for key, value in logs.items()
    }
    steps = map_steps(logs, lambda key, step: step[lane])
    counts = {key: count if type(count) is int else count[lane] for key, count in logs.counts.items()}
    return lox.logdict._make(data, steps, counts, logs.stacked, dict(logs._bounds))


def nbytes(logs: lox.logdict) -> int:
    """How much memory the values of a logdict take."""
    total = 0
    for value in logs.values():
        if type(value) is np.ndarray:
            total += value.nbytes
        elif isinstance(value, jax.Array):
            total += math.prod(value.shape) * value.dtype.itemsize  # its own property takes longer
        else:
            total += sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(value))
    return total


def count_records(logs: lox.logdict) -> int:
    """How many records logs hold. It runs after a failure, so it must not fail for the same reason."""
    try:
        return sum(1 for _ in logs.rows())
    except Exception:
        return 1


def records_of(delivery: Delivery) -> int:
    """How many records a delivery brings, to all of its lanes."""
    if not delivery.lanes:
        return count_records(delivery.logs) if delivery.alive else 0
    return sum(count_records(lane_of(delivery.logs, tuple(lane))) for lane in np.argwhere(delivery.alive).tolist())


def _map_value(key: str, value: Any, convert: Callable[[str, Any], Any]) -> Any:
    if type(value) in _ARRAY_LIKE or isinstance(value, (np.generic, jax.Array)):  # faster than a union
        return convert(key, value)
    try:
        leaves, tree = jax.tree_util.tree_flatten(value)
    except ValueError as error:  # a dict with keys that cannot be sorted
        raise LoggerStateError(f"the value of {key!r} is not a pytree: {error}") from error
    if not leaves:
        raise LoggerStateError(f"the value of {key!r} holds no arrays or numbers: {value!r}")
    return jax.tree_util.tree_unflatten(tree, [convert(key, leaf) for leaf in leaves])


_ARRAY_LIKE = frozenset({np.ndarray, float, int, bool, complex, str})


def check_whole(name: str, leaf: Any) -> None:
    if is_partial(leaf):
        raise LoggerStateError(
            f"{name!r} is spread over several processes, and process {jax.process_index()} has only a part of it. Log it "
            "inside the program (logger.spool, logger.tap), or gather it on every process first, with "
            "jax.experimental.multihost_utils.process_allgather(value, tiled=True)"
        )


def to_numpy(name: str, leaf: Any) -> np.ndarray:
    """A copy on the host that nobody else can change."""
    plain = type(leaf) in _ARRAY_LIKE or isinstance(leaf, np.generic)
    if not plain:
        check_whole(name, leaf)
    if not plain and is_key(leaf):
        return label_key_words(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    array = np.array(leaf)
    if array.dtype.hasobject:
        raise LoggerStateError(f"{name!r} holds a {type(leaf).__name__}, which cannot be logged: {leaf!r}")
    return array


def is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return not isinstance(dtype, np.dtype) and dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def join_tables(tables: Sequence[lox.logdict]) -> lox.logdict:
    """Joins tables one after the other. It is `sum(tables)` in linear time, because each key's columns are joined once."""
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
