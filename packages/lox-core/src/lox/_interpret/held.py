"""The first records of a chunk of a scan, carried to its end as vectors of words."""

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
    """Packs the records of some stores while a chunk runs. Each carried value would be a kernel of its own.

    Args:
      state: of all stores of the loop.
      pace: which of them hold the first record of a chunk.
      limit: leaves of up to so many elements are packed.
    """

    def __init__(self, state: dict[int, Any], pace: Pace, limit: int) -> None:
        self._numbers = pace.stores
        by_axes: dict[int, dict[int, Any]] = {}
        for call in pace.calls:
            by_axes.setdefault(call.num_axes, {}).update({number: state[number] for number in call.stores})
        self._packs = [_Pack(records, num_axes, limit) for num_axes, records in by_axes.items()]

    def start(self, carry: Any) -> Any:
        carried, state = carry
        return carried, *self._pack(state), jnp.bool_(True)

    def step(self, body: Callable[[Any, Any, Array], Any]) -> Step:
        """``body`` also takes whether the iteration is the first of its chunk."""

        def run(carry: Any, inputs: Any) -> Any:
            carried, others, words, first = carry
            (carried, state), ys = body((carried, self._unpack(others, words)), inputs, first)
            return (carried, *self._pack(state), jnp.bool_(False)), ys

        return run

    def end(self, carry: Any) -> Any:
        carried, others, words, _ = carry
        return carried, self._unpack(others, words)

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
