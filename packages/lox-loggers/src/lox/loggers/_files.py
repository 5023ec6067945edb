"""The files of a run: opened without following links, replaced atomically, and kept through temporary faults.

Anyone who can write to a folder of runs can put links into it. So nothing is written through a link, temporary files have
names that cannot be guessed, and a link that is read through must lead to a file in the run's own folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from lox.loggers._errors import RecordError, RunFormatError

_BINARY = getattr(os, "O_BINARY", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag, but there few users may create links
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")

# How much a writer keeps while the disk refuses writes. Anything beyond that is lost, and counted.
MAX_KEPT_BYTES = 32 * 1024 * 1024

# Faults after which the file is no longer the one that was written to. All others may be over at the next attempt: a full
# disk, too many open files, a file server that does not answer.
_LASTING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


def may_pass(error: BaseException) -> bool:
    """Whether the fault may be over at the next attempt, so that what could not be written is kept."""
    return isinstance(error, OSError) and not isinstance(error, _LASTING) and error.errno != errno.ELOOP


def open_existing(path: Path, flags: int) -> int:
    """A descriptor of an existing file that is not a link."""
    try:
        return os.open(path, flags | _BINARY | _NO_LINKS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise RunFormatError(f"{path} is a link; lox does not write through links") from error
        raise


def create(path: Path) -> None:
    """Creates an empty file. Raises FileExistsError if the name is taken, even by a link."""
    os.close(_create(path))


def replace(path: Path, content: Iterable[bytes | bytearray]) -> None:
    """Replaces a file atomically: readers see the old content or the new, never a part."""
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
    """Whether a file is a temporary one that `replace` left behind when the process was killed."""
    return _TEMPORARY.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


class GrowingFile:
    """A file that grows by whole pieces, in order. If the disk refuses a piece for a reason that may pass, the piece is kept and
    written before the next ones.

    The file is opened only while it is written to: a thousand runs would need more open files than a process may have.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[bytes] = []
        """The bytes that were taken but are not in the file yet."""
        self.kept_records = 0
        self._torn_at: int | None = None  # where a partly written piece begins that could not be cut off

    @property
    def full(self) -> bool:
        """Whether so much is kept that no more should be taken."""
        return sum(map(len, self.kept)) >= MAX_KEPT_BYTES

    def take(self, data: bytes, records: int = 0) -> None:
        """Takes a piece, to be written by the next `write_out`.

        Args:
          records: how many records are in it.
        """
        self.kept.append(data)
        self.kept_records += records

    def write_out(self) -> None:
        """Writes all that was taken, or nothing.

        If that can never succeed, what was taken is lost, and the error has the number of records as `lost_records`.
        """
        data = b"".join(self.kept)
        try:
            if data:
                self.append(data)
        except BaseException as error:
            self.give_up_unless_it_may_pass(error)
            raise
        self._forget()

    def give_up_unless_it_may_pass(self, error: BaseException) -> None:
        """Drops what is kept, unless the error may pass."""
        if not may_pass(error):
            error.lost_records = self.kept_records  # type: ignore[attr-defined]
            self._forget()

    def append(self, data: bytes) -> None:
        """Appends a piece to the file, all of it or nothing."""
        with self.there():
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
        """Cuts off what a killed writer left after the first `size` bytes."""
        descriptor = open_existing(self.path, os.O_WRONLY)
        try:
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Returns when everything that was written is on the disk."""
        with self.there():
            descriptor = open_existing(self.path, os.O_WRONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """For code that opens the file. A deleted file is an error: a new one would lack what was in it."""
        try:
            yield
        except FileNotFoundError as error:
            raise RecordError(
                f"{self.path} was deleted while its run was open, so its records would be lost. "
                "Close the logger before you delete runs."
            ) from error

    def _forget(self) -> None:
        self.kept, self.kept_records = [], 0


def refuse_links(top: Path, place: Path) -> None:
    """Raises a RunFormatError if there is a link on the way from `top` to `place`, which lies below it."""
    for path in (place, *place.parents):
        if path == top:
            return
        if path.is_symlink():
            raise RunFormatError(f"{path} is a link; lox does not write through links")


def refuse_way_out(folder: Path, path: Path) -> None:
    """Raises a RunFormatError if a file in a run's folder is a link that leads out of it."""
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise RunFormatError(f"{path} is a link that leads out of the run's folder")


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY | _NO_LINKS, 0o666)
