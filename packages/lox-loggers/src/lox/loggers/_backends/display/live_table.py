"""The tables of a live display, as rich as the terminal is wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lox.loggers._backends.display.board import Board
from lox.loggers._backends.display.numbers import short, sparkline, whole
from lox.loggers._delivery.failures import records_phrase

# Up to so many runs have a row each; with more, a row is a key, with its mean and range over the runs.
MAX_ROWS = 12
_MAX_KEY_COLUMNS = 3


class _Detail(NamedTuple):
    """How much of a table is shown."""

    line: int
    """Characters of a sparkline, at most."""
    name: int
    """Characters of the name of a key, at most."""

    def sparkline(self, numbers: Any, most: int = 16) -> str:
        return sparkline(numbers, min(most, self.line)) if self.line else ""

    def key(self, name: str) -> str:
        # The end of a name tells more than its beginning.
        return name if len(name) <= self.name else "…" + name[1 - self.name :]


# From rich to sparse. Latest values, steps and rates are in all of them.
_DETAILS = [_Detail(16, 1000), _Detail(8, 1000), _Detail(0, 1000), *(_Detail(0, name) for name in (32, 20, 14, 10, 7))]


class LiveTable:
    """A table of the state of a board, with as much detail as fits the width that the terminal has when it is drawn."""

    def __init__(self, board: Board) -> None:
        self._build = _build(board)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.measure import Measurement

        unlimited = options.update(width=10_000)
        for detail in _DETAILS:
            table = self._build(detail)
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        yield table


def _build(board: Board) -> Callable[[_Detail], Any]:
    if len(board.runs) == 1:
        return lambda detail: _table_of_keys(board, detail)
    if len(board.runs) <= MAX_ROWS and len(board.metrics()) <= _MAX_KEY_COLUMNS:
        return lambda detail: _table_of_runs(board, detail)
    return lambda detail: _table_over_runs(board, detail)


def _caption(board: Board) -> str:
    steps = []
    for axis in board.axes():
        low, high = board.step_range(axis)
        steps.append(f"{axis} {whole(low)}" if low == high else f"{axis} {whole(low)}..{whole(high)}")
    progress = ", ".join([*steps, records_phrase(board.records()), f"{short(board.rate())}/s"])
    return f"{board.config()}\n{progress}".lstrip()


def _new_table(title: str, board: Board, columns: list[str]) -> Any:
    from rich.table import Table
    from rich.text import Text  # names and configs are not markup

    table = Table(title=Text(title), caption=Text(_caption(board)), title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or not column else "right", no_wrap=True)
    return table


def _table_of_keys(board: Board, detail: _Detail) -> Any:
    (run,) = board.runs.values()
    table = _new_table(run.name, board, ["key", "latest", *_line_column(detail)])
    for key, value in run.latest.items():
        table.add_row(detail.key(key), short(value), *_line_cell(detail, run.history[key].numbers()))
    return table


def _table_of_runs(board: Board, detail: _Detail) -> Any:
    keys, axes = board.metrics(), board.axes()
    table = _new_table(f"{len(board.runs)} runs", board, ["run", *axes, *map(detail.key, keys), "/s"])
    names = board.short_names()
    for run in board.runs.values():
        steps = [whole(run.steps[axis]) if axis in run.steps else "" for axis in axes]
        values = [
            f"{short(run.latest[key])} {detail.sparkline(run.history[key].numbers(), 8)}".rstrip()
            if key in run.latest
            else ""
            for key in keys
        ]
        table.add_row(names[run.name], *steps, *values, short(run.rate()))
    return table


def _table_over_runs(board: Board, detail: _Detail) -> Any:
    table = _new_table(f"{len(board.runs)} runs", board, ["key", "mean", "min", "max", *_line_column(detail)])
    for key in board.metrics():
        values = board.latest(key)
        numbers = (short(float(number)) for number in (values.mean(), values.min(), values.max()))
        table.add_row(detail.key(key), *numbers, *_line_cell(detail, board.history(key)))
    return table


def _line_column(detail: _Detail) -> list[str]:
    return [""] if detail.line else []


def _line_cell(detail: _Detail, numbers: Any) -> list[str]:
    return [detail.sparkline(numbers)] if detail.line else []
