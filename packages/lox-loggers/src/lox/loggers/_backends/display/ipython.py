"""Outputs in an IPython kernel: Jupyter, VS Code, Colab."""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lox.loggers._backends.display.cell import NotebookCell


def find_kernel() -> Kernel | None:
    """The kernel that this program runs in; None in scripts and terminals."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = getattr(ipython, "get_ipython", lambda: None)()
    # Kernels older than this class cannot update an output.
    can_update = hasattr(sys.modules.get("IPython.display"), "DisplayHandle")
    return Kernel(shell) if getattr(shell, "kernel", None) is not None and can_update else None


class Kernel:
    """Sends outputs to the clients of the kernel."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def running_cell(self) -> NotebookCell | None:
        try:
            request = _in_no_cell(self._shell.kernel.get_parent, "shell")
            if request["header"]["msg_type"] != "execute_request":
                return None
            return NotebookCell(request["header"]["msg_id"], request["content"]["code"])
        except (AttributeError, KeyError, TypeError, LookupError):
            return None

    def calling_cell(self) -> NotebookCell | None:
        return self.running_cell() if threading.current_thread() is threading.main_thread() else None

    def create(self, output: str, data: Mapping[str, str]) -> None:
        self._shell.display_pub.publish(dict(data), {}, transient={"display_id": output}, update=False)

    def update(self, output: str, data: Mapping[str, str]) -> None:
        publish = functools.partial(self._shell.display_pub.publish, transient={"display_id": output}, update=True)
        _in_no_cell(publish, dict(data), {})

    def finish(self, output: str) -> None:
        pass


def _in_no_cell(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function in an empty context, so that the kernel attributes its output to the cell that runs now. Otherwise a
    thread may have the context of the cell that started it, and clients no longer listen to a cell that has ended."""
    return contextvars.Context().run(function, *args)
