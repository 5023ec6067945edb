"""An output of a notebook that is updated in place, from any thread, without widgets.

The output belongs to the cell that calls the logger. It is created while that cell runs, on the calling thread, so every
notebook puts it below that cell. Later, the background thread only sends updates. An update finds its output by its id,
whichever cell is running, and a saved notebook keeps the last one.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import IO, Protocol

from lox._html.table import block, dim
from lox.loggers._backends.display.cell import NotebookCell
from lox.loggers._backends.display.ipython import find_kernel
from lox.loggers._backends.display.marimo_notebook import find_marimo

_log = logging.getLogger("lox.loggers")


class Notebook(Protocol):
    """Where outputs go. The data of an output maps types, `text/html` and `text/plain`, to text."""

    def running_cell(self) -> NotebookCell | None:
        """The cell that runs now, on any thread; None if that is not known."""

    def calling_cell(self) -> NotebookCell | None:
        """The cell that runs on this thread; None on threads that run no cell, which an earlier cell may have started."""

    def create(self, output: str, data: Mapping[str, str]) -> None:
        """Adds an output to the cell that runs on this thread."""

    def update(self, output: str, data: Mapping[str, str]) -> None:
        """Replaces what an output shows. Called from any thread."""

    def finish(self, output: str) -> None:
        """Returns when the last update has been sent."""


def output_for(file: IO[str] | None, live: bool | None, waiting: str) -> Output | None:
    """An output, if the program runs in a notebook and the user did not ask for a file or for lines.

    Args:
      waiting: what it says until there is something to show.
    """
    notebook = None if file is not None or live is False else find_kernel() or find_marimo()
    return None if notebook is None else Output(notebook, waiting)


class Output:
    """One output below one cell at a time.

    When another cell calls the logger, or the same cell runs again, the output moves there. The old place keeps what it showed
    last, unless it was still waiting.
    """

    def __init__(self, notebook: Notebook, waiting: str) -> None:
        self._notebook = notebook
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._id = ""
        self._cell: NotebookCell | None = None
        self._content = {"text/html": block(dim(waiting)), "text/plain": waiting}
        self._is_waiting = True
        self._ended = False

    def called(self, before: Callable[[], object]) -> None:
        """Called when the user calls the logger: from now on the output is below the calling cell.

        Args:
          before: shows the last state of an earlier cell, before the output leaves that cell.
        """
        cell = self._notebook.calling_cell()
        if (self._id and (cell is None or cell == self._cell)) or os.getpid() != self._process:
            return  # also in a forked child, which has the parent's lock and sockets
        if self._id:
            before()
        with self._lock:
            self._move(cell or self._notebook.running_cell())

    def show(self, html: str, text: str, is_waiting: bool = False) -> None:
        """Replaces what is shown.

        Args:
          text: the same as plain text, for readers without HTML.
          is_waiting: whether nothing has happened yet.
        """
        with self._lock:
            cell = self._notebook.running_cell()
            if not self._id or self._runs_again(cell):
                self._move(cell)
            self._content, self._is_waiting = {"text/html": html, "text/plain": text}, is_waiting
            self._send(self._notebook.update, self._content)

    def close(self) -> None:
        """Leaves the last state visible."""
        with self._lock:
            self._finish()

    def _runs_again(self, cell: NotebookCell | None) -> bool:
        """Whether the cell of the output was run again, which cleared its outputs. If it only calls a compiled function, the
        logger is not called from Python."""
        return cell is not None and self._cell is not None and cell != self._cell and cell.name == self._cell.name

    def _move(self, cell: NotebookCell | None) -> None:
        if self._id and self._is_waiting:
            self._send(self._notebook.update, {"text/plain": ""})
        self._finish()
        self._id, self._cell = f"lox-{uuid.uuid4().hex}", cell
        self._send(self._notebook.create, self._content)

    def _finish(self) -> None:
        if self._id:
            self._notebook.finish(self._id)

    def _send(self, how: _Send, data: Mapping[str, str]) -> None:
        """Sends an output. If the notebook cannot be reached, as when its kernel shuts down, training continues."""
        if self._ended:
            return
        try:
            how(self._id, data)
        except Exception:
            self._ended = True
            _log.debug("the notebook cannot be reached; its output stays as it is", exc_info=True)


class _Send(Protocol):
    def __call__(self, output: str, data: Mapping[str, str]) -> None: ...
