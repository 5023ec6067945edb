"""The rows and columns of a live table, the same on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lox.loggers._backends.display.board import Board
from lox.loggers._backends.display.numbers import short, whole
from lox.loggers._delivery.failures import records_phrase

# Up to this many runs have a row each. With more, each key has a row, with its mean and range over the runs.
MAX_ROWS = 12
_MAX_KEY_COLUMNS = 3


class SheetColumn(NamedTuple):
    name: str = ""
    is_key: bool = False
    """Whether its title (in the first column: its text) is a key."""
    only_course: bool = False
    """Whether it holds only trends."""


class Value(NamedTuple):
    text: str = ""
    trend: Sequence[float] = ()
    """The trend of the value."""


class Sheet(NamedTuple):
    title: str
    config: str
    progress: str
    """The latest steps of the runs, and their rate."""
    columns: list[SheetColumn]
    rows: list[list[Value]]


def sheet_of(board: Board) -> Sheet:
    """A row for each key of one run, for each of a few runs, or for each key over many runs."""
    if len(board.runs) == 1:
        return _of_keys(board)
    if len(board.runs) <= MAX_ROWS and len(board.metrics()) <= _MAX_KEY_COLUMNS:
        return _of_runs(board)
    return _over_runs(board)


def _of_keys(board: Board) -> Sheet:
    (run,) = board.runs.values()
    columns = [SheetColumn("key", is_key=True), SheetColumn("latest"), SheetColumn(only_course=True)]
    rows = [
        [Value(key), Value(short(value)), Value(trend=run.history[key].numbers())] for key, value in run.latest.items()
    ]
    return _sheet(run.name, board, columns, rows)


def _of_runs(board: Board) -> Sheet:
    keys, axes, names = board.metrics(), board.axes(), board.short_names()
    columns = [
        SheetColumn("run"),
        *map(SheetColumn, axes),
        *(SheetColumn(key, is_key=True) for key in keys),
        SheetColumn("/s"),
    ]
    rows = []
    for run in board.runs.values():
        steps = [Value(whole(run.steps[axis])) if axis in run.steps else Value() for axis in axes]
        values = [
            Value(short(run.latest[key]), run.history[key].numbers()) if key in run.latest else Value() for key in keys
        ]
        rows.append([Value(names[run.name]), *steps, *values, Value(short(run.rate()))])
    return _sheet(f"{len(board.runs)} runs", board, columns, rows)


def _over_runs(board: Board) -> Sheet:
    columns = [
        SheetColumn("key", is_key=True),
        *map(SheetColumn, ("mean", "min", "max")),
        SheetColumn(only_course=True),
    ]
    rows = []
    for key in board.metrics():
        latest = board.latest(key)
        numbers = [Value(short(float(number))) for number in (latest.mean(), latest.min(), latest.max())]
        rows.append([Value(key), *numbers, Value(trend=board.history(key).tolist())])
    return _sheet(f"{len(board.runs)} runs", board, columns, rows)


def _sheet(title: str, board: Board, columns: list[SheetColumn], rows: list[list[Value]]) -> Sheet:
    steps = []
    for axis in board.axes():
        low, high = board.step_range(axis)
        steps.append(f"{axis} {whole(low)}" if low == high else f"{axis} {whole(low)}..{whole(high)}")
    progress = ", ".join([*steps, records_phrase(board.records()), f"{short(board.rate())}/s"])
    return Sheet(title, board.config(), progress, columns, rows)
