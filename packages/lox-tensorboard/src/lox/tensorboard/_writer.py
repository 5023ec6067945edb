"""The writer of one run: its folder, its event file, and its state between two writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

import lox
from lox.loggers import LaneWriter
from lox.loggers.kinds import Column, Kinds
from lox.tensorboard._batch import encode
from lox.tensorboard._clock import Clock
from lox.tensorboard._events import record
from lox.tensorboard._files import EventFile, aside, closing
from lox.tensorboard._hparams import HParams, Number
from lox.tensorboard._lanes import LaneEncoder
from lox.tensorboard._resume import Past
from lox.tensorboard._rows import merge
from lox.tensorboard._values import ValueEncoder


class TensorBoardWriter(LaneWriter):
    """Writes each batch with one system call, so TensorBoard sees it at once and a crash loses none of it."""

    def __init__(
        self,
        folder: Path,
        *,
        kinds: Kinds,
        step_axes: Sequence[str],
        hparams: Mapping[str, Number],
        sample_rate: int,
        resume: bool,
        lanes: LaneEncoder,
    ) -> None:
        self._kinds = kinds
        self._step_axes = step_axes
        self._values = ValueEncoder(sample_rate)
        self._lanes = lanes
        self._counted: dict[str, int] = {}
        self._aside: set[str] = set()  # tags that the file marks: their steps are along another axis
        self._past = Past(folder) if resume else None
        self._clock = Clock(after=self._past.latest if self._past is not None else 0.0)
        self._file = EventFile(folder)
        self._hparams = HParams(hparams, expects_more=kinds.uses("hparams"))
        self._file.take(b"".join(map(record, self._events(self._hparams.at_start()))))
        self._file.write_out()
        self._lanes.clock.follow(self._clock)

    def write(self, logs: lox.logdict) -> None:
        columns = self._kinds.columns(logs)
        hparams = [column for column in columns if column.kind == "hparams"]
        shown = [column for column in columns if column.kind != "hparams"]
        pieces = [record(event) for event in self._events(self._hparams.add(hparams))] if hparams else []
        counted = {**self._counted, **self._first_counts(logs, shown)}
        batch = merge(logs, shown, self._step_axes, counted)
        new_aside = {tag for rows in batch if not rows.main for tag in rows.tags()} - self._aside
        if new_aside:
            pieces.append(record(aside(new_aside, self._clock.now())))
        if self._past is not None:
            events, batch = self._past.continue_with(batch, self._clock.now())
            pieces += [record(event) for event in events]
        pieces += [encode(rows, self._clock.rise(len(rows.steps)), self._values) for rows in batch]
        self._file.take(b"".join(pieces), sum(len(rows.steps) for rows in batch))
        self._aside |= new_aside
        self._counted = counted
        for column in shown:
            if column.key in counted:
                self._counted[column.key] = counted[column.key] + len(column.values)
        self._lanes.clock.follow(self._clock)
        self._write_out()

    def write_lane(self, logs: lox.logdict, lane: tuple[int, ...]) -> bool:
        block = self._lanes.encode(logs, len(lane)) if self._knows_axis_of(logs) else None
        if block is None or not self._clock.take(block.wall_times):
            return False
        self._file.take(block.of(lane), len(block.wall_times))
        self._write_out()
        return True

    def flush(self) -> None:
        self._write_out()
        self._file.sync()

    def close(self) -> None:
        last = [*self._events(self._hparams.at_end()), closing(self._clock.now())]
        try:
            self._file.take(b"".join(map(record, last)))
            self._file.write_out()
            self._file.sync()
        except OSError as error:
            error.lost_records = self._file.kept_records  # type: ignore[attr-defined]  # see Logger
            raise

    def _write_out(self) -> None:
        try:
            self._file.write_out()
        except OSError as error:
            error.lost_records = 0  # type: ignore[attr-defined]  # the file keeps them
            raise

    def _knows_axis_of(self, logs: lox.logdict) -> bool:
        """Whether these keys have steps along the first axis, or the file already marks them."""
        return self._step_axes[0] in logs.steps or self._aside.issuperset(logs)

    def _events(self, summaries: list[Summary]) -> list[Event]:
        return [Event(wall_time=self._clock.now(), summary=summary) for summary in summaries]

    def _first_counts(self, logs: lox.logdict, columns: list[Column]) -> dict[str, int]:
        """The number from which the records of new keys without steps are counted."""
        stepped = {key for by_key in logs.steps.values() for key in by_key}
        new = {column.key for column in columns} - stepped - self._counted.keys()
        if self._past is None:
            return dict.fromkeys(new, 0)
        return {key: self._past.count([column.name for column in columns if column.key == key]) for key in new}
