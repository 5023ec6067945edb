"""`ProgressLogger`: a progress bar driven by what is logged."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import IO, Any

import numpy as np

import lox
from lox.loggers._backends.display.bars import WAITING, Bar, BarPlace, NoBars, place_for
from lox.loggers._backends.display.board import Board, RunBoard
from lox.loggers._backends.display.notebook import output_for
from lox.loggers._backends.display.numbers import short
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import Run
from lox.loggers._errors import LoggerOptionError

_MAX_BARS = 8  # with more runs than this there is one bar for all


class ProgressLogger(Logger):
    """Shows the progress of each run, with the elapsed and the remaining time.

    Until the first record, a bar says that the program is being compiled. Runs at the same step, such as the lanes of a `vmap`,
    share one bar.

    Args:
      total: the number of steps; None if it is not known.
      axis: the step axis that moves the bar. Only records with this axis count. If no record has any step, the records
        themselves are counted.
      start: the number of the first step. With `start=1`, the record of step 100 is the hundredth. For a program that resumes
        at step 500, pass `start=500`, and as `total` the number of steps that are left.
      metrics: the keys whose latest values are shown next to the bar; `fnmatch` patterns work.
      file: where to write; by default the output of the cell in a notebook, and standard error elsewhere. A file that is not
        a terminal gets a line for each tenth of the total (or every ten seconds, without a total) and one at the end.
      live: True to always draw bars, False to always write lines; by default the kind of `file` decides.

    >>> import sys
    >>> with lox.loggers.ProgressLogger(total=10, metrics="loss", file=sys.stdout, live=False) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=4)
    00000000  5/10 (50%)  elapsed 0:00  remaining 0:00  loss=0.25
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
        self._output = output_for(file, live, WAITING)
        super().__init__(**options)
        self.total = total
        self._axis = axis
        self._start = start
        self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self._file = file
        self._live = live
        self._board = Board()
        self._ways: dict[str, _Way] = {}
        self._started = time.monotonic()
        self._open_runs = 0
        self._place: BarPlace | None = None
        self._drawn: object = None

    def open(self, run: Run) -> ProgressWriter:
        if not self._board.runs:
            self._started = time.monotonic()
        self._board.runs[run.name] = RunBoard(run.name)
        self._ways[run.name] = _Way(self._axis, self._start, self.total)
        self._open_runs += 1
        writer = ProgressWriter(self, run.name)
        if self._where().live:
            self._draw()  # show a bar while the program is compiled
        return writer

    def _listeners(self) -> list[Callable[[], object]]:
        return [] if self._output is None else [functools.partial(self._output.called, self._sink.flush)]

    def _where(self) -> BarPlace:
        if self._place is None:
            self._place = place_for(self._file, self._live, self._output)
        return self._place

    def done(self, run: RunBoard) -> int:
        """How many steps a run has done."""
        return self._ways[run.name].done(ended=self._open_runs == 0)

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def beside(self, runs: Sequence[RunBoard]) -> str:
        """The chosen metrics, averaged over the runs."""
        parts = []
        for key in dict.fromkeys(key for run in runs for key in run.latest):
            if any(fnmatchcase(key, pattern) for pattern in self._metrics):
                values = [run.latest[key] for run in runs if key in run.latest]
                parts.append(f"{key}={short(sum(values) / len(values))}")
        return " ".join(parts)

    def bars(self, last: bool = False) -> list[Bar]:
        """The bars to show: one for all runs if they are at the same step, or if there are too many."""
        runs = list(self._board.runs.values())
        done = list(map(self.done, runs))
        if len(runs) > 1 and len(set(done)) == 1:
            return [self._bar(f"{len(runs)} runs", done[0], self.total, runs, last)]
        if len(runs) > _MAX_BARS:
            return [self._bar(f"{len(runs)} runs", sum(done), self.total and self.total * len(runs), runs, last)]
        names = self._board.short_names()
        each = zip(runs, done, strict=True)
        return [self._bar(names[run.name], number, self.total, [run], last) for run, number in each]

    def _bar(self, title: str, done: int, total: int | None, runs: Sequence[RunBoard], last: bool) -> Bar:
        compiling = not last and not any(run.seen for run in runs)
        return Bar(title, done, total, self.elapsed(), self.beside(runs), compiling)

    def missing_axis(self) -> str:
        """The hint if records had steps, but none along the chosen axis."""
        others = {axis for way in self._ways.values() for axis in way.other_axes}
        if not others or any(way.last is not None for way in self._ways.values()):
            return ""
        return f"no record had the step axis {self._axis!r}. Pass axis= with one of {', '.join(sorted(others))}"

    def _draw(self, last: bool = False) -> None:
        place = self._where()
        state = (self._board.seen(), len(self._board.runs), last)
        if self._drawn == state:
            return  # every run is flushed, but one drawing shows them all
        self._drawn = state
        try:
            place.show(self.bars(last), last, self.missing_axis() if last else "")
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):
                place.close()
            self._place = NoBars()

    def _closed(self) -> None:
        self._open_runs -= 1
        if self._open_runs == 0 and self._board.records():
            self._draw(last=True)
        if self._open_runs == 0 and self._place is not None:
            with contextlib.suppress(BrokenPipeError):
                self._place.close()
            self._place = self._drawn = None


class ProgressWriter:
    def __init__(self, logger: ProgressLogger, name: str) -> None:
        self._logger = logger
        self._run = logger._board.runs[name]

    def write(self, logs: lox.logdict) -> None:
        self._run.add(logs)
        self._logger._ways[self._run.name].add(logs)

    def flush(self) -> None:
        self._logger._draw()

    def close(self) -> None:
        self._logger._closed()


class _Way:
    """The progress of a run along its axis."""

    def __init__(self, axis: str, start: int, total: int | None) -> None:
        self._axis = axis
        self._start = start
        self._total = total
        self._stride = 1.0
        self._without_steps = 0
        self.last: float | None = None
        self.other_axes: set[str] = set()

    def add(self, logs: lox.logdict) -> None:
        stepped = {key for by_key in logs.steps.values() for key in by_key}
        counts = [int(count) for key, count in logs.counts.items() if key not in stepped]
        self._without_steps += max(counts, default=0)
        self.other_axes.update(axis for axis, by_key in logs.steps.items() if by_key and axis != self._axis)
        columns = [np.asarray(column, np.float64) for column in logs.steps.get(self._axis, {}).values()]
        steps = np.concatenate(columns) if columns else np.empty(0)
        steps = np.unique(steps[np.isfinite(steps)])
        if not len(steps):
            return
        before = [*([] if self.last is None else [self.last]), *steps[-2:-1].tolist()]
        last = float(steps[-1])
        if before and last > max(before):
            self._stride = last - max(before)
        self.last = (
            last if self.last is None else max(self.last, last)
        )  # records that are logged rarely may arrive late

    def done(self, ended: bool) -> int:
        """How many steps were done. At the end, the steps after the last record count as done if no further record was due
        before the total: with `interval=10`, the last nine steps have no record."""
        if self.last is None:
            count = 0 if self.other_axes else self._without_steps
        else:
            count = int(self.last) - self._start + 1
            if ended and self._total is not None and count - 1 + self._stride >= self._total:
                count = self._total
        return max(count if self._total is None else min(count, self._total), 0)
