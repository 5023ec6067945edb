"""Leaves of logs as numpy, and a memo that maps each array once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def to_numpy(leaf: Any) -> Any:
    """The array on the host. PRNG keys become their words."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def to_plain(leaf: Any) -> Any:
    """A Python number, or an array if there are several numbers."""
    array = to_numpy(leaf)
    return array.item() if array.ndim == 0 else array


class Memo:
    """Maps each array once, so keys that shared a step array still share it."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[Any, Any]] = {}

    def __call__(self, label: Any, array: Any, compute: Callable[[], Any]) -> Any:
        found = self._seen.get((label, id(array)))
        if found is None:
            # The array is kept alive with its result, so its id is not reused meanwhile.
            found = self._seen[label, id(array)] = (array, compute())
        return found[1]
