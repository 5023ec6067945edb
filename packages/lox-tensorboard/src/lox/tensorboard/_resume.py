"""Resuming a run: earlier values from the resumed step on are purged, so that nothing is there twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from lox.tensorboard._files import Shown, event_files, purge
from lox.tensorboard._rows import EventRows, Track


class Past:
    """What a run had when it was resumed.

    If the run was closed, values at steps that are already there are not written again. If not, its process died, and
    training continues from an earlier step: the smallest one of the first write. TensorBoard then has to drop everything from
    that step on, because the resumed run computes it again. Keys without steps, or with steps of another axis, have no place
    in that order, so their earlier values are written again. The files mark these keys.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = event_files(folder)
        there = Shown(self._files, lambda event, value: None)
        self._steps = {tag: np.array([step for step, _ in values], np.int64) for tag, values in there.values.items()}
        self._was_closed = there.was_closed
        self.latest = there.latest
        self._resumed_at: int | None = None
        self._aside = there.aside  # the tags of keys without a place in that order
        self._keep(self._steps)

    def count(self, tags: Collection[str]) -> int:
        """How many records a key without steps has, according to its tags."""
        return max((int(self._steps[tag].max()) + 1 for tag in tags if len(self._steps.get(tag, ()))), default=0)

    def continue_with(self, batch: list[EventRows], wall_time: float) -> tuple[list[Event], list[EventRows]]:
        """The events to write before these rows, and the rows that are not written yet."""
        events: list[Event] = []
        aside = {tag for rows in batch if not rows.main for tag in rows.tags()}
        if self._resumed_at is not None and (returned := aside - self._aside):
            events += _values_from(self._resumed_at, returned, self._files)
            self._keep({**self._kept, **{tag: self._steps[tag] for tag in returned if tag in self._steps}})
        self._aside |= aside
        main = [rows for rows in batch if rows.main]
        if self._resumed_at is None and main and not self._was_closed:
            self._resumed_at = min(int(rows.steps.min()) for rows in main)
            events += self._purge(self._resumed_at, wall_time)
        return events, [rows if rows.counted else self._unwritten(rows) for rows in batch]

    def _keep(self, steps: dict[str, npt.NDArray[np.int64]]) -> None:
        """Notes the steps that need not be written again."""
        self._kept = {tag: there for tag, there in steps.items() if len(there)}
        self._latest = {tag: int(there.max()) for tag, there in self._kept.items()}

    def _purge(self, start: int, wall_time: float) -> list[Event]:
        steps = self._steps.items()
        self._keep({tag: there if tag in self._aside else there[there < start] for tag, there in steps})
        if not any((there >= start).any() for _, there in steps):
            return []
        # Including our own file, because such keys may have been written since the run was resumed.
        return [*purge(start, wall_time), *_values_from(start, self._aside, event_files(self._folder))]

    def _unwritten(self, rows: EventRows) -> EventRows:
        """The rows without the values that the run already has: all earlier ones, or those before the purge."""
        tracks = [part for track in rows.tracks for part in self._unwritten_parts(track, rows.steps)]
        return rows._replace(tracks=tracks)

    def _unwritten_parts(self, track: Track, all_steps: npt.NDArray[np.int64]) -> Iterator[Track]:
        steps = all_steps[track.rows]
        untouched = []
        for column in track.columns:
            new = self._new(column.name, steps)
            if new.all():
                untouched.append(column)
            else:
                rows = np.arange(len(all_steps))[track.rows][new]
                yield Track(rows, [column._replace(values=column.values[new])])
        if untouched:
            yield Track(track.rows, untouched)

    def _new(self, tag: str, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        # Nearly all steps come after the existing ones, and then there is nothing to compare.
        if tag not in self._latest or steps.min() > self._latest[tag]:
            return np.ones(len(steps), bool)
        return ~np.isin(steps, self._kept[tag])


def _values_from(start: int, tags: Collection[str], paths: Iterable[Path]) -> list[Event]:
    """The values of these tags that a purge from `start` on hides."""

    def take(event: Event, value: Summary.Value) -> Event | None:
        if value.tag not in tags or event.step < start:
            return None
        return Event(wall_time=event.wall_time, step=event.step, summary=Summary(value=[value]))

    there = Shown(paths, take).values
    return [event for tag in sorted(tags) for _, event in there.get(tag, ()) if event is not None]
