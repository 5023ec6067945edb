"""`ConsoleLogger`: a live table on a terminal and in a notebook, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

import lox
from lox.loggers._backends.display.board import Board, RunBoard
from lox.loggers._backends.display.live_table import LiveTable
from lox.loggers._backends.display.notebook import Output, output_for
from lox.loggers._backends.display.numbers import short, whole
from lox.loggers._backends.display.screen import NoDisplay, Part
from lox.loggers._backends.display.sheet import MAX_ROWS
from lox.loggers._delivery.failures import records_phrase
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import Run
from lox.loggers._errors import LoggerOptionError

_FASTEST = 0.1  # seconds between two drawings in a notebook, at least: servers drop messages that come too fast


class ConsoleLogger(Logger):
    """Shows the latest values, their trends, and how fast records arrive.

    Args:
      interval: seconds between two lines, if `file` is not a terminal. A table is drawn four times as often.
      file: where to write; by default the output of the cell in a notebook, and standard output elsewhere.
      live: True to always draw a table, False to always write lines; by default the kind of `file` decides.
      plot: the keys whose curves are drawn with the table; `fnmatch` patterns work.

    >>> import sys
    >>> with lox.loggers.ConsoleLogger(file=sys.stdout) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    0000000000000000  step=3  loss=0.25  (1 record...)
    """

    def __init__(
        self,
        *,
        interval: float = 1.0,
        file: IO[str] | None = None,
        live: bool | None = None,
        plot: str | Sequence[str] = (),
        **options: Any,
    ) -> None:
        if not isinstance(interval, (int, float)) or interval < 0:
            raise LoggerOptionError(f"ConsoleLogger: interval={interval!r}; it must be a number of seconds, at least 0")
        self._plot = _check_plot(plot)
        self._file = file
        self._live = live
        self._output = output_for(file, live, "waiting for records")
        self.flush_interval = interval / 4 if self._is_live() else interval  # each flush draws
        if self._output is not None:
            self.flush_interval = max(self.flush_interval, _FASTEST)
        super().__init__(**options)
        self._board = Board()
        self._open_runs = 0
        self._changed = False
        self._display: _Notebook | _Table | _Lines | NoDisplay | None = None

    def open(self, run: Run) -> ConsoleWriter:
        self._board.runs[run.name] = RunBoard(run.name, run.plain_config)
        self._open_runs += 1
        return ConsoleWriter(self, run.name)

    def _listeners(self) -> list[Callable[[], object]]:
        return [] if self._output is None else [functools.partial(self._output.called, self._sink.flush)]

    def _is_live(self) -> bool:
        if self._live is None:
            return self._output is not None or (self._file or sys.stdout).isatty()
        return self._live

    def _new_display(self) -> _Notebook | _Table | _Lines:
        if self._output is not None:
            return _Notebook(self._output, self._plot)
        file = self._file or sys.stdout
        return _Table(file, self._plot) if self._is_live() else _Lines(file)

    def _draw(self) -> None:
        if not self._changed:
            return  # every run is flushed, but one drawing shows them all
        self._changed = False
        if self._display is None:
            self._display = self._new_display()
        try:
            self._display.draw(self._board)
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):
                self._display.stop()
            self._display = NoDisplay()

    def _closed(self) -> None:
        self._open_runs -= 1
        self._draw()
        if self._open_runs == 0 and self._display is not None:
            with contextlib.suppress(BrokenPipeError):
                self._display.stop()
            self._display = None


class ConsoleWriter:
    def __init__(self, logger: ConsoleLogger, name: str) -> None:
        self._logger = logger
        self._run = logger._board.runs[name]

    def write(self, logs: lox.logdict) -> None:
        self._run.add(logs)
        self._logger._changed = True

    def flush(self) -> None:
        self._logger._draw()

    def close(self) -> None:
        self._logger._closed()


class _Lines:
    """A line for each run, or for all of them, with the latest values."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._shown: dict[str, int] = {}

    def draw(self, board: Board) -> None:
        if len(board.runs) <= MAX_ROWS:
            for run in board.runs.values():
                self._show(run.name, run.seen, run.config_text(), _run_line(run))
        else:
            self._show(f"{len(board.runs)} runs", board.seen(), board.config(), _summary_line(board))
        self._file.flush()

    def stop(self) -> None:
        pass

    def _show(self, title: str, seen: int, config: str, line: str) -> None:
        if self._shown.get(title, 0) == seen:  # nothing new
            return
        if config and title not in self._shown:
            line = f"{config}  {line}"
        self._shown[title] = seen
        self._file.write(f"{title}  {line}\n")


class _Table:
    """A table that is drawn in place, and curves below it."""

    def __init__(self, file: IO[str], plot: Sequence[str]) -> None:
        self._part = Part(file)
        self._plot = plot

    def draw(self, board: Board) -> None:
        self._part.show(LiveTable(board) if not self._plot else self._with_charts(board))

    def _with_charts(self, board: Board) -> Any:
        from rich.console import Group

        from lox.loggers._backends.display.chart import TerminalCharts, panels_of

        return Group(LiveTable(board), TerminalCharts(panels_of(board, self._plot)))

    def stop(self) -> None:
        self._part.close()


class _Notebook:
    """A table in the output of a cell, and curves above it."""

    def __init__(self, output: Output, plot: Sequence[str]) -> None:
        self._output = output
        self._plot = plot

    def draw(self, board: Board) -> None:
        from lox.loggers._backends.display.live_html import live_html

        lines = io.StringIO()
        _Lines(lines).draw(board)
        self._output.show(live_html(board, self._plot), lines.getvalue().rstrip())

    def stop(self) -> None:
        self._output.close()


def _check_plot(plot: Any) -> tuple[str, ...]:
    patterns = (plot,) if isinstance(plot, str) else plot
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise LoggerOptionError(
            f"ConsoleLogger: plot={plot!r}; it must be a key, a pattern such as 'train/*', or several of them"
        )
    return tuple(patterns)


def _run_line(run: RunBoard) -> str:
    steps = [f"{axis}={whole(step)}" for axis, step in run.steps.items()]
    values = [f"{key}={short(value)}" for key, value in run.latest.items()]
    return "  ".join([*steps, *values, f"({records_phrase(run.records)}, {short(run.rate())}/s)"])


def _summary_line(board: Board) -> str:
    parts = []
    for axis in board.axes():
        low, high = board.step_range(axis)
        parts.append(f"{axis}={whole(low)}" if low == high else f"{axis}={whole(low)}..{whole(high)}")
    for key in board.metrics():
        values = board.latest(key)
        parts.append(
            f"{key}={short(float(values.mean()))} [{short(float(values.min()))}, {short(float(values.max()))}]"
        )
    return "  ".join([*parts, f"({records_phrase(board.records())}, {short(board.rate())}/s)"])
