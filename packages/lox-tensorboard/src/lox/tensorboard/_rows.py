"""From columns to rows: which values belong to one event.

Values of equal steps, along all axes, share a row, whichever key they were logged under; the n-th record of a step
meets the n-th record of that step under the other keys. Rows come in the order of their steps, or, where some key's
steps do not rise, in the order in which they were logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import lox
from lox.loggers import RecordError
from lox.loggers.kinds import Column

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]


class Track(NamedTuple):
    """Columns that have values in the same rows. Their record i stands in row `rows[i]`."""

    rows: npt.NDArray[np.intp]
    columns: list[Column]


class Rows(NamedTuple):
    """Rows with the same step axes, and the columns that fill them."""

    steps: Ints
    """TensorBoard's step of each row."""
    tracks: list[Track]
    counted: bool
    """The keys have no steps: theirs is a count of records."""


def merge(
    logs: lox.logdict, columns: Sequence[Column], step_axes: Sequence[str], counted: Mapping[str, int]
) -> list[Rows]:
    """The rows of one `write`.

    step_axes: the first of them that a key has is TensorBoard's step. A key without any steps counts its records
    instead, starting from `counted`.
    """
    keys = dict.fromkeys(column.key for column in columns)
    by_axes: dict[tuple[str, ...], dict[str, Ints]] = {}
    for key in keys:
        axes = tuple(axis for axis, by_key in logs.steps.items() if key in by_key)
        labels = _labels(logs, key, axes, step_axes) if axes else _counts(logs, key, columns, counted.get(key, 0))
        if len(labels):
            by_axes.setdefault(axes, {})[key] = labels
    return [_merge_keys(axes, labels, columns, step_axes) for axes, labels in by_axes.items()]


def _merge_keys(
    axes: tuple[str, ...], labels: Mapping[str, Ints], columns: Sequence[Column], step_axes: Sequence[str]
) -> Rows:
    """labels: for each key, one row of integers for each record; the first of them is TensorBoard's step."""
    alike: list[tuple[Ints, list[str]]] = []
    for key, mine in labels.items():
        same = next((keys for other, keys in alike if other is mine or np.array_equal(other, mine)), None)
        if same is None:
            alike.append((mine, [key]))
        else:
            same.append(key)
    merged, places = _merge_labels([mine for mine, _ in alike])
    tracks = [
        Track(rows, [column for column in columns if column.key in keys])
        for rows, (_, keys) in zip(places, alike, strict=True)
    ]
    kept_axes = [_axis_column(axis, number, merged, columns) for number, axis in enumerate(_others(axes, step_axes), 1)]
    if kept_axes:
        tracks.append(Track(np.arange(len(merged)), kept_axes))
    return Rows(merged[:, 0], tracks, counted=not axes)


def _merge_labels(labels: list[Ints]) -> tuple[Ints, list[npt.NDArray[np.intp]]]:
    """All different labels, and where each of the given ones is among them."""
    if len(labels) == 1:
        return labels[0], [np.arange(len(labels[0]))]
    numbered = np.concatenate([np.column_stack([mine, _occurrences(mine)]) for mine in labels])
    merged, first, place = np.unique(numbered, axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    if not all((np.diff(mine[:, 0]) >= 0).all() for mine in labels):
        order = np.argsort(first)
        merged, place = merged[order], np.argsort(order)[place]
    ends = np.cumsum([len(mine) for mine in labels])
    return merged[:, :-1], np.split(place, ends[:-1])


def _occurrences(labels: Ints) -> Ints:
    """For each record, how many before it have the same label."""
    _, group, sizes = np.unique(labels, axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(group.reshape(-1), kind="stable")
    numbers = np.empty(len(labels), np.int64)
    numbers[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return numbers


def _labels(logs: lox.logdict, key: str, axes: tuple[str, ...], step_axes: Sequence[str]) -> Ints:
    axis = next((axis for axis in step_axes if axis in axes), None)
    if axis is None:
        raise RecordError(
            f"TensorBoardLogger: {key!r} has no step axis {' or '.join(map(repr, step_axes))}; it was logged with "
            f"{', '.join(map(repr, axes))}. Say TensorBoardLogger(..., step_axis={axes[0]!r}), or a tuple of axes, "
            "of which each key uses the first that it has."
        )
    steps = _whole_numbers(np.asarray(logs.steps[axis][key]), key, axis)
    others = [np.asarray(logs.steps[other][key]).astype(np.float64) for other in _others(axes, step_axes)]
    # As bits, so that all labels are integers and a nan is equal to itself.
    return np.column_stack([steps, *(other.view(np.int64) for other in others)])


def _others(axes: tuple[str, ...], step_axes: Sequence[str]) -> list[str]:
    used = next((axis for axis in step_axes if axis in axes), None)
    return [axis for axis in axes if axis != used]


def _whole_numbers(steps: Array, key: str, axis: str) -> Ints:
    numbers = steps.astype(np.float64) if steps.dtype.kind not in "iub" else steps
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64)
    wrong = np.flatnonzero((whole != numbers) | (np.sign(whole) != np.sign(numbers)))
    if len(wrong):
        raise RecordError(
            f"TensorBoardLogger: the step axis {axis!r} of {key!r} holds {numbers[wrong[0]]!s}, but TensorBoard's "
            "steps are whole numbers of 64 bits. Choose another axis with step_axis=."
        )
    return whole


def _counts(logs: lox.logdict, key: str, columns: Sequence[Column], start: int) -> Ints:
    records = next(len(column.values) for column in columns if column.key == key)
    return np.arange(start, start + records, dtype=np.int64)[:, None]


def _axis_column(axis: str, number: int, merged: Ints, columns: Sequence[Column]) -> Column:
    taken = next((column for column in columns if column.name == axis), None)
    if taken is not None:
        raise RecordError(
            f"TensorBoardLogger: {axis!r} is both a step axis and the name of a value (of key {taken.key!r}). Other "
            "axes than the step are written as scalars of their own, so rename one of the two, or skip the value "
            f"with kinds={{{axis!r}: 'skip'}}."
        )
    return Column(axis, axis, "scalar", np.ascontiguousarray(merged[:, number]).view(np.float64))
