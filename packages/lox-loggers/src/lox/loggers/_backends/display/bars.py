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
    """How far something is."""

    title: str
    done: int
    total: int | None
    elapsed: float
    """Seconds since the start."""
    beside: str = ""
    """What stands next to the bar: the latest values."""
    compiling: bool = False
    """Nothing has come yet: the program is being compiled."""

    @property
    def remaining(self) -> float | None:
        """Seconds to go; None if unknown."""
        return self.elapsed * (self.total - self.done) / self.done if self.total is not None and self.done else None

    @property
    def way(self) -> str:
        """`5/10 (50%)`, or `5` where the end is not known."""
        return str(self.done) if self.total is None else f"{self.done}/{self.total} ({100 * self.done // self.total}%)"

    @property
    def times(self) -> str:
        parts = [f"elapsed {_clock(self.elapsed)}"]
        if self.total is not None:
            parts.append(f"remaining {_clock(self.remaining)}")
        if self.elapsed > 0.5 and self.done:  # in the first moments it means nothing
            parts.append(f"{short(self.done / self.elapsed)}/s")
        return "  ".join(parts)

    @property
    def line(self) -> str:
        """All of it in one line of text."""
        times = "compiling" if self.compiling else self.times
        return "  ".join(filter(None, [f"{self.title}  {self.way}", times, self.beside]))


WAITING = "compiling"
"""What stands where a bar will be."""
_DONE = "#30a46c"
_WIDTH, _HEIGHT = 240, 10


class BarPlace(Protocol):
    """Where bars are shown."""

    live: bool
    """Whether bars are drawn in place, so that it makes sense to show them before anything has happened."""

    def show(self, bars: Sequence[Bar], last: bool = False, hint: str = "") -> None:
        """Shows the bars as they are now.

        Args:
          last: they will not change any more.
          hint: a sentence for the user, shown once at the end.
        """

    def close(self) -> None:
        """Leaves what was shown last."""


def place_for(file: IO[str] | None, live: bool | None, output: Output | None = None) -> BarPlace:
    """A place for bars. A terminal has them in place, any other file has lines.

    Args:
      file: None is a notebook, or else standard error.
      live: True or False to have bars or lines whatever the file is.
      output: that of the notebook, if there is one already.
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

        # Never started: it would draw on the terminal by itself.
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
            self._progress.remove_task(self._tasks.pop(title))  # what they showed is in other bars now
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
    """A line for each tenth of the way, or each ten seconds where the end is not known, and one at the end."""

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


class Ended:
    """A place that is no longer visible, as after `train.py | head`; training continues."""

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
