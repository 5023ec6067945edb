"""Converts numpy columns to what `run.log` takes: Python numbers and strings, histograms, tables, media."""

from __future__ import annotations

from typing import Any

import numpy as np
import wandb

from lox.loggers import Histogram
from lox.loggers.kinds import Column, KindError, decode_text, flatten
from lox.wandb._errors import BACKEND
from lox.wandb._media import MediaEncoder, make

SUPPORTED_KINDS = ("scalar", "histogram", "binned", "image", "text", "audio", "video", "table", "hparams")
_BINS = 64
_MOST_BINS = wandb.Histogram.MAX_LENGTH

Values = list[Any]


class ValueEncoder:
    def __init__(self, sample_rate: int, fps: int) -> None:
        self._media = MediaEncoder(sample_rate, fps)
        self.forget_files = self._media.forget_files

    def __call__(self, column: Column) -> dict[str, Values]:
        """The values of a column by name, one for each record; None if a record has none."""
        name, values, kind = column.name, column.values, column.kind
        if kind == "scalar":
            return {name: numbers(values)}
        if kind == "table":
            return {name: _tables(name, values)}
        if kind == "histogram":
            return _histograms(name, values)
        if kind == "binned":
            return _binned(name, values)
        if kind == "text":
            return {name: [decode_text(np.asarray(record), name, BACKEND) for record in values]}
        encode = getattr(self._media, kind)
        return {name: [encode(name, record) for record in values]}


def numbers(values: np.ndarray) -> Values:
    """Python numbers. Booleans become numbers too, because wandb draws curves only of numbers."""
    return values.astype(np.int8).tolist() if values.dtype.kind == "b" else values.tolist()


def _histograms(name: str, values: np.ndarray) -> dict[str, Values]:
    if 0 in values.shape[1:]:
        raise KindError(f"{BACKEND}: {name!r} has shape {values.shape[1:]}: a histogram needs at least one number.")
    numbers = values.reshape(len(values), -1).astype(np.float64)
    finite = np.isfinite(numbers)
    shown = [_histogram(row[kept]) if kept.any() else None for row, kept in zip(numbers, finite, strict=True)]
    if finite.all():
        return {name: shown}
    # A histogram cannot hold them. A curve of their number shows when they began.
    missing = (~finite).sum(axis=1).tolist()
    return {name: shown, f"{name}/nonfinite": [count or None for count in missing]}


def _histogram(numbers: np.ndarray) -> wandb.Histogram:
    low, high = float(numbers.min()), float(numbers.max())
    edges = np.linspace(low, high, _BINS + 1) if np.isfinite(high - low) else np.array([low, high])
    if low == high:
        edges = np.array([low - 0.5, low + 0.5])
    if not (
        edges[:-1] < edges[1:]
    ).all():  # the numbers are so close, or so large, that there are no floats between them
        edges = np.array([np.nextafter(low, -np.inf), np.nextafter(high, np.inf)])
    counts, edges = np.histogram(numbers, bins=edges)
    return wandb.Histogram(np_histogram=(counts, edges))


def _binned(name: str, values: Histogram) -> dict[str, Values]:
    columns: dict[str, Values] = {name: [_wandb_histogram(values[record]) for record in range(len(values))]}
    # What a histogram cannot hold is shown as curves.
    apart = {"below": values.below, "above": values.above, "nonfinite": values.nan + values.inf}
    for what, numbers in apart.items():
        if numbers.any():
            columns[f"{name}/{what}"] = [number or None for number in numbers.tolist()]
    return columns


def _wandb_histogram(value: Histogram) -> wandb.Histogram | None:
    counts, edges = value.filled()
    if not len(counts):
        return None
    together = -(-len(counts) // _MOST_BINS)  # how many bins are merged into one, because wandb has a limit
    starts = np.arange(0, len(counts), together)
    return wandb.Histogram(np_histogram=(np.add.reduceat(counts, starts), np.append(edges[:-1][starts], edges[-1])))


def _tables(name: str, value: Any) -> Values:
    """A table for each record. Its columns are those of a matrix, or the leaves of a mapping of vectors."""
    if isinstance(value, np.ndarray):
        return _tables_of_matrix(name, value)
    leaves = {leaf.removeprefix(f"{name}/"): column for leaf, column in flatten(name, value)}
    shapes = {leaf: column.shape[1:] for leaf, column in leaves.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) > 1 for shape in shapes.values()):
        raise KindError(f"{BACKEND}: {name!r} cannot be a table: columns are vectors of one length; got {shapes}.")
    tables = []
    for record in range(len(next(iter(leaves.values())))):
        columns = [np.atleast_1d(column[record]).tolist() for column in leaves.values()]
        rows = [list(row) for row in zip(*columns, strict=True)]
        tables.append(make(wandb.Table, name, columns=list(leaves), data=rows))
    return tables


def _tables_of_matrix(name: str, value: np.ndarray) -> Values:
    if value.ndim not in (2, 3):
        raise KindError(
            f"{BACKEND}: {name!r} cannot be a table: a record has shape {value.shape[1:]}. A table is a matrix, a "
            "vector (its one column), or a mapping of vectors."
        )
    columns = [str(number) for number in range(value.shape[2])] if value.ndim == 3 else ["value"]
    tables = value if value.ndim == 3 else value[..., None]
    return [make(wandb.Table, name, columns=columns, data=table.tolist()) for table in tables]
