"""The types that core computes with, each under one name."""

from __future__ import annotations

from typing import Literal, TypeAlias

import jax

Array: TypeAlias = jax.Array
"""An array or a tracer."""

Alive: TypeAlias = jax.Array | Literal[True]
"""Whether each lane really runs this part of the program; True if nothing around it could prevent that."""
