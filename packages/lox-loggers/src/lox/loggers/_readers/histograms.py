"""Histograms of other formats as a few statistics, because their bins differ from record to record."""

from __future__ import annotations

import numpy as np

from lox.loggers._histogram import describe_bins


def describe_histogram(counts: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """The mean, std, min, max and count of the numbers in a histogram, as far as its bins show them.

    Args:
      counts: the number of values in each bin.
      edges: the edges of the bins, one more than there are bins.
    """
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    if not counts.sum() or not np.isfinite(edges).all():
        return dict.fromkeys(("mean", "std", "min", "max"), float("nan")) | {"count": float(counts.sum())}
    return {name: float(number) for name, number in describe_bins(counts, edges[:-1], edges[1:]).items()}
