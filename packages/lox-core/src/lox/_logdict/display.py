"""How values look when a logdict is printed: small ones in full, large ones and tracers summarised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

# Up to this many elements an array is shown in full.
SHOWN_ELEMENTS = 32


def show_mapping(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key!r}: {show(value)}" for key, value in values.items()) + "}"


def show(value: Any) -> str:
    if isinstance(value, dict):
        return show_mapping(value)
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(show, value)) + ")"
    if isinstance(value, jax.core.Tracer):
        return short_type(value.dtype, value.shape)
    if isinstance(value, jax.Array) and (
        jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) or not value.is_fully_addressable
    ):
        return short_type(value.dtype, value.shape)
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return _show_array(np.asarray(value))
    return repr(value)


def _show_array(array: np.ndarray) -> str:
    if array.ndim == 0:
        return str(array[()])
    if array.size <= SHOWN_ELEMENTS:
        text = np.array2string(array, separator=", ", max_line_width=10**6, threshold=SHOWN_ELEMENTS + 1)
        return text.replace("\n", "")
    return short_type(array.dtype, array.shape) + _range(array)


def short_type(dtype: Any, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _range(array: np.ndarray) -> str:
    """``(0.1 to 7.5)``, without nans; empty for complex numbers, which have no order."""
    if array.dtype.kind == "c":
        return ""
    finite = array[~np.isnan(array)] if array.dtype.kind not in "biu" else array
    return f"({finite.min()!s} to {finite.max()!s})" if finite.size else "(nan)"
