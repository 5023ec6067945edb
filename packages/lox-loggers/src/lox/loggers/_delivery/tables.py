"""Logs as tables of numpy: the form in which they reach a writer, whether they come from Python or from a running program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

import lox
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


def one_record(data: Mapping[str, Any], steps: Mapping[str, Any]) -> lox.logdict:
    """A plain dict as one record with the given steps."""
    return lox.logdict(data, steps={axis: dict.fromkeys(data, step) for axis, step in steps.items()})


def host_record(data: Mapping[str, Any], steps: Mapping[str, Any]) -> lox.logdict:
    """The same in numpy, in one go: records that come one by one are to be cheap."""
    values = {key: _value_to_host(key, value) for key, value in data.items()}
    by_axis = {axis: dict.fromkeys(data, _to_numpy("a step", step)) for axis, step in steps.items()}
    return lox.logdict._make(values, by_axis, dict.fromkeys(data, 1), frozenset(), {})


def to_host(logs: lox.logdict) -> lox.logdict:
    """The same logs as numpy arrays that nobody else can change any more."""
    data = {key: _value_to_host(key, value) for key, value in logs.items()}
    steps = _map_steps(logs, lambda key, step: _to_numpy("a step", step))
    counts = {key: count if type(count) is int else np.asarray(count) for key, count in logs.counts.items()}
    return lox.logdict._make(data, steps, counts, logs.stacked, dict(logs._bounds))


def with_all_parts(logs: lox.logdict) -> lox.logdict:
    """The same logs, in which this process has all of every value, also of one that is spread over several processes.

    To bring such a value together is a step that all those processes take, just as they computed it together.
    """
    return logs if jax.process_count() == 1 else jax.tree_util.tree_map(_with_all_parts, logs)


def _with_all_parts(leaf: Any) -> Any:
    if not is_partial(leaf) or not isinstance(leaf.sharding, jax.sharding.NamedSharding):
        return leaf
    return jax.device_put(leaf, jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec()))


def is_partial(leaf: Any) -> bool:
    """Whether other processes have parts of a value that this one does not have."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated


def as_table(logs: lox.logdict) -> lox.logdict:
    """`logs.table()` for logs that are numpy already, with less to do where there is less to do, with one number a
    record for each step axis, and with the number of rows as the count of each key: that of the records behind a
    reduction, or before a bound, is not what a writer is given."""
    return _with_own_counts(_with_scalar_steps(_as_columns(_with_one_count(logs))))


def _with_one_count(logs: lox.logdict) -> lox.logdict:
    """From a shard_map, a key whose number of records is not fixed comes with a count for each device. Where these are
    the same, and so are the steps, a record has the values of all devices. Elsewhere those of each device are records
    of their own, in the order in which the devices made them."""
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
    return lox.logdict._make(data, steps, counts, logs.stacked | set(by_device), bounds)


def _as_columns(logs: lox.logdict) -> lox.logdict:
    single = logs.keys() - logs.stacked
    # A reduction of no records at all (of a branch that was not taken) is a number, but nothing that happened.
    if any(logs.counts[key] == 0 for key in single):
        logs = logs.filter(lambda key: key in logs.stacked or logs.counts[key] != 0)
        single &= logs.keys()
    if logs._bounds:
        return logs.table()
    if not single:
        return logs
    data = {key: _with_axis(value) if key in single else value for key, value in logs.items()}
    steps = _map_steps(logs, lambda key, step: step[None] if key in single else step)
    return lox.logdict._make(data, steps, logs.counts, frozenset(data), {})


def _with_own_counts(table: lox.logdict) -> lox.logdict:
    rows = {
        key: len(value if type(value) is np.ndarray else jax.tree_util.tree_leaves(value)[0])
        for key, value in table.items()
    }
    return table if rows == table.counts else lox.logdict._make(table, table.steps, rows, table.stacked, {})


def _with_scalar_steps(table: lox.logdict) -> lox.logdict:
    """From a shard_map, steps come with an entry for each device. Usually all are the same number; where they are not,
    each device's part of a record becomes a record of its own."""
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
    return lox.logdict._make(data, steps, counts, table.stacked, {})


def lane_of(logs: lox.logdict, lane: tuple[int, ...]) -> lox.logdict:
    """The logs of one lane, out of numpy logs whose leading axes are the lanes."""
    data = {
        key: value[lane] if type(value) is np.ndarray else jax.tree_util.tree_map(lambda leaf: leaf[lane], value)
        for key, value in logs.items()
    }
    steps = _map_steps(logs, lambda key, step: step[lane])
    counts = {key: count if type(count) is int else count[lane] for key, count in logs.counts.items()}
    return lox.logdict._make(data, steps, counts, logs.stacked, dict(logs._bounds))


def nbytes(logs: lox.logdict) -> int:
    """How much memory the values of a logdict of numpy take."""
    total = 0
    for value in logs.values():
        if type(value) is np.ndarray:
            total += value.nbytes
        else:
            total += sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(value))
    return total


def count_records(logs: lox.logdict) -> int:
    """How many records logs hold. Asked after a failure, so that it must not fail itself on whatever led to it."""
    try:
        return sum(1 for _ in logs.rows())
    except Exception:
        return 1


def _map_steps(logs: lox.logdict, change: Callable[[str, Any], np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Changes each array of steps once, so that keys of one record go on sharing theirs."""
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


def _value_to_host(key: str, value: Any) -> Any:
    if type(value) in _ARRAY_LIKE or isinstance(value, (np.generic, jax.Array)):  # a union takes longer
        return _to_numpy(key, value)
    try:
        leaves, tree = jax.tree_util.tree_flatten(value)
    except ValueError as error:  # keys of a dict that cannot be sorted
        raise LoggerStateError(f"the value of {key!r} is not a pytree: {error}") from error
    if not leaves:
        raise LoggerStateError(f"the value of {key!r} holds no arrays or numbers: {value!r}")
    return jax.tree_util.tree_unflatten(tree, [_to_numpy(key, leaf) for leaf in leaves])


_ARRAY_LIKE = frozenset({np.ndarray, float, int, bool, complex, str})


def _to_numpy(name: str, leaf: Any) -> np.ndarray:
    plain = type(leaf) in _ARRAY_LIKE or isinstance(leaf, np.generic)
    if not plain and is_partial(leaf):
        raise LoggerStateError(
            f"{name!r} is spread over several processes, and process {jax.process_index()} has only a part of it. Log it "
            "inside the program (logger.spool, logger.tap), or gather it on every process first, with "
            "jax.experimental.multihost_utils.process_allgather(value, tiled=True)"
        )
    if not plain and _is_key(leaf):
        return label_key_words(np.array(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    array = np.array(leaf)
    if array.dtype.hasobject:
        raise LoggerStateError(f"{name!r} holds a {type(leaf).__name__}, which cannot be logged: {leaf!r}")
    return array


def _is_key(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return not isinstance(dtype, np.dtype) and dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


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
