"""The center of several runs, and its uncertainty.

All three centers are weighted sums of the sorted values. So is the center of a bootstrap resample, with weights that depend
only on how often each value was drawn. One matrix product therefore gives the centers of all resamples at all steps.

The interval is the percentile bootstrap over runs, and the interquartile mean the trimmed mean, as in `rliable`
(Agarwal et al., 2021).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CENTERS = ("mean", "median", "iqm")
BANDS = ("std", "ci95", "minmax", "quartiles")

_RESAMPLES = 2000
_SEED = 0  # fixed, so that the same runs always have the same interval
_BLOCK = 1 << 23  # numbers in memory at once


def summarize(values: Array, there: npt.NDArray[np.bool_], center: str, band: str) -> tuple[Array, Array, Array]:
    """The center of each column and the ends of its band, over the rows that are there. If one of them is nan, all three are."""
    middle, low, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    numbers = there.sum(0)
    for number in np.unique(numbers[numbers > 0]):
        columns = np.flatnonzero(numbers == number)
        present = np.where(there[:, columns], values[:, columns], np.inf)
        known = ~np.isnan(present).any(0)
        columns, ordered = columns[known], np.sort(present[:, known], axis=0)[:number]
        middle[columns] = _weighted(_weights(center, int(number))[None], ordered)[0]
        low[columns], high[columns] = _ends(ordered, middle[columns], center, band)
    return middle, low, high


def _ends(ordered: Array, middle: Array, center: str, band: str) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):  # values that are not finite give results that are not finite
        if band == "std":
            deviation = ordered.std(0)
            return middle - deviation, middle + deviation
        if band == "minmax":
            return ordered[0], ordered[-1]
        if band == "quartiles":
            low, high = np.quantile(ordered, [0.25, 0.75], axis=0)
            return low, high
    return _interval(ordered, center)


def _interval(ordered: Array, center: str) -> tuple[Array, Array]:
    """The 95 % percentile bootstrap interval."""
    number, steps = ordered.shape
    weights = _resampled_weights(center, number)
    ends = np.empty((2, steps))
    block = max(1, _BLOCK // _RESAMPLES)
    for start in range(0, steps, block):
        part = slice(start, start + block)
        with np.errstate(all="ignore"):
            ends[:, part] = np.quantile(_weighted(weights, ordered[:, part]), [0.025, 0.975], axis=0)
    return ends[0], ends[1]


def _weights(center: str, number: int) -> Array:
    """The weight of each of the sorted values."""
    ranks = np.arange(number)
    if center == "mean":
        kept = ranks >= 0
    elif center == "median":
        kept = (ranks >= (number - 1) // 2) & (ranks <= number // 2)
    else:
        cut = int(0.25 * number)
        kept = (ranks >= cut) & (ranks < number - cut)
    return kept / kept.sum()


@lru_cache(maxsize=64)
def _resampled_weights(center: str, number: int) -> Array:
    """The same weights for each resample. A value that was drawn twice takes two ranks."""
    draws = np.random.default_rng(_SEED).multinomial(number, np.full(number, 1 / number), size=_RESAMPLES)
    ends = np.concatenate([np.zeros((_RESAMPLES, 1), int), np.cumsum(draws, axis=1)], axis=1)
    up_to = np.concatenate([[0.0], np.cumsum(_weights(center, number))])
    return np.diff(up_to[ends], axis=1)


def _weighted(weights: Array, ordered: Array) -> Array:
    """`weights @ ordered`, where a weight of zero also drops infinite values."""
    finite = np.isfinite(ordered)
    with np.errstate(all="ignore"):
        # Scaled, so that a sum of large numbers does not overflow if their mean does not.
        scale = np.maximum(np.abs(np.where(finite, ordered, 0)).max(0, initial=0), np.finfo(np.float64).tiny)
        total = (weights @ (np.where(finite, ordered, 0) / scale)) * scale
        if finite.all():
            return total
        counted = weights > 1e-12
        up = counted @ (ordered == np.inf) > 0
        down = counted @ (ordered == -np.inf) > 0
        total = np.where(up, np.inf, total)
        return np.where(down, np.where(up, np.nan, -np.inf), total)


def smooth(values: Array, weight: float) -> Array:
    """TensorBoard's exponential moving average, which begins at the first value. Values that are not finite are skipped."""
    smoothed = values.copy()
    total, norm = 0.0, 0.0
    for place, value in enumerate(values.tolist()):
        if np.isfinite(value):
            total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
            smoothed[place] = total / norm
    return smoothed
