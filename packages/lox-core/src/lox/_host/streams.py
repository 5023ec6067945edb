"""Records on their way from a mark to the host, one by one or gathered in a buffer on the device.

The host's side is prepared once, when a program is compiled. Each call then only reads the words that arrived as numbers
and makes a logdict of them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from lox._host.delivery import Delivery, host_form, lane_splitter, pack_leaves
from lox._host.primitive import deliver
from lox._logdict import logdict
from lox._storage.stores import Aval, RingStore
from lox._storage.words import Layout, is_key
from lox._types import Alive, Array


@dataclasses.dataclass(frozen=True)
class Form:
    """What is static about the records of one mark: their names, structures and step axes."""

    names: tuple[str, ...]
    trees: tuple[Any, ...]
    axes: tuple[str, ...]
    in_lanes: bool = False  # the first leaf says which lanes of a vmap inside the transformation made the record

    def record(self, leaves: Sequence[Any]) -> logdict:
        """A logdict of one record."""
        if not self.in_lanes:
            return self.logs(leaves, dict.fromkeys(self.names, 1), stacked=False)
        which, *leaves = leaves
        return self.logs(leaves, dict.fromkeys(self.names, which.astype(np.int32)), stacked=False)

    def rows(self, leaves: Sequence[Any], count: Any, num_lanes: int) -> logdict:
        """A logdict of the first ``count`` rows, behind ``num_lanes`` lane axes."""
        if self.in_lanes:
            which, *leaves = leaves
            leaves, count = _own_rows(which, count, leaves, num_lanes)
            return self.logs(leaves, dict.fromkeys(self.names, count), stacked=True)
        counts = dict.fromkeys(self.names, count if np.ndim(count) else int(count))
        return self.logs(leaves, counts, stacked=True)

    def logs(self, leaves: Sequence[Any], counts: dict[str, Any], stacked: bool) -> logdict:
        """A logdict of the leaves of the values, followed by the steps."""
        values = dict(zip(self.names, leaves, strict=False)) if self.is_flat else self._nested(leaves)
        by_axis = zip(self.axes, leaves[len(leaves) - len(self.axes) :], strict=True)
        steps = {axis: dict.fromkeys(self.names, step) for axis, step in by_axis}
        names = frozenset(self.names if stacked else ())
        return logdict._make(values, steps, counts, names, {} if self.in_lanes else dict.fromkeys(names))

    @functools.cached_property
    def is_flat(self) -> bool:
        return all(map(jax.tree_util.treedef_is_leaf, self.trees))

    def _nested(self, leaves: Sequence[Any]) -> dict[str, Any]:
        rest = iter(leaves)
        return {
            name: tree.unflatten([next(rest) for _ in range(tree.num_leaves)])
            for name, tree in zip(self.names, self.trees, strict=True)
        }


def _own_rows(which: Any, count: Any, leaves: Sequence[Any], axis: int) -> tuple[list[Any], Any]:
    """The rows that each lane made itself, in order, with zeros after them, and how many there are."""
    used = np.arange(which.shape[axis]) < np.expand_dims(count, axis)
    own = which & used.reshape(used.shape + (1,) * (which.ndim - used.ndim))
    order, number = np.argsort(~own, axis, kind="stable"), own.sum(axis, dtype=np.int32)
    order = order.take(np.arange(number.max(initial=0)), axis)
    kept = np.take_along_axis(own, order, axis)

    def sort(leaf: Any) -> Any:
        deeper = (1,) * (leaf.ndim - own.ndim)
        rows = np.take_along_axis(leaf, order.reshape(order.shape + deeper), axis)
        return np.where(kept.reshape(kept.shape + deeper), rows, rows.dtype.type(0))

    return [sort(leaf) for leaf in leaves], number


@dataclasses.dataclass(frozen=True, eq=False)
class PerRecord:
    """Hands each lane's records to a callback, in lane order. Two are equal if they have the same callback."""

    callback: Callable[[logdict], Any]

    def _identity(self) -> Any:
        # A method is a new object each time it is looked up. Two are equal if their objects are the same.
        is_method = isinstance(self.callback, (types.MethodType, types.BuiltinMethodType))
        return self.callback if is_method else id(self.callback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerRecord) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __call__(self, delivery: Delivery) -> None:
        for _, logs in delivery.split():
            self.callback(logs.trim())


def _for_callback(handle: Any, form: Form, layout: Layout, operand_tree: Any) -> bool:
    """Whether a plain callback gets nothing but four-byte numbers: the case that must take only a few microseconds."""
    return (
        isinstance(handle, PerRecord)
        and not operand_tree.num_leaves
        and form.is_flat
        and (all(layout.packed) or len(layout.packed) == 1)
        and all(shape == () for shape in layout.shapes)
        and all(not is_key(dtype) and np.dtype(dtype).itemsize == 4 for dtype in layout.dtypes)
    )


# --- the host's side -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RecordTarget:
    """Receives single records: the receiver's operands, then the leaves and steps."""

    handle: Callable[[Delivery], None]
    form: Form
    layout: Layout
    operand_tree: Any

    def prepare(self, lanes: tuple[int, ...], has_alive: bool) -> Callable[..., tuple[()]]:
        if not lanes and not has_alive and _for_callback(self.handle, self.form, self.layout, self.operand_tree):
            return self._prepare_simple()
        num_operands = self.operand_tree.num_leaves
        split = lane_splitter(lanes, has_alive)

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, rest = split(arrays)
            leaves = self.layout.unpack_numpy(rest)
            operands = self.operand_tree.unflatten(leaves[:num_operands])
            self.handle(Delivery(lanes, alive, operands, self.form.record(leaves[num_operands:])))
            return ()

        return run

    def _prepare_simple(self) -> Callable[..., tuple[()]]:
        names, axes, dtypes = self.form.names, self.form.axes, [np.dtype(dtype) for dtype in self.layout.dtypes]
        number = len(names)
        one_dtype = dtypes[0] if len(set(dtypes[:number])) == 1 else None
        callback, counts = self.handle.callback, dict.fromkeys(names, 1)  # type: ignore[attr-defined]
        nothing: frozenset[str] = frozenset()
        new, update = logdict.__new__, dict.update

        def run(words: Any) -> tuple[()]:
            if one_dtype is not None:
                values: Any = words.view(one_dtype)
            else:
                values = [words[i].view(dtype) for i, dtype in enumerate(dtypes[:number])]
            logs = new(logdict)
            update(logs, zip(names, values))  # noqa: B905 (the steps follow the values)
            logs._steps = {}
            for i, axis in enumerate(axes, number):
                logs._steps[axis] = dict.fromkeys(names, words[i].view(dtypes[i]))
            logs._counts, logs._stacked, logs._bounds = counts.copy(), nothing, {}
            callback(logs)
            return ()

        # A single number is not packed.
        return run if all(self.layout.packed) else lambda value: run(value.reshape(1))


@dataclasses.dataclass(frozen=True)
class RowsTarget:
    """Receives a buffer: the receiver's operands, how many rows are used (unless it is full), then the rows."""

    handle: Callable[[Delivery], None]
    form: Form
    ring: RingStore
    layout: Layout  # of the operands and the count
    operand_tree: Any
    full: bool

    def prepare(self, lanes: tuple[int, ...], has_alive: bool) -> Callable[..., tuple[()]]:
        if not lanes and not has_alive and _for_callback(self.handle, self.form, self.ring.layout, self.operand_tree):
            return self._prepare_simple()
        num_buffers = self.ring.layout.num_arrays
        split = lane_splitter(lanes, has_alive)

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, rest = split(arrays)
            operands = self.layout.unpack_numpy(rest[:-num_buffers])
            count = self.ring.rows if self.full else operands.pop()
            rows = [buffer[(slice(None),) * len(lanes) + (slice(self.ring.rows),)] for buffer in rest[-num_buffers:]]
            logs = self.form.rows(self.ring.layout.unpack_numpy(rows), count, len(lanes))
            self.handle(Delivery(lanes, alive, self.operand_tree.unflatten(operands), logs))
            return ()

        return run

    def _prepare_simple(self) -> Callable[..., tuple[()]]:
        names, axes, dtypes = self.form.names, self.form.axes, tuple(map(np.dtype, self.ring.layout.dtypes))
        one_dtype = dtypes[0] if len(set(dtypes)) == 1 else None
        callback, rows = self.handle.callback, self.ring.rows  # type: ignore[attr-defined]
        stacked, full_counts = frozenset(names), dict.fromkeys(names, rows)

        def run(*arrays: np.ndarray) -> tuple[()]:
            count = rows if self.full else int(arrays[0])
            words = arrays[-1][:count].reshape(count, len(dtypes))
            if one_dtype is not None:
                columns: Any = words.view(one_dtype).T
            else:
                columns = [column.view(dtype) for column, dtype in zip(words.T, dtypes, strict=True)]
            steps = {axis: dict.fromkeys(names, columns[i]) for i, axis in enumerate(axes, len(names))}
            counts = full_counts.copy() if self.full else dict.fromkeys(names, count)
            # The columns of the steps follow those of the values.
            callback(logdict._make(zip(names, columns), steps, counts, stacked, {}))  # noqa: B905
            return ()

        return run


# --- the device's side -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Stream:
    """Delivers the records of one mark to a handle, with the operands of its receiver."""

    handle: Callable[[Delivery], None]
    operands: Any
    form: Form
    alive: Alive
    ordered: bool

    def send_one(self, leaves: Sequence[Array], due: Array | None, token: Array | None) -> Array | None:
        """Send a record; returns the next token."""
        operands, tree = jax.tree.flatten(self.operands)
        arrays, layout = pack_leaves([*operands, *leaves], len(operands))
        after = self._deliver(RecordTarget(self.handle, self.form, layout, tree), arrays, due, token)
        return after[0] if after else None

    def send_rows(self, ring: RingStore, count: Array | None, buffers: Sequence[Array], due: Array) -> None:
        """Send a buffer with ``count`` rows in use, or None if all are."""
        operands, tree = jax.tree.flatten(self.operands)
        arrays, layout = pack_leaves([*operands, *([] if count is None else [count])], len(operands))
        target = RowsTarget(self.handle, self.form, ring, layout, tree, full=count is None)
        self._deliver(target, [*arrays, *map(host_form, buffers)], due)

    def _deliver(
        self, target: Any, arrays: Sequence[Array], due: Array | None, token: Array | None = None
    ) -> list[Array]:
        alive = self.alive if due is None else due if self.alive is True else self.alive & due
        return deliver(target, arrays, token=token, alive=alive, masked=due is not None, ordered=self.ordered)


@dataclasses.dataclass(frozen=True)
class BatchStore:
    """A buffer of ``rows`` records that is sent when it is full."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]
    packed: int
    in_lanes: bool = False  # the first leaf says which lanes made the record

    @functools.cached_property
    def _ring(self) -> RingStore:
        return RingStore(self.rows, self.leaves, self.steps, packed=self.packed)

    def init(self) -> Any:
        return self._ring.init()

    def add(self, state: Any, leaves: Sequence[Array], due: Array | None, stream: Stream) -> Any:
        number = len(self.leaves)
        count, buffers = self._ring.add(state, leaves[:number], leaves[number:], due)
        full = count == self.rows
        stream.send_rows(self._ring, None, buffers, full)
        return lax.select(full, np.int32(0), count), buffers

    def flush(self, state: Any, stream: Stream) -> None:
        """Send what is left."""
        count, buffers = state
        stream.send_rows(self._ring, count, buffers, count > 0)
