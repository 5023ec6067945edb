"""What `init` is told about a run: plain values, and arrays that may be traced and differ from lane to lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lox.loggers._errors import LoggerOptionError


class ConfigTemplate:
    """A config with gaps where its arrays were: they travel to the host and are filled in for each lane."""

    def __init__(self, owner: str, config: Mapping[str, Any] | None) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise LoggerOptionError(f"{owner}: config must map names to values; got {type(config).__name__}")
        if wrong := [name for name in config or {} if not isinstance(name, str)]:
            raise LoggerOptionError(f"{owner}: the names in a config are str; got {wrong[0]!r}")
        try:
            leaves, self._tree = jax.tree_util.tree_flatten(dict(config or {}))
        except ValueError as error:  # keys of different types, say
            raise LoggerOptionError(f"{owner}: config holds a mapping that is no pytree: {error}") from error
        places = dict(enumerate(leaves))
        # What is numpy's stays on the host, where 64 bits, text and dates stay what they are. Under `vmap`, what
        # differs between the lanes is JAX's.
        self.arrays = {place: leaf for place, leaf in places.items() if isinstance(leaf, jax.Array)}
        self._constants = {place: _own(leaf) for place, leaf in places.items() if place not in self.arrays}

    def fill(self, arrays: Mapping[int, np.ndarray], lane: tuple[int, ...]) -> dict[str, Any]:
        """The config of one lane, with the arrays as they reached the host."""
        leaves = self._constants | {place: np.asarray(array[lane]) for place, array in arrays.items()}
        config: dict[str, Any] = self._tree.unflatten([leaves[place] for place in range(len(leaves))])
        return config


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
