"""Bounded storage for records: folded by reducers, or the last n of them.

A store is carried through loops and branches as a pytree of arrays. It knows nothing of keys: it stores the leaves and
the steps of records that are always made together.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from lox._logdict import logdict
from lox._reduce import Reducer, Reduction
from lox._words import MAX_PACKED_ELEMENTS, Layout

Array = Any
Aval = jax.ShapeDtypeStruct


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Finished:
    """What a store held: one result per leaf, the steps, how many records there were."""

    leaves: list[Any]
    steps: list[Array]
    count: Array


class Store(Protocol):
    def init(self) -> Any: ...

    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        """One more record; where ``keep`` is false, none."""

    def finish(self, state: Any) -> Finished: ...


def select(keep: Array | None, new: Any, old: Any) -> Any:
    if keep is None:
        return new
    return jax.tree.map(lambda a, b: jnp.where(keep, a, b), new, old)


def _cast(array: Array, aval: Aval) -> Array:
    return jax.lax.convert_element_type(array, aval.dtype)


@dataclasses.dataclass(frozen=True)
class ReduceStore:
    """Folds records. Small leaves of one dtype are folded together, as one vector."""

    reduction: Reduction
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]

    def _packs(self, reducer: Reducer) -> list[list[int]]:
        """Which leaves a reducer folds at once."""
        small: dict[Any, list[int]] = {}
        packs: list[list[int]] = []
        for i, aval in enumerate(self.leaves):
            if reducer.elementwise and math.prod(aval.shape) <= MAX_PACKED_ELEMENTS:
                small.setdefault(aval.dtype, []).append(i)
            else:
                packs.append([i])
        return [*small.values(), *packs]

    def _pack(self, arrays: Sequence[Array], pack: list[int]) -> Array:
        if len(pack) == 1:
            return arrays[pack[0]]
        return jnp.concatenate([arrays[i].reshape(-1) for i in pack])

    def _pack_aval(self, pack: list[int]) -> Aval:
        if len(pack) == 1:
            return self.leaves[pack[0]]
        return Aval((sum(math.prod(self.leaves[i].shape) for i in pack),), self.leaves[pack[0]].dtype)

    def init(self) -> Any:
        folds = [
            [reducer.init(self._pack_aval(pack)) for pack in self._packs(reducer)]
            for _, reducer in self.reduction.reducers
        ]
        return jnp.zeros((), jnp.int32), folds, [jnp.zeros(aval.shape, aval.dtype) for aval in self.steps]

    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        count, folds, last_steps = state
        leaves = [_cast(leaf, aval) for leaf, aval in zip(leaves, self.leaves, strict=True)]
        steps = [_cast(step, aval) for step, aval in zip(steps, self.steps, strict=True)]
        new_folds = [
            [reducer.update(fold, self._pack(leaves, pack)) for fold, pack in zip(fold_list, self._packs(reducer), strict=True)]
            for (_, reducer), fold_list in zip(self.reduction.reducers, folds, strict=True)
        ]
        if self.reduction.keeps_first_step:
            steps = select(count == 0, steps, last_steps)
        return select(keep, (count + 1, new_folds, steps), state)

    def finish(self, state: Any) -> Finished:
        count, folds, steps = state
        by_reducer = [
            self._unpack([reducer.finish(fold) for fold in fold_list], self._packs(reducer))
            for (_, reducer), fold_list in zip(self.reduction.reducers, folds, strict=True)
        ]
        return Finished([list(results) for results in zip(*by_reducer, strict=True)], steps, count)

    def _unpack(self, results: list[Any], packs: list[list[int]]) -> list[Any]:
        unpacked: list[Any] = [None] * len(self.leaves)
        for result, pack in zip(results, packs, strict=True):
            if len(pack) == 1:
                unpacked[pack[0]] = result
                continue
            start = 0
            for i in pack:
                size = math.prod(self.leaves[i].shape)
                unpacked[i] = result[start : start + size].reshape(self.leaves[i].shape)
                start += size
        return unpacked


@dataclasses.dataclass(frozen=True)
class RingStore:
    """The last ``rows`` records, each written once, in place."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]

    @functools.cached_property
    def _layout(self) -> Layout:
        return Layout.of([*self.leaves, *self.steps])

    def init(self) -> Any:
        row = jax.eval_shape(
            lambda: self._layout.pack([_empty(aval) for aval in (*self.leaves, *self.steps)])
        )
        # At least one row, so that there is something to write to in a loop of no iterations.
        rows = max(self.rows, 1)
        return jnp.zeros((), jnp.int32), [_empty(Aval((rows, *aval.shape), aval.dtype)) for aval in row]

    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        count, buffers = state
        avals = (*self.leaves, *self.steps)
        arrays = [_cast(array, aval) for array, aval in zip((*leaves, *steps), avals, strict=True)]
        place = jnp.remainder(count, max(self.rows, 1))
        buffers = [_write(buffer, row, place, keep) for buffer, row in zip(buffers, self._layout.pack(arrays), strict=True)]
        return count + (1 if keep is None else keep.astype(jnp.int32)), buffers

    def unpack(self, buffers: list[Array]) -> list[Array]:
        """The columns of leaves and steps that the buffers hold."""
        return self._layout.unpack(buffers)

    def finish(self, state: Any) -> Finished:
        count, buffers = state
        # Once the ring is full, the oldest record is the one that would be overwritten next.
        rows = max(self.rows, 1)
        oldest = jnp.where(count > rows, jnp.remainder(count, rows), 0)
        order = jnp.remainder(oldest + jnp.arange(self.rows, dtype=jnp.int32), rows)
        arrays = self.unpack([buffer[order] for buffer in buffers])
        return Finished(arrays[: len(self.leaves)], arrays[len(self.leaves) :], count)


def _empty(aval: Aval) -> Array:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        zero = jax.random.wrap_key_data(jnp.zeros_like(jax.random.key_data(jax.random.key(0))))
        return jnp.broadcast_to(zero, aval.shape)
    return jnp.zeros(aval.shape, aval.dtype)


def _write(buffer: Array, row: Array, place: Array, keep: Array | None) -> Array:
    if keep is not None:
        row = jnp.where(keep, row, jax.lax.dynamic_index_in_dim(buffer, place, keepdims=False))
    return jax.lax.dynamic_update_index_in_dim(buffer, row, place, 0)


@dataclasses.dataclass(frozen=True)
class Every:
    """Records 0, n, 2n, ... of another store."""

    store: Any
    n: int

    def init(self) -> Any:
        return jnp.zeros((), jnp.int32), self.store.init()

    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        seen, inner = state
        due = seen == 0
        inner = self.store.add(inner, leaves, steps, due if keep is None else keep & due)
        # Counted modulo n, so that it never overflows.
        return select(keep, jnp.where(seen + 1 == self.n, 0, seen + 1), seen), inner

    def finish(self, state: Any) -> Finished:
        return self.store.finish(state[1])


def fold_logdict(logs: logdict, reduction: Reduction) -> logdict:
    """Reduce finished logs by running the stores over their rows."""
    values: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    counts: dict[str, Any] = {}
    for key in logs:
        leaves, tree = jax.tree.flatten(logs[key])
        axes = logs._steps_of(key)
        rows = [jnp.asarray(x) if key in logs.stacked else jnp.asarray(x)[None] for x in (*leaves, *axes.values())]
        avals = [Aval(row.shape[1:], row.dtype) for row in rows]
        store = ReduceStore(reduction, tuple(avals[: len(leaves)]), tuple(avals[len(leaves) :]))
        used = jnp.minimum(logs.counts[key], len(rows[0])) if key in logs._bounds else None
        done = store.finish(_fold(store, rows, used))
        values[key] = reduction.label([tree.unflatten(list(part)) for part in zip(*done.leaves, strict=True)], logs[key])
        for axis, step in zip(axes, done.steps, strict=True):
            steps.setdefault(axis, {})[key] = step
        counts[key] = logs.counts[key]
    return logdict(values, steps, counts)


def _fold(store: ReduceStore, rows: list[Array], used: Array | None) -> Any:
    def step(state: Any, numbered: Any) -> Any:
        i, row = numbered
        keep = None if used is None else i < used
        return store.add(state, row[: len(store.leaves)], row[len(store.leaves) :], keep), None

    return jax.lax.scan(step, store.init(), (jnp.arange(len(rows[0])), rows))[0]

