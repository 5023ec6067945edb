"""Progress bars, and the places where they are shown: a terminal, a log file or a notebook.

Code that has progress to show makes `Bar`s and gives them to a place; `place_for` chooses one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, Protocol

from lox._html.curve import picture
from lox._html.table import LINE, Cell, Markup, block, dim, table
from lox.loggers._backends.display.notebook import Output, output_for
from lox.loggers._backends.display.numbers import short
from lox.loggers._backends.display.screen import Part


class Bar(NamedTuple):
    """The state of one progress bar."""

    title: str
    done: int
    total: int | None
    elapsed: float
    """Seconds since the start."""
    beside: str = ""
    """Text next to the bar: the latest values."""
    compiling: bool = False
    """Whether the program is still being compiled: nothing has been reported yet."""

    @property
    def remaining(self) -> float | None:
        """Seconds to go; None if unknown."""
        return self.elapsed * (self.total - self.done) / self.done if self.total is not None and self.done else None

    @property
    def way(self) -> str:
        """`5/10 (50%)`, or `5` if the total is not known."""
        return str(self.done) if self.total is None else f"{self.done}/{self.total} ({100 * self.done // self.total}%)"

    @property
    def times(self) -> str:
        parts = [f"elapsed {_clock(self.elapsed)}"]
        if self.total is not None:
            parts.append(f"remaining {_clock(self.remaining)}")
        if self.elapsed > 0.5 and self.done:  # in the first moments a rate is meaningless
            parts.append(f"{short(self.done / self.elapsed)}/s")
        return "  ".join(parts)

    @property
    def line(self) -> str:
        """The bar as one line of text."""
        times = "compiling" if self.compiling else self.times
        return "  ".join(filter(None, [f"{self.title}  {self.way}", times, self.beside]))


WAITING = "compiling"
"""Shown in place of a bar that has no progress yet."""
_DONE = "#30a46c"
_WIDTH, _HEIGHT = 240, 10


class BarPlace(Protocol):
    """Where bars are shown."""

    live: bool
    """Whether bars are drawn in place. Then they are shown even before there is any progress."""

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        """Shows the bars as they are now.

        Args:
          last: whether this is their final state.
          hint: a sentence for the user, shown once at the end.
        """

    def close(self) -> None:
        """Leaves the last state visible."""


def place_for(file: IO[str] | None, live: bool | None, output: Output | None = None) -> BarPlace:
    """A place for bars. On a terminal they are drawn in place; other files get lines.

    Args:
      file: None for the notebook, or for standard error if there is none.
      live: True to always draw bars, False to always write lines; None to let the file decide.
      output: the output in the notebook, if it already exists.
    """
    output = output_for(file, live, WAITING) if output is None else output
    if output is not None:
        return NotebookBars(output)
    file = file or sys.stderr
    return TerminalBars(file) if (file.isatty() if live is None else live) else LineBars(file)


class TerminalBars:
    """Bars that are drawn in place."""

    live = True

    def __init__(self, file: IO[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # This is never started, because it would draw on the terminal itself.
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[times]}", markup=False),
            TextColumn("{task.fields[beside]}", markup=False),
            auto_refresh=False,
        )
        self._tasks: dict[str, Any] = {}
        self._part = Part(file)

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        del last, hint
        for title in self._tasks.keys() - {bar.title for bar in bars}:
            self._progress.remove_task(self._tasks.pop(title))  # other bars now show their progress
        for bar in bars:
            if bar.title not in self._tasks:
                self._tasks[bar.title] = self._progress.add_task(bar.title, total=bar.total, beside="", times="")
            times = "compiling" if bar.compiling else bar.times
            self._progress.update(
                self._tasks[bar.title], completed=bar.done, total=bar.total, times=times, beside=bar.beside
            )
        self._part.show(self._progress)

    def close(self) -> None:
        self._part.close()


class LineBars:
    """A line for each tenth of the total, or every ten seconds if the total is not known, and one at the end."""

    live = False

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._shown: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        for bar in bars:
            tenth = int(bar.elapsed / 10) if bar.total is None else 10 * bar.done // bar.total
            if bar.done and (tenth > self._shown.get(bar.title, 0) or (last and bar.done != self._told.get(bar.title))):
                self._shown[bar.title], self._told[bar.title] = tenth, bar.done
                self._file.write(f"{bar.line}\n")
        if last and hint:
            self._file.write(f"{hint}\n")
        self._file.flush()

    def close(self) -> None:
        pass


class NotebookBars:
    """Bars in the output of a cell."""

    live = True

    def __init__(self, output: Output) -> None:
        self._output = output

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        hint = hint if last else ""
        shown = block(table([], map(_cells, bars)), *([hint] if hint else []))
        lines = "\n".join([*(bar.line for bar in bars), *filter(None, [hint])])
        self._output.show(shown, lines, is_waiting=all(bar.compiling for bar in bars))

    def close(self) -> None:
        self._output.close()


def _cells(bar: Bar) -> list[Cell]:
    times = "compiling" if bar.compiling else bar.times.replace("  ", " · ")
    return [Cell(part, "t p") for part in (bar.title, _drawn(bar), bar.way, dim(times), bar.beside)]


def _drawn(bar: Bar) -> Markup:
    if bar.total is None:
        return Markup("")
    whole = f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="currentColor" fill-opacity=".15"/>'
    share = min(max(bar.done / bar.total, 0.0), 1.0)
    colour = _DONE if bar.done >= bar.total else LINE
    part = f'<rect width="{share * _WIDTH:.1f}" height="{_HEIGHT}" rx="5" fill="{colour}"/>' if share else ""
    return picture(whole + part, _WIDTH, _HEIGHT, bar.way)


class NoBars:
    """A place that nobody reads any more, as after `train.py | head`. Training continues."""

    live = False

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        pass

    def close(self) -> None:
        pass


def _clock(seconds: float | None) -> str:
    """Hours, minutes and seconds; a dash if unknown."""
    if seconds is None:
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
