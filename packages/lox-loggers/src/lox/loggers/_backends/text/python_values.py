"""Arrays as plain Python values: numbers, text and lists of them.

A number of less than 64 bits gets just enough digits to distinguish it from its neighbours: 0.1, not 0.10000000149011612.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

_POWERS = np.asarray([float(f"1e{exponent}") for exponent in range(23)])  # all powers of ten that are exact
_FEW = 64  # up to this many numbers, numpy's own digits are faster


def to_python(value: Any) -> Any:
    """A value as numbers, text and lists of them; complex numbers are pairs."""
    array = np.asarray(value)
    if array.dtype.kind in "biuU" or array.dtype == np.float64:
        return array.tolist()
    if array.ndim and array.dtype == np.float32:
        return np.reshape(_shortest(array.ravel()), array.shape).tolist()
    if array.ndim:
        return [to_python(item) for item in array]
    if array.dtype.kind == "S":
        return array.item().decode(errors="replace")
    if array.dtype.kind == "c":
        return [to_python(array.real), to_python(array.imag)]
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return int(array)
    return float(str(array[()]))


def columns_to_python(columns: Sequence[np.ndarray]) -> list[list[Any]]:
    """The values of each column. The digits of all float32 columns are found together, which is much faster."""
    singles = [column for column in columns if column.ndim == 1 and column.dtype == np.float32]
    digits = iter(_shortest(np.concatenate(singles)).tolist() if singles else [])
    return [
        list(itertools.islice(digits, len(column)))
        if column.ndim == 1 and column.dtype == np.float32
        else to_python(column)
        for column in columns
    ]


def _shortest(numbers: np.ndarray) -> np.ndarray:
    """For each float32, the float64 with the fewest digits that rounds to it."""
    if len(numbers) < _FEW:
        return numbers.astype(str).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = numbers.astype(np.float64)
        exponents = np.floor(np.log10(np.abs(found)))
    # Decimals of 6 digits always have different float32s, and 9 digits always identify a float32. Zeros and numbers that
    # are not finite are already right.
    left = np.flatnonzero(np.abs(exponents) < 13)
    for precision in range(6, 10):
        places = precision - 1 - exponents[left].astype(np.intp)
        up, down = _POWERS[np.maximum(places, 0)], _POWERS[np.maximum(-places, 0)]
        rounded = np.rint(found[left] * up / down) / up * down
        same = rounded.astype(np.float32) == numbers[left]
        found[left[same]] = rounded[same]
        left = left[~same]
    beyond = np.flatnonzero((np.abs(exponents) >= 13) & np.isfinite(exponents))
    for place in [*left.tolist(), *beyond.tolist()]:
        found[place] = float(str(numbers[place]))
    return found
