"""What `csv` and `jsonl` share: a text file for each run, and a line for each record."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lox
from lox.loggers import _files
from lox.loggers._backends.config_file import config_next_to, remove_config, write_config
from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.rows import Columns, Row, steps_in, tables
from lox.loggers._delivery.locks import RunLock
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import BatchWriter, Run
from lox.loggers._errors import RunExistsError, RunFormatError


class LineWriter(BatchWriter):
    """Writes records as lines, one batch at a time. The file keeps what the disk refuses (see `GrowingFile`)."""

    def __init__(self, file: _files.GrowingFile, legend: Legend) -> None:
        self._file = file
        self._legend = legend

    @abc.abstractmethod
    def lines(self, tables: Sequence[Columns]) -> str:
        """The lines of all rows of all tables, in order."""

    def prepare(self) -> None:
        """Runs before lines are added to the file."""

    def write(self, logs: lox.logdict) -> None:
        if self._file.full:
            self._write_out(lost=None)  # if it fails, `logs` is not taken at all
        parts = list(tables(logs, self._legend))
        lines = self.lines(parts).encode("utf-8", "surrogatepass")
        self._file.take(lines, sum(len(next(iter(columns.values()), ())) for columns in parts))

    def end_batch(self) -> None:
        self._write_out(lost=0)

    def flush(self) -> None:
        self._write_out(lost=0)

    def close(self) -> None:
        self._write_out(lost=self._file.kept_records)

    def _write_out(self, lost: int | None) -> None:
        """Writes what waits.

        Args:
          lost: how many records are given up if the disk refuses them now; None if the caller counts them.
        """
        if not self._file.kept:
            return
        try:
            self._legend.save(legend_file(self._file.path))
            self.prepare()
            self._file.write_out()
        except Exception as error:
            self._file.give_up_unless_it_may_pass(error)
            if lost is not None and _files.may_pass(error):
                error.lost_records = lost  # type: ignore[attr-defined]
            raise


class LineLogger(Logger):
    """Writes `path/RUN` with the suffix of its format, and the run's config next to it."""

    suffix: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # still right after os.chdir

    @abc.abstractmethod
    def writer(self, file: _files.GrowingFile, legend: Legend) -> LineWriter:
        """A writer that appends to the file."""

    def escape(self, text: str) -> str:
        """Text as it is written."""
        return text

    @abc.abstractmethod
    def read(self, file: Path) -> Iterable[Row]:
        """The rows of a file, without an incomplete line at its end."""

    @abc.abstractmethod
    def whole_size(self, file: Path) -> int:
        """The size of a file without an incomplete line at its end."""

    def open(self, run: Run) -> LineWriter:
        path = self._path(run.name)
        _files.refuse_links(self.path, path)
        legend = Legend(self.escape)
        if run.resume:
            legend = self._legend(path)
            _files.GrowingFile(path).cut(self.whole_size(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _files.create(path)
            except FileExistsError:
                raise RunExistsError(f"{path} already exists") from None
        legend.save(legend_file(path))
        write_config(config_next_to(path), run)
        return self.writer(_files.GrowingFile(path), legend)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path(name))

    def lock(self, name: str) -> RunLock:
        return RunLock(self.path, f"{name}{self.suffix}")

    def remove(self, name: str) -> None:
        path = self._path(name)
        _files.refuse_links(self.path, path)
        self._legend(path)
        remove_config(config_next_to(path))
        path.unlink()
        legend_file(path).unlink(missing_ok=True)

    def existing(self) -> list[str]:
        files = self.path.rglob(f"*{self.suffix}")
        return sorted(file.relative_to(self.path).as_posix().removesuffix(self.suffix) for file in files)

    def written(self, name: str) -> Steps:
        path = self._path(name)
        _files.refuse_links(self.path, path)
        legend = self._legend(path)
        try:
            return steps_in(self.read(path), legend)
        except OSError:
            raise
        except Exception as error:  # any error of the parser
            raise RunFormatError(f"{path} is damaged: {type(error).__name__}: {error}") from error

    def _legend(self, path: Path) -> Legend:
        """The legend of a run. Only an empty file may have none: its writer was killed at once."""
        try:
            return Legend.read(legend_file(path), self.escape)
        except FileNotFoundError:
            if path.stat().st_size == 0:
                return Legend(self.escape)
            raise RunFormatError(
                f"{path} is not a run that lox wrote (it has no {legend_file(path).name}), so it is neither resumed nor replaced"
            ) from None

    def _path(self, name: str) -> Path:
        return self.path / f"{name}{self.suffix}"


def legend_file(path: Path) -> Path:
    """The path of the legend for a run's file."""
    return path.with_name(f"{path.name}.columns.json")
