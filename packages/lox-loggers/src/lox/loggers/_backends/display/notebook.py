"""An output of a notebook that is replaced in place, from whatever thread, without widgets.

The output belongs to the cell that calls the logger. It is made while that cell runs, on the thread that calls, so every
notebook puts it below that cell. Later, the background thread only sends updates of it. Updates find their output by its id,
whichever cell runs meanwhile, and who saves the notebook keeps the last one.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import IO, Protocol

from lox._html.table import block, dim
from lox.loggers._backends.display.cell import Cell
from lox.loggers._backends.display.ipython import find_kernel
from lox.loggers._backends.display.marimo_notebook import find_marimo

_log = logging.getLogger("lox.loggers")


class Notebook(Protocol):
    """Where outputs go. The data of an output is by its type, `text/html` and `text/plain`."""

    def running_cell(self) -> Cell | None:
        """The cell that runs now, on whatever thread; None where that is not known."""

    def calling_cell(self) -> Cell | None:
        """The cell that runs on this thread; None on other threads. One of the user's own may have been started by an earlier
        cell."""

    def create(self, output: str, data: Mapping[str, str]) -> None:
        """Adds an output to the cell that runs on this thread."""

    def update(self, output: str, data: Mapping[str, str]) -> None:
        """Replaces what an output shows. Called from any thread."""

    def finish(self, output: str) -> None:
        """Returns when the last update has been sent."""


def output_for(file: IO[str] | None, live: bool | None, waiting: str) -> Output | None:
    """An output where the program runs in a notebook, and nobody asked for a file or for lines.

    waiting: what it says until there is something to show.
    """
    notebook = None if file is not None or live is False else find_kernel() or find_marimo()
    return None if notebook is None else Output(notebook, waiting)


class Output:
    """One output below one cell at a time.

    When another cell calls the logger, or the same one is run again, the output goes on there. The one before keeps what it
    showed, unless it was still waiting.
    """

    def __init__(self, notebook: Notebook, waiting: str) -> None:
        self._notebook = notebook
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._id = ""
        self._cell: Cell | None = None
        self._content = {"text/html": block(dim(waiting)), "text/plain": waiting}
        self._is_waiting = True
        self._ended = False

    def called(self, before: Callable[[], object]) -> None:
        """The user calls the logger: from now on the output is below the cell that calls.

        before: shows the last state of what an earlier cell has done, before the output leaves that cell.
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
          text: the same for readers that have no HTML.
          is_waiting: nothing has happened yet.
        """
        with self._lock:
            cell = self._notebook.running_cell()
            if not self._id or self._runs_again(cell):
                self._move(cell)
            self._content, self._is_waiting = {"text/html": html, "text/plain": text}, is_waiting
            self._send(self._notebook.update, self._content)

    def close(self) -> None:
        """Leaves what was shown last."""
        with self._lock:
            self._finish()

    def _runs_again(self, cell: Cell | None) -> bool:
        """Whether the cell of the output was started once more, and so has no outputs. A compiled function that is called
        there does not call the logger from Python."""
        return cell is not None and self._cell is not None and cell != self._cell and cell.name == self._cell.name

    def _move(self, cell: Cell | None) -> None:
        if self._id and self._is_waiting:
            self._send(self._notebook.update, {"text/plain": ""})
        self._finish()
        self._id, self._cell = f"lox-{uuid.uuid4().hex}", cell
        self._send(self._notebook.create, self._content)

    def _finish(self) -> None:
        if self._id:
            self._notebook.finish(self._id)

    def _send(self, how: _Send, data: Mapping[str, str]) -> None:
        """A notebook that cannot be reached, as when its kernel is shut down, is no reason to end the training."""
        if self._ended:
            return
        try:
            how(self._id, data)
        except Exception:
            self._ended = True
            _log.debug("the notebook cannot be reached; its output stays as it is", exc_info=True)


class _Send(Protocol):
    def __call__(self, output: str, data: Mapping[str, str]) -> None: ...
