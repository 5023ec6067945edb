"""`ConsoleLogger`: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import contextlib
import sys
from typing import IO, Any

import lox
from lox.loggers._backends.display.board import Board, RunBoard
from lox.loggers._backends.display.live_table import MAX_ROWS, LiveTable
from lox.loggers._backends.display.numbers import short, whole
from lox.loggers._backends.display.screen import Ended, Part
from lox.loggers._delivery.failures import records_phrase
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.run import Run
from lox.loggers._errors import LoggerOptionError


class ConsoleLogger(Logger):
    """Shows the latest values, how they went and how fast records come.

    Args:
      interval: seconds between two lines where `file` is not a terminal; a table is drawn four times as often.
      file: where to; standard output if None.
      live: True or False to have the table or the lines whatever `file` is.

    >>> import sys
    >>> with lox.loggers.ConsoleLogger(file=sys.stdout) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    0000000000000000  step=3  loss=0.25  (1 record...)
    """

    def __init__(
        self, *, interval: float = 1.0, file: IO[str] | None = None, live: bool | None = None, **options: Any
    ) -> None:
        if not isinstance(interval, (int, float)) or interval < 0:
            raise LoggerOptionError(f"ConsoleLogger: interval={interval!r}; it must be a number of seconds, at least 0")
        self._file = file
        self._live = live
        self.flush_interval = interval / 4 if self._is_live() else interval  # flushing is drawing
        super().__init__(**options)
        self._board = Board()
        self._open_runs = 0
        self._changed = False
        self._display: _Table | _Lines | Ended | None = None

    def open(self, run: Run) -> ConsoleWriter:
        self._board.runs[run.name] = RunBoard(run.name, run.plain_config)
        self._open_runs += 1
        return ConsoleWriter(self, run.name)

    def _is_live(self) -> bool:
        return (self._file or sys.stdout).isatty() if self._live is None else self._live

    def _draw(self) -> None:
        if not self._changed:
            return  # each run is flushed, but one drawing shows them all
        self._changed = False
        if self._display is None:
            file = self._file or sys.stdout
            self._display = _Table(file) if self._is_live() else _Lines(file)
        try:
            self._display.draw(self._board)
        except BrokenPipeError:
            with contextlib.suppress(BrokenPipeError):
                self._display.stop()
            self._display = Ended()

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
        if self._shown.get(title, 0) == seen:  # nothing new, no line
            return
        if config and title not in self._shown:
            line = f"{config}  {line}"
        self._shown[title] = seen
        self._file.write(f"{title}  {line}\n")


class _Table:
    """A table that is drawn in place."""

    def __init__(self, file: IO[str]) -> None:
        self._part = Part(file)

    def draw(self, board: Board) -> None:
        self._part.show(LiveTable(board))

    def stop(self) -> None:
        self._part.close()


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
