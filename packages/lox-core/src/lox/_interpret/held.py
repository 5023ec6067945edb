"""What a chunk of a scan holds, carried to its end as vectors of words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lox._interpret.pacing import Pace
from lox._jax import compat, sharding
from lox._storage.stores import Aval
from lox._storage.words import Layout
from lox._types import Array

Step = Callable[[Any, Any], Any]


class Held:
    """Packs the records that stores hold while a chunk runs, and the counters. Each carried value would be a kernel of its own.

    Args:
      state: of all stores of the loop.
      pace: which of them hold single records.
      limit: leaves of up to so many elements are packed.
    """

    def __init__(self, state: dict[int, Any], pace: Pace, limit: int) -> None:
        calls = pace.calls if pace.clocks else ()
        num_axes = {number: call.num_axes for call in calls for number in call.stores}
        if calls:
            # Counters and clocks: of the devices of a shard_map, each has one.
            num_axes |= {n: value.ndim for n, value in state.items() if getattr(value, "dtype", None) == jnp.int32}
        self._numbers = num_axes.keys()
        by_axes: dict[int, dict[int, Any]] = {}
        for number, axes in num_axes.items():
            by_axes.setdefault(axes, {})[number] = state[number]
        self._packs = [_Pack(records, axes, limit) for axes, records in by_axes.items()]

    def pack(self, carry: Any) -> Any:
        """What the loop carries, and the state, as the chunks carry it."""
        carried, state = carry
        return carried, *self._pack(state)

    def unpack(self, carry: Any) -> Any:
        carried, others, words = carry
        return carried, self._unpack(others, words)

    def step(self, body: Step) -> Step:
        def run(carry: Any, inputs: Any) -> Any:
            after, ys = body(self.unpack(carry), inputs)
            return self.pack(after), ys

        return run

    def _pack(self, state: dict[int, Any]) -> tuple[dict[int, Any], list[Any]]:
        others = {number: state[number] for number in state if number not in self._numbers}
        return others, [pack.words(state) for pack in self._packs]

    def _unpack(self, others: dict[int, Any], words: list[Any]) -> dict[int, Any]:
        records = {}
        for pack, of_pack in zip(self._packs, words, strict=True):
            records.update(pack.records(of_pack))
        return {**others, **records}


class _Pack:
    """Records that are packed together: they have the same mesh axes in front, along which devices keep their own words."""

    def __init__(self, records: dict[int, Any], num_axes: int, limit: int) -> None:
        self._numbers, self._num_axes = list(records), num_axes
        leaves, self._tree = jax.tree.flatten(records)
        local = [Aval(leaf.shape[num_axes:], leaf.dtype) for leaf in leaves]
        apart = {id(one) for one, leaf in zip(local, leaves, strict=True) if sharding.is_split(leaf)}
        self._layout = Layout.of(local, limit, apart)

    def words(self, state: dict[int, Any]) -> list[Array]:
        pack: Any = self._layout.pack
        for _ in range(self._num_axes):
            pack = jax.vmap(pack)
        with compat.mode_for(self._layout.dtypes):
            return pack(self._tree.flatten_up_to({number: state[number] for number in self._numbers}))

    def records(self, words: list[Array]) -> dict[int, Any]:
        with compat.mode_for(self._layout.dtypes):
            return self._tree.unflatten(self._layout.unpack(words))
