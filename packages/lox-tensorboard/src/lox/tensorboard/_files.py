"""Event files on disk: making one, adding to it, and reading those of an earlier process."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from lox.loggers import RecordError
from lox.tensorboard._events import record

T = TypeVar("T")

_LENGTH = struct.Struct("<Q")
_HEADER_SIZE, _FOOTER_SIZE = 12, 4
_FRAME_SIZE = _HEADER_SIZE + _FOOTER_SIZE
_APPENDING = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)


class EventFile:
    """A new event file in `folder`, which nobody else writes to.

    It is opened for each write: a thousand runs would need more open files than a process may have.
    """

    def __init__(self, folder: Path) -> None:
        # TensorBoard reads the files of a folder in the order of their names, so time comes before what makes the
        # name unique: two loggers can start in the same second, even in processes that count alike. And where others
        # add a number of their own, a letter comes after it.
        now = time.time()
        unique = f"lox.{time.time_ns()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self.path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{unique}"
        # Not tensorboardX's EventsWriter: it waits for the disk, which takes seconds when a thousand runs are opened.
        with self.path.open("xb") as file:
            file.write(record(Event(wall_time=now, file_version="brain.Event:2")))
        self._folder_synced = False

    def append(self, data: bytes) -> None:
        """Hands `data` to the operating system, all of it or nothing."""
        if not data:
            return
        file = self._open()
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            # Half a record would hide everything that comes after it.
            os.ftruncate(file, os.fstat(file).st_size - (len(data) - len(left)))
            raise
        finally:
            os.close(file)

    def sync(self) -> None:
        """Returns when all that was appended is on disk."""
        file = self._open()
        try:
            os.fsync(file)
        finally:
            os.close(file)
        if not self._folder_synced:
            _sync_folder(self.path.parent)
            self._folder_synced = True

    def _open(self) -> int:
        try:
            return os.open(self.path, _APPENDING)
        except FileNotFoundError as error:
            raise RecordError(
                f"TensorBoardLogger: {self.path} was deleted while its run was open; what is logged to the run from "
                "now on would be lost. Close the logger before you delete runs."
            ) from error


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # folders cannot be opened there, and new entries need no help
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def event_files(folder: Path) -> list[Path]:
    """The event files of a run, in the order in which TensorBoard reads them."""
    return sorted(path for path in folder.glob("*tfevents*") if path.is_file())


def read_events(path: Path) -> Iterator[Event]:
    """The events of a file, without half a record that a killed process may have left at its end."""
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

    values: for each tag, its steps, each with what `take` keeps of the value.
    was_closed: whether the process that wrote the last file ended the run, and was not killed.
    """

    def __init__(self, paths: Iterable[Path], take: Callable[[Event, Summary.Value], T]) -> None:
        self.values: dict[str, list[tuple[int, T]]] = {}
        self.was_closed = False
        restarts = 0
        for event in itertools.chain.from_iterable(map(read_events, paths)):
            status = event.session_log.status
            self.was_closed = status == SessionLog.STOP
            if status == SessionLog.START:
                restarts += 1
                if restarts > 1:  # the first one is the start
                    self._purge(event.step)
            for value in event.summary.value:
                self.values.setdefault(value.tag, []).append((event.step, take(event, value)))

    def _purge(self, start: int) -> None:
        for tag, there in self.values.items():
            self.values[tag] = [item for item in there if item[0] < start]


def closing(wall_time: float) -> Event:
    return Event(wall_time=wall_time, session_log=SessionLog(status=SessionLog.STOP))


def purge(step: int, wall_time: float) -> list[Event]:
    """Events that make TensorBoard drop what the files before hold from `step` on.

    Two of them, since the first start that TensorBoard sees in a run does nothing, and the files before may have
    been written without one.
    """
    return [Event(wall_time=wall_time, step=step, session_log=SessionLog(status=SessionLog.START)) for _ in range(2)]
