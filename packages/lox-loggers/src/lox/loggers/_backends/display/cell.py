"""The notebook cell that runs."""

from __future__ import annotations

from typing import NamedTuple


class NotebookCell(NamedTuple):
    """One execution of a cell."""

    execution: object
    """Different each time."""
    name: str
    """Identifies the cell: its code, or an id."""
