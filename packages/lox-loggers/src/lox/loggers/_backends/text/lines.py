"""What backends have in common that write a text file for each run, and a line for each record."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lox
from lox.loggers._backends.config_file import next_to, remove_config, write_config
from lox.loggers._backends.text.rows import Columns, Labels, Row, steps_in
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import Run
from lox.loggers._errors import RecordError, RunExistsError, RunFormatError

_GATHER_CHARACTERS = 256 * 1024  # gathered before they go to disk; `flush` does not wait for it


class LineFile:
    """A text file that grows by whole lines. It is opened for each flush only: see `_npy`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: list[str] = []
        self._length = 0

    def add(self, lines: str) -> None:
        self._lines.append(lines)
        self._length += len(lines)
        if self._length >= _GATHER_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        if not self._lines:
            return
        data = "".join(self._lines).encode("utf-8", "surrogatepass")
        self._lines, self._length = [], 0
        with self.there(lost=data.count(b"\n")):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        try:
            _append(descriptor, data)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def there(self, lost: int | None = None) -> Iterator[None]:
        """For whoever opens the file. It is never made anew, without what was in it before."""
        try:
            yield
        except FileNotFoundError as error:
            gone = RecordError(
                f"{self.path} was deleted while its run was open; what is logged to the run from now on would be lost. "
                "Close the logger before you delete runs."
            )
            if lost is not None:
                gone.lost_records = lost  # type: ignore[attr-defined]  # see Logger: what a writer may tell
            raise gone from error

    def cut_back(self) -> None:
        """Forgets what a writer that was killed left of its last line."""
        content = self.path.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self.path, content.rfind(b"\n") + 1)


class LineWriter(abc.ABC):
    """Writes records as lines."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._labels = Labels()

    @abc.abstractmethod
    def lines(self, tables: Sequence[Columns]) -> str:
        """The lines of all rows of all tables, in their order."""

    def write(self, logs: lox.logdict) -> None:
        self._file.add(self.lines(list(self._labels.tables(logs))))

    def flush(self) -> None:
        self._file.flush()

    close = flush


class LineLogger(Logger):
    """Writes `path/RUN` with the suffix of its format, and the run's config next to it."""

    suffix: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # also after a change of folder

    @abc.abstractmethod
    def writer(self, file: LineFile) -> LineWriter:
        """A writer that adds to what the file holds."""

    @abc.abstractmethod
    def read(self, file: Path) -> Iterable[Row]:
        """The rows of a file."""

    def open(self, run: Run) -> LineWriter:
        path = self._path(run.name)
        if run.resume:
            LineFile(path).cut_back()
        else:
            _create(path)
        write_config(next_to(path), run)
        return self.writer(LineFile(path))

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def remove(self, name: str) -> None:
        remove_config(next_to(self._path(name)))
        self._path(name).unlink()

    def written(self, name: str) -> Steps:
        path = self._path(name)
        LineFile(path).cut_back()
        try:
            return steps_in(self.read(path))
        except OSError:
            raise
        except Exception as error:  # whatever the parser stumbles over
            raise RunFormatError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def _path(self, name: str) -> Path:
        return self.path / f"{name}{self.suffix}"


def _create(file: Path) -> None:
    """A new empty file for a run; an error if there is one already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.open("xb").close()
    except FileExistsError:
        raise RunExistsError(f"{file} exists already") from None


def _append(descriptor: int, data: bytes) -> None:
    """All of it or nothing: half a line would spoil the next one."""
    before = os.fstat(descriptor).st_size
    left = data
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            os.truncate(descriptor, before)
        error.lost_records = data.count(b"\n")  # type: ignore[attr-defined]  # see Logger: what a writer may tell
        raise
