"""Lanes of a ``vmap`` that is inside the transformation.

Under ``vmap``, a ``while_loop`` runs until its last lane is done. Its predicate stays in the program, with one entry for each
lane, and every value in the loop has the same leading axes. So a record in such a loop has a condition with the shape of
the lanes: which of them are still in the loop.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._jax import compat, sharding
from lox._types import Array

Lanes = tuple[int, ...]


def of_predicate(cond_jaxpr: Any) -> Lanes:
    """The sizes of the lane axes of a loop; () if one predicate holds for all lanes."""
    body, _ = compat.open_jaxpr(cond_jaxpr)
    return tuple(body.outvars[0].aval.shape)


def longest(several: Any) -> Lanes:
    """The most lane axes that any of these has. They lead, so shorter ones are prefixes of the longest."""
    return max(several, key=len, default=())


def both(first: Array | None, second: Array | None) -> Array | None:
    """Both conditions hold. Either can have more lane axes than the other, and None is always true."""
    if first is None or second is None:
        return second if first is None else first
    rank = max(np.ndim(first), np.ndim(second))
    return _with_rank(first, rank) & _with_rank(second, rank)


def _with_rank(condition: Array, rank: int) -> Array:
    return lax.expand_dims(condition, tuple(range(np.ndim(condition), rank)))


def all_of(sizes: Lanes) -> Array:
    """A condition that is true in all lanes."""
    return jnp.ones((1,) * len(sizes), bool)


def spread(array: Array, shape: tuple[int, ...]) -> Array:
    """Broadcasts an array that has only some of the lane axes, or none, to all of them."""
    return lax.broadcast_in_dim(_with_rank(array, len(shape)), shape, tuple(range(len(shape))))


def choose(going: Array, new: list[Array], old: list[Array]) -> list[Array]:
    """The new values in lanes that are still in the loop, the old ones in the others."""

    def one(a: Array, b: Array) -> Array:
        here = spread(going, np.shape(a))
        if sharding.is_split(a):
            here = jax.sharding.reshard(here, jax.typeof(a).sharding)
        return lax.select(here, a, b)

    return [one(a, b) for a, b in zip(new, old, strict=True)]
