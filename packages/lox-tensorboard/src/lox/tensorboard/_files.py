"""Event files on disk: creating one, appending to it, and reading those of an earlier process."""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from tensorboardX.proto.event_pb2 import Event, LogMessage, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from lox.loggers.backend import GrowingFile, create
from lox.tensorboard._events import record

T = TypeVar("T")

_LENGTH = struct.Struct("<Q")
_HEADER_SIZE, _FOOTER_SIZE = 12, 4
_FRAME_SIZE = _HEADER_SIZE + _FOOTER_SIZE
_PREFIX = "events.out.tfevents."
_OURS = ".lox."  # other programs may append a number to the name, so a letter follows it
_ASIDE = "lox_aside"


class EventFile(GrowingFile):
    """A new event file in `folder`, which nothing else writes to."""

    def __init__(self, folder: Path) -> None:
        # TensorBoard reads the files of a folder in the order of their names, so the time comes first. A unique part
        # follows, because two loggers can start in the same second. If the clock was set back, the new file must still
        # come after the existing ones.
        now = time.time()
        second = max(int(now), *(_second_of(path) + 1 for path in event_files(folder)), 0)
        unique = f"{_OURS}{time.time_ns()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        super().__init__(folder / f"{_PREFIX}{second}.{socket.gethostname()}{unique}")
        self._folder_synced = False
        # tensorboardX's EventsWriter would wait for the disk, which takes seconds when a thousand runs are opened.
        create(self.path)
        self.append(record(Event(wall_time=now, file_version="brain.Event:2")))

    def take(self, data: bytes, records: int = 0) -> None:
        """Takes events, to be written by the next `write_out`. If too much is waiting already, `write_out` is tried first."""
        if self.full:
            self.write_out()
        super().take(data, records)

    def sync(self) -> None:
        super().sync()
        if not self._folder_synced:
            _sync_folder(self.path.parent)
            self._folder_synced = True


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders, and does not need this
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def event_files(folder: Path) -> list[Path]:
    """The event files of a run, in the order in which TensorBoard reads them. Links are ignored."""
    return sorted(path for path in folder.glob("*tfevents*") if path.is_file() and not path.is_symlink())


def is_ours(path: Path) -> bool:
    """Whether lox wrote an event file."""
    return _OURS in path.name


def _second_of(path: Path) -> int:
    """The time in the name of an event file."""
    digits = path.name.removeprefix(_PREFIX).split(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, without an incomplete record that a killed process may have left at its end."""
    left = path.stat().st_size
    with path.open("rb") as file:
        while left >= _FRAME_SIZE:
            (length,) = _LENGTH.unpack(file.read(_HEADER_SIZE)[:8])
            left -= _FRAME_SIZE + length
            if left < 0:
                return
            yield Event.FromString(file.read(length))
            file.read(_FOOTER_SIZE)


class Shown(Generic[T]):
    """What TensorBoard shows of the files of a run, in the order in which it reads them.

    Attributes:
      values: for each tag, its steps, each with what `take` keeps of the value.
      aside: the tags whose steps are not along the axis by which a run is resumed.
      latest: the last wall time.
      was_closed: whether the process that wrote the last file closed the run, and was not killed.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        take: Callable[[Event, Summary.Value], T],
        read: Callable[[Path], Iterator[Event]] = read_events,
    ) -> None:
        self.values: dict[str, list[tuple[int, T]]] = {}
        self.aside: set[str] = set()
        self.latest = 0.0
        self.was_closed = False
        restarts = 0
        for event in itertools.chain.from_iterable(map(read, paths)):
            status = event.session_log.status
            self.latest = max(self.latest, event.wall_time)
            self.aside |= _aside_tags(event)
            self.was_closed = status == SessionLog.STOP
            if status == SessionLog.START:
                restarts += 1
                if restarts > 1:  # the first one is the start of the run
                    self._purge(event.step)
            for value in event.summary.value:
                self.values.setdefault(value.tag, []).append((event.step, take(event, value)))

    def _purge(self, start: int) -> None:
        for tag, there in self.values.items():
            self.values[tag] = [item for item in there if item[0] < start]


def aside(tags: Collection[str], wall_time: float) -> Event:
    """An event that TensorBoard ignores. It marks tags whose steps are not along the axis by which a run is resumed."""
    message = json.dumps({_ASIDE: sorted(tags)})
    return Event(wall_time=wall_time, log_message=LogMessage(level=LogMessage.INFO, message=message))


def _aside_tags(event: Event) -> set[str]:
    if not event.log_message.message.startswith(f'{{"{_ASIDE}"'):
        return set()
    try:
        return set(json.loads(event.log_message.message)[_ASIDE])
    except (LookupError, TypeError, ValueError):
        return set()


def closing(wall_time: float) -> Event:
    return Event(wall_time=wall_time, session_log=SessionLog(status=SessionLog.STOP))


def purge(step: int, wall_time: float) -> list[Event]:
    """Events that make TensorBoard drop everything in earlier files from `step` on.

    There are two, because TensorBoard ignores the first start event of a run, and the earlier files may have none.
    """
    return [Event(wall_time=wall_time, step=step, session_log=SessionLog(status=SessionLog.START)) for _ in range(2)]
