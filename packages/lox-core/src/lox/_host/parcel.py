"""The operands of a host call: what is sent, packed as the platform likes it, and how the host takes it apart.

This is decided where a program is lowered: only there is it certain for which platform.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from lox._jax import sharding
from lox._storage.packing import Packing
from lox._storage.words import Layout
from lox._types import Array


class Opened(NamedTuple):
    """What a call brings besides its token: which lanes are alive, and the other leaves for all lanes."""

    alive: np.ndarray
    leaves: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Parcel:
    """What is static about the arrays of a call.

    Attributes:
      lanes: sizes of the vmap axes, outermost first. They lead the arrays.
      token_words: so many leaves, the first ones, are words of the call's token.
      has_alive: the next leaf says which lanes the call is for.
      layout: of all leaves.
    """

    lanes: tuple[int, ...]
    token_words: int
    has_alive: bool
    layout: Layout

    def opener(self) -> Callable[[Sequence[np.ndarray]], Opened]:
        """A function of the arrays that arrive."""
        lanes, first = self.lanes, self.token_words
        everyone = np.ones(lanes, bool)
        everyone.setflags(write=False)

        def spread(array: np.ndarray) -> np.ndarray:
            # Arrays that do not vary over a lane axis have size 1 there: repeat them, without a copy.
            shape = array.shape
            return array if shape[: len(lanes)] == lanes else np.broadcast_to(array, lanes + shape[len(lanes) :])

        def take_apart(arrays: Sequence[np.ndarray]) -> Opened:
            leaves = self.layout.unpack_numpy(list(map(spread, arrays)) if lanes else arrays)
            alive, rest = (leaves[first], leaves[first + 1 :]) if self.has_alive else (everyone, leaves[first:])
            return Opened(alive, rest)

        return take_apart


def as_they_are(arrays: Sequence[Any], lanes: tuple[int, ...], has_alive: bool, impls: Sequence[str | None]) -> Parcel:
    """Of arrays that are not packed: eagerly there is nothing to gain from it."""
    layout = Layout.of(arrays, 0, impls=(*[None] * int(has_alive), *impls))
    return Parcel(lanes, 0, has_alive, layout)


def pack(
    packing: Packing,
    words: Sequence[Array],
    alive: Sequence[Array],
    leaves: Sequence[Array],
    *,
    lanes: tuple[int, ...],
    constants: int,
    impls: Sequence[str | None],
) -> tuple[list[Array], Parcel]:
    """The arrays to send.

    Args:
      words: those of the call's token that are sent.
      alive: which lanes the call is for, or nothing.
      constants: so many of the leaves, the first ones, are the same in every call.
    """
    in_lanes = [lax.expand_dims(word, tuple(range(len(lanes)))) for word in words]
    arrays = [*in_lanes, *alive, *leaves]
    types = [_type_in_a_lane(array, len(lanes)) for array in arrays]
    # Packed, what is the same in every call would be copied each time.
    apart = {id(aval) for aval in types[: len(alive) + constants]} if packing.beside else set()
    layout = Layout.of(types, packing.host, apart, impls=(*[None] * len([*words, *alive]), *impls))
    small = [array for array, packed in zip(arrays, layout.packed, strict=True) if packed]
    large = [array for array, packed in zip(arrays, layout.packed, strict=True) if not packed]
    parcel = Parcel(lanes, len(words), bool(alive), layout)
    return [*([_in_each_lane(layout.pack_words, small, len(lanes))] if small else []), *large], parcel


def _type_in_a_lane(array: Array, num_lanes: int) -> jax.ShapeDtypeStruct:
    split = sharding.split_of(jax.typeof(array))
    return jax.ShapeDtypeStruct(array.shape[num_lanes:], array.dtype, sharding=split)


def _in_each_lane(join: Callable[[list[Array]], Array], arrays: list[Array], num_lanes: int) -> Array:
    sizes = tuple(max(array.shape[i] for array in arrays) for i in range(num_lanes))
    for _ in range(num_lanes):
        join = jax.vmap(join)
    return join([lax.broadcast_in_dim(x, sizes + x.shape[num_lanes:], tuple(range(x.ndim))) for x in arrays])
