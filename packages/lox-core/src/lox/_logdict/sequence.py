"""Records in sequence: joining two logdicts, and walking over the rows of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import ConflictError
from lox._logdict.alignment import in_order, number_labels
from lox._storage.counts import add_counts
from lox._storage.words import is_key

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict

# --- a + b -----------------------------------------------------------------------------------------------------------


def concatenate(first: logdict, second: logdict) -> logdict:
    """The records of ``first``, then those of ``second``. Keys that only one of them has stay as they are."""
    memo: dict[Any, Any] = {}
    parts = [first.filter(lambda key: key not in second), second.filter(lambda key: key not in first)]
    parts += [_join_key(key, first, second, memo) for key in first if key in second]
    joined = first._of_disjoint(parts)
    return joined._pick({key: key for key in dict.fromkeys((*first, *second))})


def _join_key(key: str, first: logdict, second: logdict, memo: dict[Any, Any]) -> logdict:
    steps_first, steps_second = first._steps_of(key), second._steps_of(key)
    if steps_first.keys() != steps_second.keys():
        raise ConflictError(
            f"lox: cannot add logs of {key!r} with step axes {sorted(steps_first)} and {sorted(steps_second)}. "
            "Give both the same step axes, or rename one with .prefix()"
        )
    _check_same_records(key, first[key], second[key], key in first.stacked, key in second.stacked)
    join = _joiner(key, first, second)

    def join_shared(a: Any, b: Any) -> Any:
        label = (id(a), id(b), id(first._counts[key]) if key in first._bounds else 0)
        if label not in memo:
            memo[label] = (a, b, join(a, b))
        return memo[label][-1]

    counts = first._counts[key], second._counts[key]
    bounds = {key: _joint_capacity(key, first, second)} if key in first._bounds or key in second._bounds else {}
    return first._make(
        {key: jax.tree.map(join, first[key], second[key])},
        {axis: {key: join_shared(steps_first[axis], steps_second[axis])} for axis in steps_first},
        {key: add_counts(counts[0], counts[1], _module_of(list(counts)))},
        frozenset([key]),
        bounds,
    )


def _check_same_records(key: str, a: Any, b: Any, a_stacked: bool, b_stacked: bool) -> None:
    if jax.tree.structure(a) != jax.tree.structure(b):
        raise ConflictError(
            f"lox: cannot add logs of {key!r}: one is {jax.tree.structure(a)}, the other {jax.tree.structure(b)}"
        )
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        shapes = np.shape(x)[int(a_stacked) :], np.shape(y)[int(b_stacked) :]
        if shapes[0] != shapes[1]:
            raise ConflictError(
                f"lox: cannot add logs of {key!r}: the records have the shapes {shapes[0]} and {shapes[1]}"
            )


def _joiner(key: str, first: logdict, second: logdict) -> Any:
    # Steps and counts too: a logged constant can have a traced step.
    numpy = _module_of(
        jax.tree.leaves([(logs[key], logs._steps_of(key), logs._counts[key]) for logs in (first, second)])
    )

    def join(a: Any, b: Any) -> Any:
        at_hand = _is_at_hand(a) and _is_at_hand(b) and a.dtype == b.dtype
        module = np if at_hand else numpy
        arrays = [(module.asarray(a), first), (module.asarray(b), second)]
        joined = module.concatenate([array if key in logs.stacked else array[None] for array, logs in arrays])
        return jax.device_put(joined) if at_hand else joined

    if key not in first._bounds and key not in second._bounds:
        return join

    capacity = _joint_capacity(key, first, second)
    rows_first, rows_second = first._rows_of(key), second._rows_of(key)
    used_first = numpy.minimum(first._counts[key], rows_first)
    used_second = numpy.minimum(second._counts[key], rows_second)
    size = rows_first + rows_second if capacity is None else capacity
    # Row i of the result is record (start + i) of the used rows of both.
    start = 0 if capacity is None else numpy.maximum(used_first + used_second - capacity, 0)
    record = start + numpy.arange(size)
    source = numpy.where(record < used_first, record, rows_first + record - used_first)
    used = record < used_first + used_second

    def join_used(a: Any, b: Any) -> Any:
        both = join(a, b)
        taken = both[numpy.clip(source, 0, len(both) - 1)]
        return numpy.where(used.reshape(used.shape + (1,) * (taken.ndim - 1)), taken, numpy.zeros_like(taken))

    return join_used


def _joint_capacity(key: str, first: logdict, second: logdict) -> int | None:
    capacities = [logs._bounds[key] for logs in (first, second) if logs._bounds.get(key) is not None]
    return min(c for c in capacities if c is not None) if capacities else None


def _is_at_hand(array: Any) -> bool:
    """Whether an array can be handled by numpy: it is uncommitted and on the default device, a CPU. XLA would compile again
    for each new length."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array) or is_key(array.dtype):
        return False
    return not array.committed and {device.platform for device in array.devices()} == {"cpu"}


def _module_of(leaves: list[Any]) -> Any:
    return jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np


# --- rows ------------------------------------------------------------------------------------------------------------


def iterate_rows(table: logdict) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of a logdict of numpy in which every key is stacked."""
    by_axes: dict[tuple[str, ...], list[str]] = {}
    for key in table:
        by_axes.setdefault(tuple(table._steps_of(key)), []).append(key)
    for axes, keys in by_axes.items():
        yield from _rows_of_axes(table, axes, keys)


def labels_of(steps: np.ndarray) -> list[Any]:
    """The step of each record: a number, or, from a shard_map whose devices differ in it, one for each device."""
    if steps.ndim > 1:
        by_device = steps.reshape(len(steps), -1)
        if (by_device != by_device[:, :1]).any():
            return list(map(tuple, by_device.tolist()))
        steps = by_device[:, 0]
    return steps.tolist()


def _rows_of_axes(
    table: logdict, axes: tuple[str, ...], keys: list[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    rows: dict[Any, dict[str, Any]] = {}
    labels: dict[str, list[Any]] = {}
    for key in keys:
        columns = [labels_of(table._steps[axis][key]) for axis in axes]
        labels[key] = list(zip(*columns, strict=True)) if axes else [()] * table._rows_of(key)
        for i, row in enumerate(number_labels(labels[key])):
            rows.setdefault(row, {})[key] = jax.tree.map(lambda leaf, i=i: leaf[i], table[key])
    for row in in_order(rows, labels.values()):
        yield dict(zip(axes, row[0], strict=True)), rows[row]
