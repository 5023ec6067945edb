"""A `.npy` file that grows: rows are appended in place, and `np.load` can read it at any time.

The header has room for a longer row count. Appending first writes the new rows at the end, and then the count, a few bytes
within one aligned block. So a reader, even one that comes after the writer was killed, sees the old or the new count, and
at least that many whole rows.

No file is kept open, so any number of runs and keys fits within the limit on open files, and a forked child has no file that
it could write to again.
"""

from __future__ import annotations

import functools
import math
import os
import re
import stat
from pathlib import Path

import numpy as np

from lox.loggers import _files
from lox.loggers._errors import RunFormatError

_MAGIC = b"\x93NUMPY\x01\x00"
_COUNT_DIGITS = 16
_MAPPED_BYTES = 1 << 20  # larger files are mapped, not read


class NpyFile:
    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        """A file of rows of the given dtype and shape. Use `create` or `open` to make one."""
        self.path = path
        self.dtype = dtype
        self.shape = shape
        self._header, self._count_at = _header(dtype, shape)
        self._row_bytes = dtype.itemsize * math.prod(shape)

    @classmethod
    def create(cls, path: Path, rows: np.ndarray) -> NpyFile:
        """Creates a file with these rows. It appears under its name only once it can be loaded."""
        file = cls(path, rows.dtype, rows.shape[1:])
        file._replace(np.ascontiguousarray(rows))
        return file

    @classmethod
    def open(cls, path: Path, rows: np.ndarray) -> NpyFile:
        """Continues after `rows`, the first rows of the file. A file that is missing, or whose header is not ours, is replaced:
        the count must not be written into a foreign header."""
        if path.is_symlink():
            raise RunFormatError(f"{path} is a link; lox does not write through links")
        file = cls(path, rows.dtype, rows.shape[1:])
        if file._laid_out():
            file.truncate(len(rows))
        else:
            file._replace(rows)
        return file

    def write(self, row: int, rows: np.ndarray) -> None:
        """Writes `rows` as the last rows of the file, starting at row number `row`."""
        data = np.ascontiguousarray(rows, self.dtype)
        descriptor = _files.open_existing(self.path, os.O_WRONLY)
        try:
            _write_at(descriptor, data.reshape(-1).view(np.uint8).data, len(self._header) + row * self._row_bytes)
            _write_at(descriptor, memoryview(_count(row + len(data))), self._count_at)
        finally:
            os.close(descriptor)

    def truncate(self, rows: int) -> None:
        """Drops all but the first `rows` rows."""
        self.write(rows, np.empty((0, *self.shape), self.dtype))

    def read(self, rows: int) -> np.ndarray:
        return load_rows(self.path)[:rows]

    def rewrite(self, rows: np.ndarray) -> None:
        """Replaces all rows and their dtype. The old file stays readable until the new one is complete."""
        self.dtype = rows.dtype
        self._header, self._count_at = _header(self.dtype, self.shape)
        self._row_bytes = self.dtype.itemsize * math.prod(self.shape)
        self._replace(rows)

    def _laid_out(self) -> bool:
        """Whether the file begins with our header, whatever its count."""
        try:
            with self.path.open("rb") as stream:
                there = stream.read(len(self._header))
        except FileNotFoundError:
            return False
        before, behind = slice(self._count_at), slice(self._count_at + _COUNT_DIGITS, None)
        return (there[before], there[behind]) == (self._header[before], self._header[behind])

    def _replace(self, rows: np.ndarray) -> None:
        header = bytearray(self._header)
        header[self._count_at : self._count_at + _COUNT_DIGITS] = _count(len(rows))
        _files.replace(self.path, [header, rows.tobytes()])


def load_rows(path: Path) -> np.ndarray:
    """What plain `np.load` returns, but without copying a large file. Raises a RunFormatError if the file holds no rows.

    The file is mapped: mapping accepts neither pickles nor archives, and needs no memory for rows that a damaged header
    claims. Small files with our header are read instead, because with thousands of files numpy would spend most of its time on
    headers.
    """
    if (small := _read_small(path)) is not None:
        return small
    _files.refuse_way_out(path.parent, path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise RunFormatError(f"{path} is damaged: it is not a file")
    try:
        rows = np.lib.format.open_memmap(path, mode="r")
        len(rows)  # fails for a single value
    except OSError as error:
        raise RunFormatError(f"{path} cannot be read: {error.strerror}") from error
    except Exception:  # numpy's error is not shown, because it advises to trust the file
        raise RunFormatError(f"{path} is damaged: it is not a whole .npy file of numbers or text") from None
    return rows if rows.nbytes > _MAPPED_BYTES else np.array(rows)


_OWN_HEADER = re.compile(
    rb"\{'descr': '([<|][biufcSU]\d+)', 'fortran_order': False, 'shape': \(\s*(\d{1,16}),((?: ?\d{1,9},?){0,8})\), \}\s*\n"
)


def _read_small(path: Path) -> np.ndarray | None:
    """The rows of a small file with a header of ours; None for other files, and for incomplete ones."""
    try:
        descriptor = _files.open_existing(path, os.O_RDONLY)
    except (OSError, RunFormatError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAPPED_BYTES:
            return None
        data = bytearray(os.read(descriptor, status.st_size))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    fixed = len(_MAGIC) + 2
    if data[: len(_MAGIC)] != _MAGIC or len(data) < fixed:
        return None
    offset = fixed + int.from_bytes(data[len(_MAGIC) : fixed], "little")
    found = _OWN_HEADER.fullmatch(data, fixed, offset)
    if found is None:
        return None
    dtype, shape = _parsed(found[1], found[3])
    rows = int(found[2])
    if offset + rows * dtype.itemsize * math.prod(shape) > len(data):
        return None
    return np.frombuffer(data, dtype, rows * math.prod(shape), offset).reshape(rows, *shape)


@functools.lru_cache(maxsize=256)
def _parsed(descr: bytes, shape: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    return np.dtype(descr.decode("ascii")), tuple(map(int, shape.replace(b",", b" ").split()))


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[bytes, int]:
    """The header of a file without rows, and the place of the count in it."""
    start = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': ("
    fixed = len(_MAGIC) + 2
    start += " " * (-(fixed + len(start)) % _COUNT_DIGITS)  # the count starts on a multiple of its length
    text = f"{start}{0:>{_COUNT_DIGITS}},{', '.join(map(str, shape))}), }}"
    text += " " * (-(fixed + len(text) + 1) % 64) + "\n"
    return _MAGIC + len(text).to_bytes(2, "little") + text.encode("ascii"), fixed + len(start)


def _count(rows: int) -> bytes:
    return f"{rows:>{_COUNT_DIGITS}}".encode("ascii")


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = _pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _seek_and_write(descriptor: int, data: memoryview, offset: int) -> int:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


_pwrite = getattr(os, "pwrite", _seek_and_write)  # Windows has no pwrite
