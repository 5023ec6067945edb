"""An output of a notebook that is replaced in place, from whatever thread, without widgets.

The output belongs to the cell that calls the logger. It is made while that cell runs, on the thread that calls, so every
kernel puts it below that cell. Later, the background thread only sends updates of it. Updates find their output by its id,
whichever cell runs meanwhile, and who saves the notebook keeps the last one.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import uuid
from typing import IO, Any, NamedTuple

from lox._html.table import block, dim

_log = logging.getLogger("lox.loggers")


class Cell(NamedTuple):
    """One execution of a cell."""

    execution: str
    code: str


def output_for(file: IO[str] | None, live: bool | None, waiting: str) -> Output | None:
    """An output where the program runs in a kernel, and nobody asked for a file or for lines.

    waiting: what it says until there is something to show.
    """
    shell = None if file is not None or live is False else kernel_shell()
    return None if shell is None else Output(shell, waiting)


def kernel_shell() -> Any | None:
    """The shell of the kernel that this program runs in, as in Jupyter, VS Code and Colab. None in scripts and terminals."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = getattr(ipython, "get_ipython", lambda: None)()
    # Kernels older than this class cannot update an output.
    can_update = hasattr(sys.modules.get("IPython.display"), "DisplayHandle")
    return shell if getattr(shell, "kernel", None) is not None and can_update else None


class Output:
    """One output below one cell at a time.

    When another cell calls the logger, or the same one is run again, the output goes on there. The one before keeps what it
    showed, unless it was still waiting.
    """

    def __init__(self, shell: Any, waiting: str) -> None:
        self._shell = shell
        self._lock = threading.Lock()
        self._id = ""
        self._cell: Cell | None = None
        self._content = {"text/html": block(dim(waiting)), "text/plain": waiting}
        self._is_waiting = True
        self._ended = False

    def called(self) -> None:
        """The user calls the logger: from now on the output is below the cell that runs.

        A thread of the user's own may have been started by an earlier cell, so it moves nothing.
        """
        if self._id and threading.current_thread() is not threading.main_thread():
            return
        cell = _running_cell(self._shell)
        if self._id and (cell is None or cell == self._cell):
            return
        with self._lock:
            self._move(cell)

    def show(self, html: str, text: str, is_waiting: bool = False) -> None:
        """Replaces what is shown.

        Args:
          text: the same for readers that have no HTML.
          is_waiting: nothing has happened yet.
        """
        # In an empty context, the kernel takes the cell that runs now for the one that sends. A client that has just
        # seen an earlier cell end would not listen to what comes from there.
        contextvars.Context().run(self._show, html, text, is_waiting)

    def _show(self, html: str, text: str, is_waiting: bool) -> None:
        with self._lock:
            cell = _running_cell(self._shell)
            if not self._id or self._runs_again(cell):
                self._move(cell)
            self._content, self._is_waiting = {"text/html": html, "text/plain": text}, is_waiting
            self._publish(self._content, update=True)

    def _runs_again(self, cell: Cell | None) -> bool:
        """Whether the cell of the output was started once more, and so has no outputs. A compiled function that is called
        there does not call the logger from Python."""
        return cell is not None and self._cell is not None and cell != self._cell and cell.code == self._cell.code

    def _move(self, cell: Cell | None) -> None:
        if self._id and self._is_waiting:
            self._publish({"text/plain": ""}, update=True)
        self._id, self._cell = f"lox-{uuid.uuid4().hex}", cell
        self._publish(self._content, update=False)

    def _publish(self, data: dict[str, str], update: bool) -> None:
        """A kernel that cannot be reached, as when it is shut down, is no reason to end the training."""
        if self._ended:
            return
        try:
            self._shell.display_pub.publish(data, {}, transient={"display_id": self._id}, update=update)
        except Exception:
            self._ended = True
            _log.debug("the notebook cannot be reached; its output stays as it is", exc_info=True)


def _running_cell(shell: Any) -> Cell | None:
    """The cell that runs now; None where the kernel does not tell."""
    try:
        request = shell.kernel.get_parent("shell")
        if request["header"]["msg_type"] != "execute_request":
            return None
        return Cell(request["header"]["msg_id"], request["content"]["code"])
    except (AttributeError, KeyError, TypeError, LookupError):
        return None
