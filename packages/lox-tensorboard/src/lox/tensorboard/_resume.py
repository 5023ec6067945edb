"""Continuing a run: what its earlier files hold from the resumed step on is purged, and nothing is there twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lox.tensorboard._files import event_files, purge, shown
from lox.tensorboard._rows import Rows, Track


class Past:
    """What a run held when it was opened again.

    The smallest step of the first write is where the run resumes. TensorBoard is told to forget everything from
    there on. Keys without steps have no place in that order, so what they had is written again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = event_files(folder)
        there = shown(self._files, lambda event, value: None)
        self._steps = {tag: np.array([step for step, _ in values], np.int64) for tag, values in there.items()}
        self._resumed_at: int | None = None
        self._counted: set[str] = set()

    def count(self, tags: Collection[str]) -> int:
        """How many records a key without steps has, judged by its tags."""
        return max((int(self._steps[tag].max()) + 1 for tag in tags if len(self._steps.get(tag, ()))), default=0)

    def continue_with(self, batch: list[Rows], wall_time: float) -> tuple[list[Event], list[Rows]]:
        """What has to be written before these rows, and those of them that are not there already."""
        events: list[Event] = []
        counted = {tag for rows in batch if rows.counted for tag in _tags(rows)}
        if self._resumed_at is not None and (returned := counted - self._counted):
            events += _values_from(self._resumed_at, returned, self._files)
        self._counted |= counted
        stepped = [rows for rows in batch if not rows.counted]
        if self._resumed_at is None and stepped:
            self._resumed_at = min(int(rows.steps.min()) for rows in stepped)
            events += self._purged(self._resumed_at, wall_time)
        return events, [rows if rows.counted else self._unwritten(rows) for rows in batch]

    def _purged(self, start: int, wall_time: float) -> list[Event]:
        if not any((there >= start).any() for there in self._steps.values()):
            return []
        # Our own file too: such keys may have been written since the run was opened again.
        return [*purge(start, wall_time), *_values_from(start, self._counted, event_files(self._folder))]

    def _unwritten(self, rows: Rows) -> Rows:
        """Without the values at steps before the resumed one that are there already."""
        start = self._resumed_at
        if start is None or rows.steps.min() >= start:
            return rows
        return rows._replace(tracks=[self._unwritten_track(track, rows.steps, start) for track in rows.tracks])

    def _unwritten_track(self, track: Track, all_steps: npt.NDArray[np.int64], start: int) -> Track:
        steps = all_steps[track.rows]
        there = [self._steps[column.name] for column in track.columns if column.name in self._steps]
        if not there:
            return track
        new = np.flatnonzero((steps >= start) | ~np.isin(steps, np.concatenate(there)))
        columns = [column._replace(values=column.values[new]) for column in track.columns]
        return Track(np.arange(len(all_steps))[track.rows][new], columns)


def _values_from(start: int, tags: Collection[str], paths: Iterable[Path]) -> list[Event]:
    """The values of these tags that a purge from `start` on hides."""

    def take(event: Event, value: Summary.Value) -> Event | None:
        if value.tag not in tags or event.step < start:
            return None
        return Event(wall_time=event.wall_time, step=event.step, summary=Summary(value=[value]))

    there = shown(paths, take)
    return [event for tag in sorted(tags) for _, event in there.get(tag, ()) if event is not None]


def _tags(rows: Rows) -> Iterator[str]:
    return (column.name for track in rows.tracks for column in track.columns)
