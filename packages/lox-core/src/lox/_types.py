"""The types that core computes with, each under one name."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax

Array: TypeAlias = jax.Array
"""An array or a tracer."""

Alive: TypeAlias = jax.Array | Literal[True]
"""Whether the program really is here, for each lane; True if nothing around it can decide otherwise."""
