"""The live display of a terminal. A terminal can have only one, so all loggers that draw on it share it."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import IO, Any

_screens: dict[Any, _Screen] = {}
_lock = threading.RLock()  # loggers draw from threads of their own


class Part:
    """A logger's part of the live display of a terminal. The parts are drawn one below the other."""

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


class NoDisplay:
    """A display whose file nobody reads any more, as after `train.py | head`. Training continues."""

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

        # Names of keys and runs are plain text: `[red]` is not markup, and `:tada:` is not an emoji.
        # In a notebook, rich would use widgets.
        console = Terminal(file=file, markup=False, emoji=False, force_jupyter=False)
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def draw(self) -> None:
        from rich.console import Group

        self._measure()
        shown = [renderable for renderable in self.parts.values() if renderable is not None]
        self._live.update(Group(*shown), refresh=True)

    def _measure(self) -> None:
        """Measures this terminal. rich would measure the program's own terminal, which may be another one."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            columns, rows = os.get_terminal_size(self._file.fileno())
            if columns and rows:
                self._live.console.size = columns, rows

    def remove(self, part: Part) -> None:
        last = self.parts[part]
        if len(self.parts) == 1:  # the last part: the drawing stays
            del _screens[self._name]
            self._live.stop()
            return
        del self.parts[part]
        if last is not None:
            self._live.console.print(last)  # above the parts that are still live
        self.draw()


def _terminal(file: IO[str]) -> Any:
    """Identifies the terminal behind a file. Standard output and standard error usually have the same one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        status = os.fstat(file.fileno())
        return status.st_dev, status.st_ino
    return id(file)
