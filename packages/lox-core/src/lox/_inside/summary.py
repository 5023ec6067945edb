"""A few numbers instead of a large array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Array = Any


def summarise(value: Array) -> dict[str, Array]:
    """Mean, root mean square and extremes of the finite elements, the share of zeros, and the number of nonfinite ones."""
    magnitude = jnp.abs(value) if jnp.iscomplexobj(value) else value
    x = magnitude.astype(jnp.promote_types(magnitude.dtype, jnp.float32))
    finite = jnp.isfinite(x)
    number = jnp.maximum(finite.sum(), 1).astype(x.dtype)
    kept = jnp.where(finite, x, 0)
    scale = _scale(jnp.max(jnp.abs(kept), initial=0))
    scaled = kept * scale
    nothing = jnp.where(finite.any(), 0, jnp.nan).astype(x.dtype)
    return {
        "mean": scaled.sum() / number / scale + nothing,
        "rms": jnp.sqrt((scaled * scaled).sum() / number) / scale + nothing,
        "min": jnp.min(jnp.where(finite, x, jnp.inf), initial=jnp.inf) + nothing,
        "max": jnp.max(jnp.where(finite, x, -jnp.inf), initial=-jnp.inf) + nothing,
        "zeros": (value == 0).sum() / jnp.asarray(max(value.size, 1), x.dtype),
        "nonfinite": (~finite).sum(),
    }


def _scale(largest: Array) -> Array:
    """A power of two by which values are scaled, so that their squares neither overflow nor vanish."""
    exponents = jnp.finfo(largest.dtype).maxexp
    half, most = 2.0 ** (exponents // 2), 2.0 ** (exponents * 3 // 4)
    small = jnp.where(largest < 1 / half, most, 1.0)
    return jnp.where(largest > half, 1 / most, small).astype(largest.dtype)


def can_be_summarised(value: Array) -> bool:
    return not jnp.issubdtype(value.dtype, jax.dtypes.extended)
