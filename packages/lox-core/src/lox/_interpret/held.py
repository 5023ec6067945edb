"""The first records of a chunk of a scan, carried to its end as one vector of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import compat
from lox._storage.packing import MAX_PACKED_ELEMENTS
from lox._storage.words import Layout
from lox._types import Array

Step = Callable[[Any, Any], Any]


class Held:
    """Packs the records of some stores while a chunk runs. Each carried value would be a kernel of its own.

    Args:
      state: of all stores of the loop.
      numbers: of the stores that hold the first record of a chunk.
    """

    def __init__(self, state: dict[int, Any], numbers: Sequence[int]) -> None:
        self._numbers = numbers
        leaves, self._tree = jax.tree.flatten({number: state[number] for number in numbers})
        self._layout = Layout.of(leaves, MAX_PACKED_ELEMENTS)

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

    def _pack(self, state: dict[int, Any]) -> tuple[dict[int, Any], list[Array]]:
        others = {number: state[number] for number in state if number not in self._numbers}
        leaves = jax.tree.leaves({number: state[number] for number in self._numbers})
        with compat.mode_for(self._layout.dtypes):
            return others, self._layout.pack(leaves)

    def _unpack(self, others: dict[int, Any], words: list[Array]) -> dict[int, Any]:
        with compat.mode_for(self._layout.dtypes):
            return {**others, **self._tree.unflatten(self._layout.unpack(words))}
