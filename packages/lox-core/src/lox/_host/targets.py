"""What the host does with the records of a tap: single ones, or rows of a buffer.

All of it is prepared once, when a program is compiled. Each call then only reads the words that arrived as numbers and makes a
logdict of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from lox._host.delivery import Delivery, WholeTarget
from lox._host.parcel import Parcel
from lox._logdict import logdict
from lox._storage.stores import RingStore
from lox._storage.words import Layout, is_key


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


def _for_callback(handle: Any, form: Form, layout: Layout) -> bool:
    """Whether a plain callback gets nothing but four-byte numbers: the case that must take only a few microseconds."""
    return (
        isinstance(handle, PerRecord)
        and form.is_flat
        and (all(layout.packed) or len(layout.packed) == 1)
        and all(shape == () for shape in layout.shapes)
        and all(not is_key(dtype) and np.dtype(dtype).itemsize == 4 for dtype in layout.dtypes)
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the records that a call brings: its leaves and steps.

    Attributes:
      size: how many leaves it has.
      masked: the first of them says whether there is a record at all.
    """

    handle: Callable[[Delivery], None]
    form: Form
    size: int
    masked: bool

    def hand_on(self, lanes: tuple[int, ...], alive: np.ndarray, operands: Any, leaves: Sequence[np.ndarray]) -> None:
        if self.masked:
            alive, leaves = alive & leaves[0], leaves[1:]
            if not alive.any():
                return
        self.handle(Delivery(lanes, alive, operands, self.form.record(leaves)))


class Portion(Protocol):
    """What a call brings for some of its leaves: a ``Part``, or what a chunk of a loop has held."""

    @property
    def size(self) -> int:
        """How many leaves it has."""

    def hand_on(self, lanes: tuple[int, ...], alive: np.ndarray, operands: Any, leaves: Sequence[np.ndarray]) -> None:
        """Hand on the records that are there."""


@dataclasses.dataclass(frozen=True)
class RecordsTarget:
    """Receives single records of several marks: the receiver's operands, then the leaves of one part after the other."""

    tree: Any  # of the operands
    records: tuple[Portion, ...]

    def _places(self) -> list[tuple[Portion, int, int]]:
        """Where the leaves of each part begin and end."""
        ends = list(itertools.accumulate((part.size for part in self.records), initial=self.tree.num_leaves))
        return list(zip(self.records, ends, ends[1:], strict=False))

    def parts(self, number: int) -> list[tuple[Any, Sequence[int]]]:
        del number
        shared = range(self.tree.num_leaves)
        return [(RecordsTarget(self.tree, (part,)), [*shared, *range(a, b)]) for part, a, b in self._places()]

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[()]]:
        simple = self._prepare_simple(parcel)
        if simple is not None:
            return simple
        lanes, take_apart, places = parcel.lanes, parcel.opener(), self._places()
        unflatten, num_operands = self.tree.unflatten, self.tree.num_leaves

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, leaves = take_apart(arrays)
            operands = unflatten(leaves[:num_operands])
            for part, start, end in places:
                part.hand_on(lanes, alive, operands, leaves[start:end])
            return ()

        return run

    def _prepare_simple(self, parcel: Parcel) -> Callable[..., tuple[()]] | None:
        layout = parcel.layout
        if parcel.lanes or parcel.has_alive or parcel.token_words or self.tree.num_leaves:
            return None
        simple = [
            (_simple_record(part, [np.dtype(dtype) for dtype in layout.dtypes[start:end]]), start, end)
            for part, start, end in self._places()
            if isinstance(part, Part) and not part.masked and _for_callback(part.handle, part.form, layout)
        ]
        if len(simple) < len(self.records):
            return None
        first, *others = simple
        if others:

            def run(words: Any) -> tuple[()]:
                for hand_on, start, end in (first, *others):
                    hand_on(words[start:end])
                return ()

            return run
        # A single number is not packed: it comes as it is.
        return first[0] if all(layout.packed) else lambda value: first[0](value.reshape(1))


def _simple_record(part: Part, dtypes: list[np.dtype[Any]]) -> Callable[[Any], tuple[()]]:
    """A function of the words of a record."""
    names, axes = part.form.names, part.form.axes
    number = len(names)
    one_dtype = dtypes[0] if len(set(dtypes[:number])) == 1 else None
    callback, counts = part.handle.callback, dict.fromkeys(names, 1)  # type: ignore[attr-defined]
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

    return run


@dataclasses.dataclass(frozen=True)
class RowsTarget(WholeTarget):
    """Receives a buffer: the receiver's operands, how many rows are used (unless it is full), then the rows."""

    handle: Callable[[Delivery], None]
    form: Form
    ring: RingStore
    tree: Any  # of the operands
    full: bool

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[()]]:
        lanes, layout = parcel.lanes, self.ring.layout
        alone = not (lanes or parcel.has_alive or self.tree.num_leaves or any(parcel.layout.packed))
        if alone and _for_callback(self.handle, self.form, layout):
            return self._prepare_simple()
        take_apart, num_operands = parcel.opener(), self.tree.num_leaves
        used = (slice(None),) * len(lanes) + (slice(self.ring.rows),)

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, leaves = take_apart(arrays)
            operands, leaves = leaves[:num_operands], leaves[num_operands:]
            count = self.ring.rows if self.full else leaves.pop(0)
            logs = self.form.rows(layout.unpack_numpy([buffer[used] for buffer in leaves]), count, len(lanes))
            self.handle(Delivery(lanes, alive, self.tree.unflatten(operands), logs))
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
