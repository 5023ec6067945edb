"""Records as numbers that can be drawn and averaged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lox
from lox._logdict.summary import summarized
from lox.loggers import _tree

Array = npt.NDArray[np.float64]


class NumericColumn(NamedTuple):
    label: str
    """The key, or `key/leaf`."""
    values: Array
    """One number for each record: for an array, its mean."""
    shape: tuple[int, ...]

    @property
    def title(self) -> str:
        return f"{self.label} (mean of {'x'.join(map(str, self.shape))})" if self.shape else self.label


def numeric_columns(logs: lox.logdict, key: str) -> Iterator[NumericColumn]:
    """The leaves of a key that hold numbers, without text and PRNG keys."""
    value = logs[key]
    leaves = [((), value)] if isinstance(value, np.ndarray) else _tree.leaves_of(summarized(value))
    for path, leaf in leaves:
        if (numbers := as_numbers(leaf)) is not None:
            yield NumericColumn(_tree.label(key, path), numbers, leaf.shape[1:])


def as_numbers(leaf: Any) -> Array | None:
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind in "USOMm" or 0 in leaf.shape:
        return None
    if dtype.kind == "V" and dtype.type is np.void:
        return None
    rows = np.abs(leaf) if dtype.kind == "c" else np.asarray(leaf)
    numbers = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        return numbers if numbers.ndim == 1 else numbers.reshape(len(numbers), -1).mean(1)


def axes_of(logs: lox.logdict, key: str) -> list[str]:
    return [axis for axis, by_key in logs.steps.items() if key in by_key]
