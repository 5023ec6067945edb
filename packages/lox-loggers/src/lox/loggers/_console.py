"""`ConsoleLogger`: a live table on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from typing import IO, Any

import lox
from lox.loggers._board import Board, RunBoard
from lox.loggers._errors import LoggerOptionError
from lox.loggers._logger import Logger
from lox.loggers._numbers import short, sparkline
from lox.loggers._run import Run

# Up to so many runs have a row each; with more, a row is a key, with its mean and range over the runs.
_MAX_ROWS = 12
_MAX_KEY_COLUMNS = 3


class ConsoleLogger(Logger):
    """Shows the latest values, how they went and how fast records come.

    Args:
      interval: seconds between two lines where `file` is not a terminal; a table is drawn four times as often.
      file: where to; standard output if None.
      live: True or False to have the table or the lines whatever `file` is.

    >>> import sys
    >>> with lox.loggers.ConsoleLogger(file=sys.stdout) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    0000000000000000  step=3  loss=0.25  (1 records...)
    """

    def __init__(
        self, *, interval: float = 1.0, file: IO[str] | None = None, live: bool | None = None, **options: Any
    ) -> None:
        if interval < 0:
            raise LoggerOptionError(f"ConsoleLogger: interval={interval!r}; it must not be negative")
        self.flush_interval = interval  # so that the last records are shown when no more come
        super().__init__(**options)
        self._board = Board()
        self._open_runs = 0
        self._interval = interval
        self._file = file
        self._live = live
        self._display: _Table | _Lines | None = None

    def open(self, run: Run) -> ConsoleWriter:
        self._board.runs[run.name] = RunBoard(run.name)
        self._open_runs += 1
        return ConsoleWriter(self, run.name)

    def _draw(self, *, now: bool = False) -> None:
        if self._display is None:
            file = self._file or sys.stdout
            live = file.isatty() if self._live is None else self._live
            self._display = _Table(file, self._interval / 4) if live else _Lines(file, self._interval)
        self._display.draw(self._board, now)

    def _closed(self) -> None:
        self._open_runs -= 1
        self._draw(now=True)
        if self._open_runs == 0 and self._display is not None:
            self._display.stop()
            self._display = None


class ConsoleWriter:
    def __init__(self, logger: ConsoleLogger, name: str) -> None:
        self._logger = logger
        self._run = logger._board.runs[name]

    def write(self, logs: lox.logdict) -> None:
        self._run.add(logs)
        self._logger._draw()

    def flush(self) -> None:
        self._logger._draw(now=True)

    def close(self) -> None:
        self._logger._closed()


class _Lines:
    """A line now and then, with the latest values."""

    def __init__(self, file: IO[str], interval: float) -> None:
        self._file = file
        self._interval = interval
        self._next = time.monotonic() + interval
        self._shown: dict[str, int] = {}

    def draw(self, board: Board, now: bool) -> None:
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._interval
        if len(board.runs) <= _MAX_ROWS:
            for run in board.runs.values():
                self._show(run.name, run.records, _run_line(run))
        else:
            self._show("", board.records(), _summary_line(board))
        self._file.flush()

    def stop(self) -> None:
        pass

    def _show(self, name: str, records: int, line: str) -> None:
        if self._shown.get(name, 0) != records:  # nothing new, no line
            self._shown[name] = records
            self._file.write(line + "\n")


class _Table:
    """A table that is drawn in place."""

    def __init__(self, file: IO[str], interval: float) -> None:
        from rich.console import Console
        from rich.live import Live

        self._interval = interval
        self._next = 0.0
        self._drawn = -1
        self._live = Live(console=Console(file=file), auto_refresh=False)
        self._live.start()

    def draw(self, board: Board, now: bool) -> None:
        if self._drawn == board.records() or (not now and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + self._interval
        self._drawn = board.records()
        self._live.update(_table(board), refresh=True)

    def stop(self) -> None:
        self._live.stop()


def _run_line(run: RunBoard) -> str:
    steps = [f"{axis}={short(step)}" for axis, step in run.steps.items()]
    values = [f"{key}={short(value)}" for key, value in run.latest.items()]
    return "  ".join([run.name, *steps, *values, f"({run.records} records, {short(run.rate())}/s)"])


def _summary_line(board: Board) -> str:
    parts = [f"{len(board.runs)} runs"]
    for axis in board.axes():
        low, high = board.step_range(axis)
        parts.append(f"{axis}={short(low)}" if low == high else f"{axis}={short(low)}..{short(high)}")
    for key in board.metrics():
        values = board.latest(key)
        parts.append(
            f"{key}={short(float(values.mean()))} [{short(float(values.min()))}, {short(float(values.max()))}]"
        )
    return "  ".join([*parts, f"({board.records()} records, {short(board.rate())}/s)"])


def _table(board: Board) -> Any:
    if len(board.runs) == 1:
        return _table_of_keys(board)
    if len(board.runs) <= _MAX_ROWS and len(board.metrics()) <= _MAX_KEY_COLUMNS:
        return _table_of_runs(board)
    return _table_over_runs(board)


def _caption(board: Board) -> str:
    steps = []
    for axis in board.axes():
        low, high = board.step_range(axis)
        steps.append(f"{axis} {short(low)}" if low == high else f"{axis} {short(low)}..{short(high)}")
    return ", ".join([*steps, f"{board.records()} records", f"{short(board.rate())}/s"])


def _new_table(title: str, board: Board, columns: list[str]) -> Any:
    from rich.table import Table

    table = Table(title=title, caption=_caption(board), title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or not column else "right", no_wrap=True)
    return table


def _table_of_keys(board: Board) -> Any:
    (run,) = board.runs.values()
    table = _new_table(run.name, board, ["key", "latest", ""])
    for key, value in run.latest.items():
        table.add_row(key, short(value), sparkline(run.history[key]))
    return table


def _table_of_runs(board: Board) -> Any:
    keys, axes = board.metrics(), board.axes()
    table = _new_table(f"{len(board.runs)} runs", board, ["run", *axes, *keys, "/s"])
    for run in board.runs.values():
        steps = [short(run.steps[axis]) if axis in run.steps else "" for axis in axes]
        values = [
            f"{short(run.latest[key])} {sparkline(run.history[key], 8)}" if key in run.latest else "" for key in keys
        ]
        table.add_row(board.short_name(run), *steps, *values, short(run.rate()))
    return table


def _table_over_runs(board: Board) -> Any:
    table = _new_table(f"{len(board.runs)} runs", board, ["key", "mean", "min", "max", ""])
    for key in board.metrics():
        values = board.latest(key)
        numbers = (short(float(number)) for number in (values.mean(), values.min(), values.max()))
        table.add_row(key, *numbers, sparkline(board.history(key)))
    return table
