"""Numbers for people: few digits."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def short(number: float) -> str:
    """At most four significant digits."""
    if isinstance(number, int) or (math.isfinite(number) and number == int(number) and abs(number) < 1e6):
        return str(int(number))
    return f"{number:.4g}"


def whole(step: float) -> str:
    """A step, in full if it is a whole number."""
    return str(int(step)) if math.isfinite(step) and step == int(step) and abs(step) < 1e15 else short(step)


def span(low: float, high: float) -> str:
    """``0 … 990``, or one step."""
    return whole(low) if low == high else f"{whole(low)} … {whole(high)}"


def mean(numbers: npt.NDArray[np.float64]) -> float:
    """The mean of finite numbers, computed without overflow; nan if there are none."""
    largest = np.abs(numbers).max(initial=0.0)
    return float((numbers / largest).mean() * largest) if largest else 0.0 if len(numbers) else math.nan


def deviation(numbers: npt.NDArray[np.float64]) -> float:
    """The standard deviation of finite numbers, computed without overflow."""
    largest = np.abs(numbers).max(initial=0.0)
    return float((numbers / largest).std() * largest) if largest else 0.0 if len(numbers) else math.nan


def spread(ends: npt.NDArray[np.float64]) -> str:
    """``0.5 ± 0.1``: mean and standard deviation of the finite numbers; a single number is shown as it is."""
    finite = ends[np.isfinite(ends)]
    if len(ends) == 1 or not len(finite):
        return short(float(ends[-1]))
    return f"{short(mean(finite))} ± {short(deviation(finite))}"
