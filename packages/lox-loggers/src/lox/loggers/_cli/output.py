"""What the command prints: tables and notes, without control characters."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lox.loggers._backends.display.board import printable


def table(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows of cells as columns of text."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "".join(f"{indent}{line.rstrip()}\n" for line in lines)


def note(text: str) -> None:
    """Prints a remark about the input to standard error, apart from the result."""
    sys.stderr.write(f"lox: {lines(text)}\n")


def lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
