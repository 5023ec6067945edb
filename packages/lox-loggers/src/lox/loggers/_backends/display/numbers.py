"""Numbers for people: sparklines, and values as floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from lox._html.numbers import short as short
from lox._html.numbers import whole as whole

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(numbers: Sequence[float] | np.ndarray, width: int = 16) -> str:
    """The trend of the numbers in `width` characters, with blanks where they are not finite."""
    values = np.asarray(numbers, np.float64)
    if len(values) > width:  # each character is the mean of a group, so that nothing is skipped
        edges = np.linspace(0, len(values), width + 1).astype(int)
        values = np.asarray([_mean(values[a:b]) for a, b in itertools.pairwise(edges)])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return " " * len(values)
    values, low, high = (
        values / 2,
        float(finite.min()) / 2,
        float(finite.max()) / 2,
    )  # so that high - low cannot overflow
    span = (high - low) or 1.0
    return "".join(
        _BARS[int((value - low) / span * (len(_BARS) - 1))] if math.isfinite(value) else " " for value in values
    )


def as_float(value: object) -> float | None:
    """A scalar as a float, or the mean of an array; None for other values."""
    array = np.asarray(value)
    if array.dtype.kind in "USO" or array.size == 0:
        return None
    if array.dtype.kind == "c":
        array = np.abs(array)
    return float(np.mean(array.astype(np.float64)))


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return float(finite.mean()) if len(finite) else math.nan
