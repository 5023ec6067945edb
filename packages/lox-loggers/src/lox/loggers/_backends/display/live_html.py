"""The table of a live display in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lox._html.curve import line, sparkline
from lox._html.table import Cell, Markup, block, dim, more, table, title
from lox.loggers._backends.display.board import Board
from lox.loggers._backends.display.chart import charts_html, panels_of
from lox.loggers._backends.display.sheet import Sheet, SheetColumn, Value, sheet_of

# Sent several times a second, so it has to be small: servers drop what exceeds a megabyte a second.
_MOST_ROWS = 30
_POINTS = 40


def live_html(board: Board, plot: Sequence[str]) -> str:
    sheet = sheet_of(board)
    return block(
        title(sheet.title, sheet.progress),
        _config(sheet),
        charts_html(panels_of(board, plot)) if plot else Markup(""),
        table(list(_columns(sheet.columns)), [list(_cells(row, sheet.columns)) for row in sheet.rows[:_MOST_ROWS]]),
        more(len(sheet.rows) - _MOST_ROWS, "rows"),
    )


def _config(sheet: Sheet) -> Markup:
    return Markup(f"<div>{dim(sheet.config)}</div>" if sheet.config else "")


def _columns(columns: Sequence[SheetColumn]) -> Iterator[str]:
    for column in columns:
        yield column.name
        if column.is_key and column is not columns[0]:
            yield ""  # the column of its curves has no title


def _cells(row: Sequence[Value], columns: Sequence[SheetColumn]) -> Iterator[str | Cell]:
    for value, column in zip(row, columns, strict=True):
        if not column.only_course:
            yield value.text
        if column.only_course or (column.is_key and column is not columns[0]):
            yield sparkline(line(range(len(value.trend)), value.trend), column.name, width=110, points=_POINTS)
