"""Bounded storage for records: folded by reducers, or the last n of them.

A store is carried through loops and branches as a pytree of arrays. It knows nothing of keys: it stores the leaves and
the steps of records that are always made together.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._jax import compat, sharding
from lox._reduce import Reducer, Reduction, share_counts, start_counts, with_counts
from lox._storage import counts
from lox._storage.packing import MAX_PACKED_ELEMENTS
from lox._storage.words import Layout, is_small
from lox._types import Array

Aval = jax.ShapeDtypeStruct
F = TypeVar("F", bound=Callable[..., Any])


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
        """Add a record, unless ``keep`` is false."""

    def finish(self, state: Any) -> Finished: ...


def _in_their_mode(method: F) -> F:
    """Runs a method of a store in x64 mode if its types need it: perhaps only the code that logs was in that mode."""

    @functools.wraps(method)
    def run(self: Any, *args: Any) -> Any:
        with compat.mode_for(aval.dtype for aval in (*self.leaves, *self.steps)):
            return method(self, *args)

    return cast(F, run)


def start_varying(store: Store, axes: Sequence[str]) -> Any:
    """The first state of a store whose records differ between the devices along ``axes``."""
    return jax.tree.map(lambda leaf: sharding.vary_over(leaf, axes), store.init()) if axes else store.init()


def select(keep: Array | None, new: Any, old: Any) -> Any:
    if keep is None:
        return new

    def one(a: Any, b: Any) -> Array:
        alike = isinstance(a, jax.Array) and isinstance(b, jax.Array) and jax.typeof(a) == jax.typeof(b)
        # A user's reducer may return a number or another type, which jnp promotes.
        return lax.select(keep, a, b) if alike else jnp.where(keep, a, b)

    return jax.tree.map(one, new, old)


def _cast(array: Array, aval: Aval) -> Array:
    return lax.convert_element_type(array, aval.dtype)


def _start(reducer: Reducer, aval: Aval) -> Any:
    """The first state of a reducer, split between devices as the values are that it folds."""
    state = reducer.init(aval)
    if aval.sharding is None:
        return state
    # Parts with the shape of a record are split like one, so that the reducer can select between the two.
    state = jax.tree.map(lambda x: sharding.split_like(x, aval) if jnp.shape(x) == aval.shape else x, state)
    return jax.tree.map(sharding.split_like, state, jax.eval_shape(reducer.update, state, aval))


@dataclasses.dataclass(frozen=True)
class ReduceStore:
    """Folds records. Leaves of one dtype with up to ``packed`` elements are folded together, as one vector. ``wide``: there may
    be more records than 32 bits can count."""

    reduction: Reduction
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]
    every: int = 1
    packed: int = MAX_PACKED_ELEMENTS
    wide: bool = True

    def _packs(self, reducer: Reducer) -> list[list[int]]:
        """Which leaves a reducer folds together."""
        small: dict[Any, list[int]] = {}
        packs: list[list[int]] = []
        for i, aval in enumerate(self.leaves):
            if reducer.elementwise and is_small(aval.shape, self.packed) and aval.sharding is None:
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

    @_in_their_mode
    def init(self) -> Any:
        folds = [
            [_start(reducer, self._pack_aval(pack)) for pack in self._packs(reducer)]
            for _, reducer in self.reduction.reducers
        ]
        # The counter counts all records, those that an interval skips included.
        steps = [jnp.zeros(aval.shape, aval.dtype) for aval in self.steps]
        return jnp.zeros((), jnp.int32), start_counts(folds, self.wide), steps

    @_in_their_mode
    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        seen, folds, last_steps = state[0], with_counts(state[1]), state[2]
        leaves = [_cast(leaf, aval) for leaf, aval in zip(leaves, self.leaves, strict=True)]
        steps = [_cast(step, aval) for step, aval in zip(steps, self.steps, strict=True)]
        new_folds = [
            [
                reducer.update(fold, self._pack(leaves, pack))
                for fold, pack in zip(fold_list, self._packs(reducer), strict=True)
            ]
            for (_, reducer), fold_list in zip(self.reduction.reducers, folds, strict=True)
        ]
        if self.reduction.keeps_first_step:
            steps = select(seen == 0, steps, last_steps)
        due = counts.is_due(seen, self.every, keep)
        new, old = (share_counts(new_folds), steps), (share_counts(folds), last_steps)
        folds, last_steps = select(due, new, old)
        return counts.one_more(seen, keep, counts.period(self.every)), folds, last_steps

    @_in_their_mode
    def finish(self, state: Any) -> Finished:
        seen, folds, steps = state[0], with_counts(state[1]), state[2]
        by_reducer = [
            self._unpack([reducer.finish(fold) for fold in fold_list], self._packs(reducer))
            for (_, reducer), fold_list in zip(self.reduction.reducers, folds, strict=True)
        ]
        count = counts.total(seen, self.every, counts.period(self.every))
        return Finished([list(results) for results in zip(*by_reducer, strict=True)], steps, count)

    def _unpack(self, results: list[Any], packs: list[list[int]]) -> list[Any]:
        unpacked: list[Any] = [None] * len(self.leaves)
        for result, pack in zip(results, packs, strict=True):
            if len(pack) == 1:
                unpacked[pack[0]] = result
                continue
            start = 0
            for i in pack:
                shape, end = self.leaves[i].shape, start + math.prod(self.leaves[i].shape)
                unpacked[i] = jax.tree.map(lambda x, a=start, b=end, shape=shape: x[a:b].reshape(shape), result)
                start = end
        return unpacked


@dataclasses.dataclass(frozen=True)
class RingStore:
    """The last ``rows`` records, each written once, in place; leaves with up to ``packed`` elements in one buffer. Unless it
    ``wraps``, there are never more records than rows."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]
    every: int = 1
    packed: int = MAX_PACKED_ELEMENTS
    mixed: bool = True
    wraps: bool = True

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout.of([*self.leaves, *self.steps], self.packed, mixed=self.mixed)

    @property
    def period(self) -> int:
        """After so many records, their places begin again."""
        return counts.period(self.every * max(self.rows, 1))

    @_in_their_mode
    def init(self) -> Any:
        row = jax.eval_shape(lambda: self.layout.pack([empty(aval) for aval in (*self.leaves, *self.steps)]))
        # One spare row: records that are not kept are written there. That is cheaper than reading a row to write it back.
        return jnp.zeros((), jnp.int32), [
            empty(Aval((self.rows + 1, *aval.shape), aval.dtype, sharding=aval.sharding)) for aval in row
        ]

    @_in_their_mode
    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], keep: Array | None) -> Any:
        seen, buffers = state
        avals = (*self.leaves, *self.steps)
        arrays = [_cast(array, aval) for array, aval in zip((*leaves, *steps), avals, strict=True)]
        # Where a record that is due is stored; one that is not due goes elsewhere.
        place = seen if self.every == 1 else lax.div(seen, np.int32(self.every))
        if self.wraps:
            place = lax.rem(place, np.int32(max(self.rows, 1)))
        due = counts.is_due(seen, self.every, keep)
        if due is not None:
            place = lax.select(due, place, _as_int32(self.rows))
        rows = zip(buffers, self.layout.pack(arrays), strict=True)
        buffers = [lax.dynamic_update_index_in_dim(buffer, row, place, 0) for buffer, row in rows]
        seen = counts.one_more(seen, keep, self.period) if self.wraps else counts.one_of_few_more(seen, keep)
        return seen, buffers

    @_in_their_mode
    def finish(self, state: Any) -> Finished:
        seen, buffers = state
        if not self.wraps:
            arrays = self.layout.unpack([lax.slice_in_dim(buffer, 0, self.rows) for buffer in buffers])
            return Finished(arrays[: len(self.leaves)], arrays[len(self.leaves) :], counts.kept(seen, self.every))
        count, rows = counts.kept(seen, self.every), max(self.rows, 1)
        # Once the ring is full, the oldest record is the one that would be overwritten next.
        full = lax.gt(count, np.int32(rows))
        oldest = lax.select(full, lax.rem(count, np.int32(rows)), lax.full_like(count, 0))
        order = lax.rem(lax.add(lax.expand_dims(oldest, (0,)), lax.iota(np.int32, self.rows)), np.int32(rows))
        arrays = self.layout.unpack([buffer[order] for buffer in buffers])
        count = counts.total(seen, self.every, self.period)
        return Finished(arrays[: len(self.leaves)], arrays[len(self.leaves) :], count)


def _as_int32(size: Any) -> Any:
    """A number of rows, which `jax.export` need not know."""
    return np.int32(size) if isinstance(size, int) else jnp.asarray(size, jnp.int32)


def empty(aval: Aval) -> Array:
    """Zeros of a type."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        impl = compat.key_impl_name(aval.dtype)
        words = jnp.zeros_like(jax.random.key_data(jax.random.key(0, impl=impl)))
        return jnp.broadcast_to(jax.random.wrap_key_data(words, impl=impl), aval.shape)
    return sharding.zeros_split(aval.shape, aval.dtype, aval.sharding)
