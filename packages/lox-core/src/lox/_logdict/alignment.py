"""Which records share a row: those of equal steps along all axes, under any key.

A step may occur more than once: the n-th record of a step shares a row with the n-th record of that step under the other
keys. So a row is identified by its steps (its *label*) and a number. Rows are in the order of their labels. If the labels of
some key do not rise, rows are in the order in which they first appear.

The rule is here twice, for labels of any kind (`number_labels`, `in_order`) and for arrays (`merge_labels`, `merge_steps`). Both
give the same rows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

L = TypeVar("L", bound=Hashable)
Ints = npt.NDArray[np.int64]


def number_labels(labels: Sequence[L]) -> list[tuple[L, int]]:
    """Each label with the number of equal ones before it: the rows of records that come one after the other."""
    if len(set(labels)) == len(labels):
        return [(label, 0) for label in labels]
    seen: Counter[L] = Counter()
    numbered = []
    for label in labels:
        numbered.append((label, seen[label]))
        seen[label] += 1
    return numbered


def in_order(rows: Iterable[tuple[Any, int]], labels: Iterable[Sequence[Any]]) -> list[tuple[Any, int]]:
    """Sorts rows.

    Args:
      rows: in the order in which they first appear.
      labels: the labels of each key.
    """
    rise = all(a <= b for mine in labels for a, b in itertools.pairwise(mine))
    return sorted(rows) if rise else list(rows)


def merge_labels(labels: Sequence[Ints]) -> tuple[Ints, list[npt.NDArray[np.intp]]]:
    """Returns the labels of all rows, and for each key the row of each record.

    Args:
      labels: for each key, an array with a line of integers (the label) for each record.
    """
    numbered = np.concatenate([np.column_stack([mine, _number_lines(mine)]) for mine in labels])
    merged, first, place = np.unique(numbered, axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    if not all(map(_rises, labels)):
        order = np.argsort(first)
        merged, place = merged[order], np.argsort(order)[place]
    ends = np.cumsum([len(mine) for mine in labels])
    return merged[:, :-1], np.split(place, ends[:-1])


def merge_steps(steps: Sequence[Sequence[npt.NDArray[Any]]], records: Sequence[int]) -> list[npt.NDArray[np.intp]]:
    """Returns for each key the row of each record.

    Args:
      steps: for each key, its steps along the same axes, of any dtype.
      records: for each key, the number of its records.
    """
    codes = [_codes(along_axis) for along_axis in zip(*steps, strict=True)]
    if not codes:  # no steps: the rows are numbered
        codes = [[np.zeros(number, np.int64) for number in records]]
    return merge_labels([np.column_stack(of_key) for of_key in zip(*codes, strict=True)])[1]


def _codes(columns: Sequence[npt.NDArray[Any]]) -> list[Ints]:
    """The numbers as integers in the same order. Equal numbers have equal integers, and a nan equals itself."""
    codes = np.unique(np.concatenate(columns), return_inverse=True)[1].reshape(-1)
    return np.split(codes.astype(np.int64), np.cumsum([len(column) for column in columns])[:-1])


def _number_lines(labels: Ints) -> Ints:
    _, group, sizes = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    numbers = np.empty(len(labels), np.int64)
    numbers[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return numbers


def _rises(labels: Ints) -> bool:
    """Whether no line is smaller than the one before it, compared from the left."""
    steps = np.diff(labels, axis=0)
    changed = steps != 0
    first = steps[np.arange(len(steps)), changed.argmax(axis=1)] if steps.size else steps[:, :0].sum(axis=1)
    return bool((first >= 0).all())
