"""Leaves of logs as numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_numpy(leaf: Any) -> Any:
    """The array on the host; of PRNG keys, their words."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def to_plain(leaf: Any) -> Any:
    """A Python number, or an array where there are several."""
    array = to_numpy(leaf)
    return array.item() if array.ndim == 0 else array
