"""Outputs in marimo.

In marimo, only the thread of a cell and marimo's own threads can write, so each output has a thread of marimo's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from lox.loggers._backends.display.cell import NotebookCell

_PATIENCE = 5.0  # seconds to wait for the last update


def find_marimo() -> Marimo | None:
    """The marimo notebook that this program runs in; None in scripts, even if a marimo notebook is run as one."""
    marimo = sys.modules.get("marimo")  # a notebook has imported it
    is_notebook = marimo is not None and hasattr(marimo, "Thread") and marimo.running_in_notebook()
    return Marimo(marimo) if is_notebook and _execution() is not None else None


class Marimo:
    def __init__(self, marimo: Any) -> None:
        self._marimo = marimo
        self._writers: dict[str, _Writer] = {}

    def running_cell(self) -> NotebookCell | None:
        execution = _execution()  # None on other threads
        return None if execution is None else NotebookCell(execution.output, str(execution.cell_id))

    calling_cell = running_cell

    def create(self, output: str, data: Mapping[str, str]) -> None:
        execution = _execution()
        if execution is not None:
            place = len(execution.output)
            self._marimo.output.append(self._marimo.Html(data["text/html"]))
            self._writers[output] = _Writer(self._marimo, place)

    def update(self, output: str, data: Mapping[str, str]) -> None:
        if output in self._writers:
            self._writers[output].send(data.get("text/html", ""))

    def finish(self, output: str) -> None:
        if output in self._writers:
            self._writers[output].finish()


class _Writer:
    """A thread that updates one of the outputs of a cell, until that cell is run again."""

    def __init__(self, marimo: Any, place: int) -> None:
        self._marimo = marimo
        self._place = place
        self._tasks: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread = marimo.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, page: str) -> None:
        self._tasks.put(functools.partial(self._replace, page))

    def finish(self) -> None:
        done = threading.Event()
        self._tasks.put(done.set)
        until = time.monotonic() + _PATIENCE
        while self._thread.is_alive() and time.monotonic() < until and not done.wait(0.1):
            pass

    def _work(self) -> None:
        while not self._thread.should_exit:
            with contextlib.suppress(queue.Empty):
                self._tasks.get(timeout=1.0)()

    def _replace(self, page: str) -> None:
        with contextlib.suppress(IndexError):  # the output was cleared
            self._marimo.output.replace_at_index(self._marimo.Html(page), self._place)


def _execution() -> Any | None:
    """What marimo knows about the cell that runs on this thread; None if there is none."""
    try:
        return importlib.import_module("marimo._runtime.context").get_context().execution_context
    except Exception:
        return None
