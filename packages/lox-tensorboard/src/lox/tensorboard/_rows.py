"""From columns to rows: which values belong to one event.

Values with equal steps along all axes share a row, whatever their keys. The n-th record of a step shares a row with the n-th
record of that step under the other keys. Rows are in the order of their steps or, if the steps of some key do not increase,
in the order in which they were logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import lox
from lox.loggers import RecordError
from lox.loggers.backend import merge_labels
from lox.loggers.kinds import Column

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]


Numbers = npt.NDArray[np.intp] | slice
"""Row or record numbers; a slice if they are all of them, so that nothing is copied."""

EVERY = slice(None)


class Track(NamedTuple):
    """Columns that have values in the same rows. Their record i is in row `rows[i]`."""

    rows: Numbers
    columns: list[Column]


class EventRows(NamedTuple):
    """Rows with the same step axes, and the columns that fill them."""

    steps: Ints
    """TensorBoard's step of each row."""
    tracks: list[Track]
    counted: bool
    """Whether the keys have no steps, so that records are counted instead."""
    main: bool
    """Whether the steps are along the first of the chosen axes, by which a run is resumed."""

    def tags(self) -> Iterator[str]:
        return (column.name for track in self.tracks for column in track.columns)


def merge(
    logs: lox.logdict, columns: Sequence[Column], step_axes: Sequence[str], counted: Mapping[str, int]
) -> list[EventRows]:
    """The rows of one `write`.

    Args:
      step_axes: the first of them that a key has is TensorBoard's step; if it has none of them, the only axis that it has.
      counted: where the count of records starts, for keys without steps.
    """
    by_axes: dict[tuple[str, ...], list[tuple[Ints, list[Column]]]] = {}
    for key, mine in _alike(logs, columns, counted).items():
        axes = tuple(axis for axis, _ in key.steps)
        labels = _labels(logs, mine[0].key, axes, step_axes) if axes else key.counts()
        if len(labels):
            by_axes.setdefault(axes, []).append((labels, mine))
    return [
        _merge_tracks(
            _others(axes, step_axes), tracks, counted=not axes, main=_step_of(axes, step_axes) == step_axes[0]
        )
        for axes, tracks in by_axes.items()
    ]


class _StepIdentity(NamedTuple):
    """A value that is equal for keys with values in the same rows. It is made without reading any array."""

    steps: tuple[tuple[str, int], ...]
    """Each step axis, with the id of its array, which keys that were logged together share."""
    start: int
    records: int

    def counts(self) -> Ints:
        return np.arange(self.start, self.start + self.records, dtype=np.int64)[:, None]


def _alike(
    logs: lox.logdict, columns: Sequence[Column], counted: Mapping[str, int]
) -> dict[_StepIdentity, list[Column]]:
    identities: dict[str, _StepIdentity] = {}
    alike: dict[_StepIdentity, list[Column]] = {}
    for column in columns:
        key = column.key
        if key not in identities:
            steps = tuple((axis, id(by_key[key])) for axis, by_key in logs.steps.items() if key in by_key)
            identities[key] = _StepIdentity(steps, counted.get(key, 0), len(column.values))
        alike.setdefault(identities[key], []).append(column)
    return alike


def _merge_tracks(
    other_axes: list[str], given: list[tuple[Ints, list[Column]]], counted: bool, main: bool
) -> EventRows:
    """Merges columns into rows.

    Args:
      given: columns with their labels. A label is a row of integers for each record, and the first is TensorBoard's step.
    """
    different: list[tuple[Ints, list[Column]]] = []
    for labels, columns in given:
        same = next((there for other, there in different if np.array_equal(other, labels)), None)
        if same is None:
            different.append((labels, list(columns)))
        else:
            same += columns
    merged, places = _merge([labels for labels, _ in different])
    tracks = [Track(rows, columns) for rows, (_, columns) in zip(places, different, strict=True)]
    if other_axes:
        shown = [column for _, columns in different for column in columns]
        kept = [_axis_column(axis, number, merged, shown) for number, axis in enumerate(other_axes, 1)]
        tracks.append(Track(EVERY, kept))
    return EventRows(merged[:, 0], tracks, counted, main)


def _merge(labels: list[Ints]) -> tuple[Ints, Sequence[Numbers]]:
    """The labels of all rows, and for each of the given ones the rows of its records."""
    return (labels[0], [EVERY]) if len(labels) == 1 else merge_labels(labels)


def _labels(logs: lox.logdict, key: str, axes: tuple[str, ...], step_axes: Sequence[str]) -> Ints:
    axis = _step_of(axes, step_axes)
    if axis is None:
        raise RecordError(
            f"TensorBoardLogger: {key!r} has no step axis {' or '.join(map(repr, step_axes))}; it was logged with "
            f"{', '.join(map(repr, axes))}. Pass step_axis={axes[0]!r}, or a tuple of axes; "
            "each key uses the first one that it has."
        )
    steps = _whole_numbers(np.asarray(logs.steps[axis][key]), key, axis)
    others = [np.asarray(logs.steps[other][key]).astype(np.float64) for other in _others(axes, step_axes)]
    if not others:
        return steps[:, None]
    # As bits, so that all labels are integers and a nan is equal to itself.
    return np.column_stack([steps, *(other.view(np.int64) for other in others)])


def _others(axes: tuple[str, ...], step_axes: Sequence[str]) -> list[str]:
    used = _step_of(axes, step_axes)
    return [axis for axis in axes if axis != used]


def _step_of(axes: tuple[str, ...], step_axes: Sequence[str]) -> str | None:
    """The axis of a key that is TensorBoard's step: the first of the chosen axes that it has, or its only axis."""
    return next((axis for axis in step_axes if axis in axes), axes[0] if len(axes) == 1 else None)


def _whole_numbers(steps: Array, key: str, axis: str) -> Ints:
    if steps.dtype.kind in "ib":
        return steps.astype(np.int64)
    numbers = steps if steps.dtype.kind == "u" else steps.astype(np.float64)
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64)
    wrong = np.flatnonzero((whole != numbers) | (np.sign(whole) != np.sign(numbers)))
    if len(wrong):
        raise RecordError(
            f"TensorBoardLogger: the step axis {axis!r} of {key!r} holds {numbers[wrong[0]]!s}, but TensorBoard's "
            "steps are whole numbers of 64 bits. Choose another axis with step_axis=."
        )
    return whole


def _axis_column(axis: str, number: int, merged: Ints, columns: Sequence[Column]) -> Column:
    taken = next((column for column in columns if column.name == axis), None)
    if taken is not None:
        raise RecordError(
            f"TensorBoardLogger: {axis!r} is both a step axis and the name of a value (of key {taken.key!r}). Axes "
            "other than the step are written as scalars, so rename one of the two, or skip the value "
            f"with kinds={{{axis!r}: 'skip'}}."
        )
    return Column(axis, axis, "scalar", np.ascontiguousarray(merged[:, number]).view(np.float64))
