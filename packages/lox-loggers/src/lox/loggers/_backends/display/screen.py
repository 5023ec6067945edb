"""The live part of a terminal. There can be only one on each, so all loggers that draw on a terminal share it."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import IO, Any

_screens: dict[Any, _Screen] = {}
_lock = threading.RLock()  # loggers draw from threads of their own


class Part:
    """A logger's part of the live display of a terminal; the parts stand one below the other."""

    def __init__(self, file: IO[str]) -> None:
        with _lock:
            name = _terminal(file)
            if name not in _screens:
                _screens[name] = _Screen(name, file)
            self._screen = _screens[name]
            self._screen.parts[self] = None

    def show(self, renderable: Any) -> None:
        """Draws the part again."""
        with _lock:
            self._screen.parts[self] = renderable
            self._screen.draw()

    def close(self) -> None:
        """Leaves what the part showed last on the terminal."""
        with _lock:
            self._screen.remove(self)


class Ended:
    """What a display becomes whose file nobody reads any more, as after `train.py | head`: the training goes on."""

    def draw(self, *args: Any) -> None:
        pass

    def stop(self, *args: Any) -> None:
        pass


class _Screen:
    def __init__(self, name: Any, file: IO[str]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._name = name
        self._file = file
        self.parts: dict[Part, Any] = {}

        class Terminal(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # rich would end the program

        # Names of keys and runs are text: `[red]` in one is no markup, and `:tada:` no picture.
        # Rich would use widgets in a notebook.
        console = Terminal(file=file, markup=False, emoji=False, force_jupyter=False)
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def draw(self) -> None:
        from rich.console import Group

        self._measure()
        shown = [renderable for renderable in self.parts.values() if renderable is not None]
        self._live.update(Group(*shown), refresh=True)

    def _measure(self) -> None:
        """Rich looks at the program's own terminal, which may be another."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, rows = os.get_terminal_size(self._file.fileno())
            if columns and rows:
                self._live.console.size = columns, rows

    def remove(self, part: Part) -> None:
        last = self.parts[part]
        if len(self.parts) == 1:  # the end: what is drawn stays
            del _screens[self._name]
            self._live.stop()
            return
        del self.parts[part]
        if last is not None:
            self._live.console.print(last)  # above what is still alive
        self.draw()


def _terminal(file: IO[str]) -> Any:
    """The same for files that lead to the same terminal, as standard output and standard error usually do."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        status = os.fstat(file.fileno())
        return status.st_dev, status.st_ino
    return id(file)
