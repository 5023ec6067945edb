"""The token that goes through a tapped program from one host call to the next.

Where a call waits for the one before (on the CPU and on GPUs), the host returns the token and its words mean nothing. On a TPU
the core would wait each time (``lox._storage.packing``). There the token is sent with the records, the device counts, and the
host puts the calls in order (``lox._host.order``). The words of a token:

* which execution of the program this is, a random number (``lox._host.executions``): nothing else that a program can compute
  differs between two executions;
* which device of a ``shard_map`` counts: each counts its own calls;
* the **track** of the next call, and how many calls were made on each track. Under ``vmap`` both branches of a conditional run
  and neither knows how often the other calls, so each has a track of its own. Elsewhere one track is enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._types import Array

WORD = np.uint32
_NUM_LABELS = 3  # the execution, the device and the track; the counts follow
_TRACK = 2


def first_token(tracks: int = 1) -> Array:
    """The token before the first call. It does not say yet which execution this is."""
    return jnp.zeros(_NUM_LABELS + tracks, WORD)


def labelled(token: Array, execution: Array, device: Any) -> Array:
    """A first token that says which execution this is, and which device."""
    labels = [lax.expand_dims(lax.convert_element_type(word, WORD), (0,)) for word in (execution, device)]
    return lax.concatenate([*labels, token[_TRACK:]], 0)


def following(token: Array) -> Array:
    """The token after a call."""
    is_counted = lax.iota(WORD, token.size) == token[_TRACK] + WORD(_NUM_LABELS)
    return token + is_counted.astype(WORD)


def on_track(token: Array, offset: int) -> Array:
    """The token for calls on the track so many further on; tokens of several devices or lanes too."""
    is_track = lax.broadcasted_iota(WORD, token.shape, token.ndim - 1) == WORD(_TRACK)
    return token + is_track.astype(WORD) * WORD(offset % 2**32)


class Token(NamedTuple):
    """A token as the host reads it."""

    execution: int
    device: int
    track: int
    counts: tuple[int, ...]

    @classmethod
    def of(cls, words: np.ndarray) -> Token:
        execution, device, track, *counts = words.tolist()
        return cls(execution, device, track, tuple(counts))
