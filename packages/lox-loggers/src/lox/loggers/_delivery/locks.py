"""Locks of the operating system: among all processes, a run has one writer at a time.

A folder of runs has one lock file, in which each run has its own byte. So a process needs one open file for all runs of a
folder, however many there are. The system frees the locks of a process that ends, even if it is killed, and a forked child
has none. Such locks belong to a process, so the loggers of one process also check a table.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import sys
import threading
from pathlib import Path
from typing import ClassVar

from lox.loggers._errors import RunExistsError

try:
    import fcntl
except ImportError:  # Windows: only the loggers of one process know about each other
    fcntl = None  # type: ignore[assignment]

FILE = ".lox.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

# The layout of `struct flock`, and which of its fields is the process.
_STRUCT, _PROCESS = ("qqihh", 2) if sys.platform == "darwin" else ("hhqqi0q", 4)

# How many seconds to wait for a deleted logger of this process whose thread is still writing.
_MAX_WAIT = 60.0

_changed = threading.Condition(threading.RLock())


class RunLock:
    """The lock of the run `name` in `folder`. Creating it takes the lock, which is held until `release`.

    Return one from `Logger.lock`. Raises `RunExistsError` if this process or another one is already writing the run. On a file
    system without locks, it does nothing.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._place = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 2
        folder.mkdir(parents=True, exist_ok=True)
        with _changed:
            self._file = _LockFile.of(folder)
            _changed.wait_for(lambda: not self._file.is_ending(self._place), _MAX_WAIT)
            self._file.take(self._place, self, folder / name)
        self.ending = False

    def end(self) -> None:
        """Announces that the lock will be released soon, so others may wait for it."""
        self.ending = True

    def release(self) -> None:
        with _changed:
            self._file.release(self._place, self)
            _changed.notify_all()


class _LockFile:
    """The lock file of a folder. A process opens it once, because closing a second descriptor would free all of its locks."""

    open_files: ClassVar[dict[tuple[int, int], _LockFile]] = {}
    process: ClassVar[int] = os.getpid()

    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity
        self._held: dict[int, RunLock] = {}

    @classmethod
    def of(cls, folder: Path) -> _LockFile:
        if cls.process != os.getpid():  # a forked child, whose parent has the locks
            cls.open_files, cls.process = {}, os.getpid()
        path = folder / FILE
        with contextlib.suppress(FileNotFoundError):
            there = path.lstat()
            if (there.st_dev, there.st_ino) in cls.open_files:
                return cls.open_files[there.st_dev, there.st_ino]
        descriptor = os.open(path, _FLAGS, 0o666)
        status = os.fstat(descriptor)
        identity = status.st_dev, status.st_ino
        return cls.open_files.setdefault(identity, cls(descriptor, identity))

    def is_ending(self, place: int) -> bool:
        return place in self._held and self._held[place].ending

    def take(self, place: int, lock: RunLock, run: Path) -> None:
        if place in self._held:
            raise RunExistsError(
                f"another logger of this process has the run {run} open: close that logger first (logger.close())"
            )
        if fcntl is not None:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place, os.SEEK_SET)
            except (BlockingIOError, PermissionError):
                holder = self._holder(place)
                self._close_if_unused()
                raise RunExistsError(
                    f"{holder} is writing the run {run}. Wait until it has ended, or use if_exists='new'"
                ) from None
            except OSError:  # a file system without locks
                pass
        self._held[place] = lock

    def release(self, place: int, lock: RunLock) -> None:
        if self._held.get(place) is not lock or self.process != os.getpid():
            return
        del self._held[place]
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, place, os.SEEK_SET)
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._held:
            os.close(self._descriptor)
            self.open_files.pop(self._identity, None)

    def _holder(self, place: int) -> str:
        """A description of the process that has a lock, as far as the system knows it."""
        fields = [0] * 5
        kind, whence, start, length = (3, 4, 0, 1) if sys.platform == "darwin" else (0, 1, 2, 3)
        fields[kind], fields[whence], fields[start], fields[length] = fcntl.F_WRLCK, os.SEEK_SET, place, 1
        with contextlib.suppress(OSError, struct.error):
            found = fcntl.fcntl(self._descriptor, fcntl.F_GETLK, struct.pack(_STRUCT, *fields))
            if (process := struct.unpack(_STRUCT, found)[_PROCESS]) > 0:
                return f"process {process}"
        return "another process"
