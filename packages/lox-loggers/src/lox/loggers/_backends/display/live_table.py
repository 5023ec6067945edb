"""The table of a live display on a terminal, with as much detail as fits its width."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from lox.loggers._backends.display.board import Board
from lox.loggers._backends.display.numbers import sparkline
from lox.loggers._backends.display.sheet import Sheet, SheetColumn, Value, sheet_of


class _Detail(NamedTuple):
    """How much of a table is shown."""

    line: int
    """Characters of a sparkline, at most."""
    name: int
    """Characters of the name of a key, at most."""

    def key(self, name: str) -> str:
        # The end of a name is more informative than its beginning.
        return name if len(name) <= self.name else "…" + name[1 - self.name :]


# From most to least detail. All of them have the latest values, steps and rates.
_DETAILS = [_Detail(16, 1000), _Detail(8, 1000), _Detail(0, 1000), *(_Detail(0, name) for name in (32, 20, 14, 10, 7))]
_BESIDE_A_NUMBER = 8  # characters of a sparkline, at most


class LiveTable:
    """A table of the state of a board, with as much detail as fits the width of the terminal when it is drawn."""

    def __init__(self, board: Board) -> None:
        self._sheet = sheet_of(board)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.measure import Measurement

        unlimited = options.update(width=10_000)
        for detail in _DETAILS:
            table = _table(self._sheet, detail)
            if Measurement.get(console, unlimited, table).maximum <= options.max_width:
                break
        yield table


def _table(sheet: Sheet, detail: _Detail) -> Any:
    from rich.table import Table
    from rich.text import Text  # names and configs are not markup

    caption = Text(f"{sheet.config}\n{sheet.progress}".lstrip())
    table = Table(title=Text(sheet.title), caption=caption, title_justify="left", caption_justify="left")
    shown = [place for place, column in enumerate(sheet.columns) if detail.line or not column.only_course]
    for place in shown:
        column = sheet.columns[place]
        name = detail.key(column.name) if column.is_key else column.name
        table.add_column(name, justify="left" if place == 0 or column.only_course else "right", no_wrap=True)
    for row in sheet.rows:
        table.add_row(*(_cell(row[place], sheet.columns[place], place, detail) for place in shown))
    return table


def _cell(value: Value, column: SheetColumn, place: int, detail: _Detail) -> str:
    if place == 0:
        return detail.key(value.text) if column.is_key else value.text
    most = detail.line if column.only_course else min(detail.line, _BESIDE_A_NUMBER)
    line = sparkline(value.trend, most) if most and len(value.trend) else ""
    return line if column.only_course else f"{value.text} {line}".rstrip()
