"""Histograms of other formats as numbers that every record has: their bins differ from one to the next."""

from __future__ import annotations

import numpy as np

from lox.loggers._histogram import describe_bins


def describe_histogram(counts: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """What a histogram says of the numbers in it, as far as its bins tell. edges: one more than counts."""
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    if not counts.sum() or not np.isfinite(edges).all():
        return dict.fromkeys(("mean", "std", "min", "max"), float("nan")) | {"count": float(counts.sum())}
    return {name: float(number) for name, number in describe_bins(counts, edges[:-1], edges[1:]).items()}
