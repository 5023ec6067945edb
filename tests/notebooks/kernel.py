"""Real notebooks in a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbclient
import nbformat

from tests.html_checks import Page

PATIENCE = 300  # seconds for a cell; only a machine that is stuck reaches it
FAILS = "# fails\n"
"""Before the code of a cell that is meant to raise."""


def notebook_of(cells: dict[str, str]) -> Any:
    """A notebook with these cells, which have names."""
    made = []
    for name, code in cells.items():
        cell = nbformat.v4.new_code_cell(code)
        cell.metadata["name"] = name
        if code.startswith(FAILS):
            cell.metadata["tags"] = ["raises-exception"]
        made.append(cell)
    return nbformat.v4.new_notebook(cells=made)


def execute(notebook: Any, folder: Path) -> dict[str, list[Any]]:
    """Runs all cells, and returns the outputs that a saved notebook would have, by the names of the cells."""
    client = nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3")
    client.resources = {"metadata": {"path": str(folder)}}
    client.execute()
    return {cell.metadata.get("name", str(n)): cell.get("outputs", []) for n, cell in enumerate(notebook.cells)}


def shown(output: Any) -> Page:
    """What an output shows, checked to be harmless."""
    return Page(output.data["text/html"])
