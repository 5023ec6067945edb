"""`ProgressLogger`: a progress bar driven by what is logged."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import IO, Any

import lox
from lox.loggers._backends.display.board import Board, RunBoard
from lox.loggers._backends.display.numbers import short
from lox.loggers._backends.display.screen import Ended, Part
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import Run
from lox.loggers._errors import LoggerOptionError

_MAX_BARS = 8  # with more runs than this there is one bar for all


class ProgressLogger(Logger):
    """Shows how far each run is.

    Args:
      total: how many steps there are; None if that is not known.
      axis: the step axis that tells how far it is, the first step being number `start`; records without that axis are
        counted instead.
      metrics: the keys whose latest values are shown beside the bar; `fnmatch` patterns work.
      file: where to; standard error if None. Where it is no terminal, there is a line for each tenth of the way (without
        a total: each ten seconds), and one at the end.
      live: True or False to have the bar or the lines whatever `file` is.

    >>> import sys
    >>> with lox.loggers.ProgressLogger(total=10, metrics="loss", file=sys.stdout, live=False) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=4)
    00000000  5/10 (50%)  loss=0.25
    """

    def __init__(
        self,
        total: int | None = None,
        *,
        axis: str = "step",
        start: int = 0,
        metrics: str | Sequence[str] = (),
        file: IO[str] | None = None,
        live: bool | None = None,
        **options: Any,
    ) -> None:
        if total is not None and (not isinstance(total, int) or total < 1):
            raise LoggerOptionError(
                f"ProgressLogger: total={total!r}; it must be a whole number of at least 1, or None"
            )
        self.flush_interval = 0.1
        super().__init__(**options)
        self.total = total
        self._axis = axis
        self._start = start
        self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self._file = file
        self._live = live
        self._board = Board()
        self._open_runs = 0
        self._display: _Bars | _Lines | Ended | None = None

    def open(self, run: Run) -> ProgressWriter:
        self._board.runs[run.name] = RunBoard(run.name)
        self._open_runs += 1
        return ProgressWriter(self, run.name)

    def done(self, run: RunBoard) -> int:
        """How many steps a run has made."""
        count = int(run.steps[self._axis]) - self._start + 1 if self._axis in run.steps else run.records
        return count if self.total is None else min(count, self.total)

    def beside(self, runs: Sequence[RunBoard]) -> str:
        """The chosen metrics, the mean over the runs where there are several."""
        parts = []
        for key in dict.fromkeys(key for run in runs for key in run.latest):
            if any(fnmatchcase(key, pattern) for pattern in self._metrics):
                values = [run.latest[key] for run in runs if key in run.latest]
                parts.append(f"{key}={short(sum(values) / len(values))}")
        return " ".join(parts)

    def groups(self) -> list[tuple[str, list[RunBoard]]]:
        """The runs behind each bar."""
        runs = list(self._board.runs.values())
        if len(runs) > _MAX_BARS:
            return [(f"{len(runs)} runs", runs)]
        names = self._board.short_names()
        return [(names[run.name], [run]) for run in runs]

    def _draw(self) -> None:
        if self._display is None:
            file = self._file or sys.stderr
            live = file.isatty() if self._live is None else self._live
            self._display = _Bars(file) if live else _Lines(file)
        try:
            self._display.draw(self)
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):
                self._display.stop(self)
            self._display = Ended()

    def _closed(self) -> None:
        self._open_runs -= 1
        if self._open_runs == 0 and self._board.records():
            self._draw()
        if self._open_runs == 0 and self._display is not None:
            with contextlib.suppress(BrokenPipeError):
                self._display.stop(self)
            self._display = None


class ProgressWriter:
    def __init__(self, logger: ProgressLogger, name: str) -> None:
        self._logger = logger
        self._run = logger._board.runs[name]

    def write(self, logs: lox.logdict) -> None:
        self._run.add(logs)

    def flush(self) -> None:
        self._logger._draw()

    def close(self) -> None:
        self._logger._closed()


class _Bars:
    def __init__(self, file: IO[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        # Never started: it would draw on the terminal by itself.
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[beside]}", markup=False),
            auto_refresh=False,
        )
        self._tasks: dict[str, Any] = {}
        self._drawn = -1
        self._part = Part(file)

    def draw(self, logger: ProgressLogger) -> None:
        if self._drawn == (seen := logger._board.seen()):
            return  # each run is flushed, but one drawing shows them all
        self._drawn = seen
        groups = logger.groups()
        for title in [title for title in self._tasks if title not in dict(groups)]:
            self._progress.remove_task(self._tasks.pop(title))  # more runs came, and have one bar now
        for title, runs in groups:
            total = None if logger.total is None else logger.total * len(runs)
            done, beside = sum(map(logger.done, runs)), logger.beside(runs)
            if title not in self._tasks:
                self._tasks[title] = self._progress.add_task(title, total=total, beside="")
            self._progress.update(self._tasks[title], completed=done, total=total, beside=beside)
        self._part.show(self._progress)

    def stop(self, logger: ProgressLogger) -> None:
        self._part.close()


class _Lines:
    """A line for each tenth of the way, or each ten seconds where the end is not known, and one at the end."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._shown: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._started = time.monotonic()

    def draw(self, logger: ProgressLogger, last: bool = False) -> None:
        for title, runs in logger.groups():
            done = sum(map(logger.done, runs))
            seconds = time.monotonic() - self._started
            total = None if logger.total is None else logger.total * len(runs)
            tenth = int(seconds / 10) if total is None else 10 * done // total
            if done and (tenth > self._shown.get(title, 0) or (last and done != self._told.get(title))):
                self._shown[title], self._told[title] = tenth, done
                of = "" if total is None else f"/{total} ({100 * done // total}%)"
                speed = f"  {short(done / seconds)}/s" if seconds > 0.5 else ""  # of the first moments it says nothing
                self._file.write(f"{title}  {done}{of}{speed}  {logger.beside(runs)}".rstrip() + "\n")
        self._file.flush()

    def stop(self, logger: ProgressLogger) -> None:
        self.draw(logger, last=True)
