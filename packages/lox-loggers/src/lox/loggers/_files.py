"""Files that belong to a run: opened without following links, replaced at once, and faults that pass.

Anybody who may write to a folder of runs can put links into it. So nothing is written through a link, a temporary file has
a name that cannot be guessed, and what is read through a link must lie in the run's own folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from lox.loggers._errors import RunFormatError

_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has none; links need rights there that few have
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")

# What a writer keeps while the disk takes nothing. What comes on top of it is lost, and counted.
MAX_KEPT_BYTES = 32 * 1024 * 1024

# Faults after which the file is not the one that was written to before. Any other may be over at the next attempt: a full
# disk, too many open files, a file server that is away.
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def may_pass(error: BaseException) -> bool:
    """Whether what could not be written is worth keeping for another attempt."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING) and error.errno != errno.ELOOP


def open_existing(path: Path, flags: int) -> int:
    """A descriptor of a file that is there, and is not a link."""
    try:
        return os.open(path, flags | _BINARY | _NO_LINKS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunFormatError(f"{path} is a link; lox does not write through links") from error
        raise


def create(path: Path) -> None:
    """A new, empty file. FileExistsError if the name is taken, also by a link."""
    os.close(_create(path))


def replace(path: Path, content: Iterable[bytes | bytearray]) -> None:
    """Puts a whole file under its name at once."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = _create(unfinished)
    try:
        try:
            for part in content:
                write_all(descriptor, part)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def is_unfinished(path: Path) -> bool:
    """Whether a file is what `replace` leaves when the process is killed."""
    return _TEMPORARY.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class Appended:
    """A file that grows by whole pieces. It is opened for each of them only: a thousand runs would need more open files
    than a process may have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._torn_at: int | None = None  # where half a piece of ours begins that could not be cut off

    def append(self, data: bytes) -> None:
        """Hands `data` to the operating system, all of it or nothing."""
        descriptor = open_existing(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            if self._torn_at is not None:
                os.ftruncate(descriptor, self._torn_at)
            self._torn_at = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, data)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, self._torn_at)
                    self._torn_at = None
                raise
            self._torn_at = None
        finally:
            os.close(descriptor)

    def cut(self, size: int) -> None:
        """Forgets what a writer that was killed left behind the first `size` bytes."""
        descriptor = open_existing(self.path, os.O_WRONLY)
        try:
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def refuse_links(top: Path, place: Path) -> None:
    """A RunFormatError if a link leads from `top` to `place`, which lies below it."""
    for path in (place, *place.parents):
        if path == top:
            return
        if path.is_symlink():
            raise RunFormatError(f"{path} is a link; lox does not write through links")


def refuse_way_out(folder: Path, path: Path) -> None:
    """A RunFormatError if a file in a run's folder is a link that leads out of it."""
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise RunFormatError(f"{path} is a link that leads out of the run's folder")


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINKS, 0o666)
