"""Histograms of other formats as numbers that every record has: their bins differ from one to the next."""

from __future__ import annotations

import numpy as np


def describe(counts: np.ndarray, edges: np.ndarray) -> dict[str, float]:
    """What a histogram says of the numbers in it, as far as its bins tell. edges: one more than counts."""
    counts, edges = np.asarray(counts, np.float64), np.asarray(edges, np.float64)
    total = counts.sum()
    filled = np.flatnonzero(counts)
    if not total or not np.isfinite(edges).all():
        return dict.fromkeys(("mean", "std", "min", "max"), float("nan")) | {"count": float(total)}
    middle = (edges[:-1] + edges[1:]) / 2
    mean = (counts * middle).sum() / total
    deviation = np.sqrt(max((counts * (middle - mean) ** 2).sum() / total, 0.0))
    low, high = edges[filled[0]], edges[filled[-1] + 1]
    return {
        "mean": float(mean),
        "std": float(deviation),
        "min": float(low),
        "max": float(high),
        "count": float(total),
    }
