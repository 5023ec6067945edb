"""`lox.loggers.progress`: a bar for a program without any marks.

The program calls `tick` from its own thread and waits for the answer, so a tick only stores the position. Another thread,
shared by all programs, draws the bars.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, ParamSpec, TypeVar

import jax

from lox._calls import explain_options
from lox._inside.follow import follow
from lox._inside.ticks import Answer, FollowedLoop
from lox._jax import compat
from lox.loggers._backends.display.bars import WAITING, Bar, BarPlace, NoBars, place_for
from lox.loggers._backends.display.board import printable
from lox.loggers._backends.display.notebook import output_for

P = ParamSpec("P")
R = TypeVar("R")

PERIOD = 0.2
"""Seconds between two ticks, and between two drawings."""
_GROWTH = 16  # the number of iterations between ticks grows by at most this factor, in case the next ones take longer
_SHORT = 1.0  # a loop that took fewer seconds leaves no bar behind if another loop follows within this time


@explain_options(
    {"total": "it is read from the loops of the program. To set it yourself, use lox.loggers.ProgressLogger(total=...)"}
)
def progress(
    fun: Callable[P, R], *, name: str | None = None, file: IO[str] | None = None, live: bool | None = None
) -> Callable[P, R]:
    """The same function with a progress bar. Its code does not change.

    The bar shows the outermost loop that runs: a `scan`, `map` or `fori_loop` has a total, the iterations of a `while_loop` are
    counted. If one iteration takes long, the position of the loop inside it is shown next to the bar. Loops that run one after
    the other have bars one after the other. Until the first loop begins, the bar says that the program is being compiled.

    Args:
      fun: the function, jitted or not. Its result is the same, bit for bit; it can be jitted, mapped and differentiated.
      name: the title of the bar; by default the name of the function.
      file: where to write; by default the output of the cell in a notebook, and standard error elsewhere. A file that is not a
        terminal gets a line for each tenth of the total.
      live: True to always draw a bar, False to always write lines; by default the kind of `file` decides.

    >>> def train(x):
    ...     return jax.lax.fori_loop(0, 1000, lambda i, x: jnp.cos(x), x)
    >>> print(lox.loggers.progress(train)(1.0))
    0.739085...
    """
    title = printable(name or str(getattr(fun, "__name__", type(fun).__name__)))
    followed, bars = follow(fun, functools.partial(ProgramBars, title, file, live), (title, file, live))

    @functools.wraps(fun)
    def with_bar(*args: P.args, **kwargs: P.kwargs) -> R:
        bars.called()
        try:
            out: R = followed(*args, **kwargs)
        except BaseException:
            bars.failed()
            raise
        if not compat.tracing_now():
            bars.compiled()
        return out

    return with_bar


class _LoopProgress:
    """The progress of one loop."""

    def __init__(self, loop: FollowedLoop) -> None:
        self.loop = loop
        self.position = 0
        self.started = self.last = time.monotonic()
        self.ended: float | None = None
        self._steps = 0  # of the last answer
        self._seconds: float | None = None  # the time of an iteration

    def begin(self) -> None:
        self.position, self.ended, self._steps = 0, None, 0
        self.started = self.last = time.monotonic()

    def end(self, position: int) -> None:
        self.position, self.ended = position, time.monotonic()

    def go_on(self, position: int) -> None:
        now = time.monotonic()
        if position > self.position:
            self._seconds = (now - self.last) / (position - self.position)
        self.position, self.last = position, now

    def answer(self) -> Answer:
        if self._seconds is None:
            self._steps = 1
            return Answer(1, inside=True)
        wanted = int(PERIOD / max(self._seconds, 1e-9))
        most = _GROWTH * self._steps if self._steps else wanted
        self._steps = max(min(wanted, most), 1)
        return Answer(self._steps, inside=self._seconds > PERIOD)

    def elapsed(self) -> float:
        return (self.ended or time.monotonic()) - self.started

    def text(self) -> str:
        """The position, to be shown next to the bar of the surrounding loop."""
        label = self.loop.path.rsplit("/", 1)[-1]
        return f"{label} {self.position}" + ("" if self.loop.length is None else f"/{self.loop.length}")


class _Showing:
    """A bar, from the call of the program or the start of a loop until there is no more progress."""

    def __init__(self, title: str, make_place: Callable[[], BarPlace]) -> None:
        self.title = title
        self._make_place = make_place
        self.compiling = True
        self.outer: _LoopProgress | None = None
        self.inner: _LoopProgress | None = None
        self.dropped = self.closed = False
        self._called = time.monotonic()
        self._place: BarPlace | None = None
        self._finished = False

    def begin(self, title: str, running: _LoopProgress) -> None:
        self.title, self.outer, self.inner, self.compiling = title, running, None, False

    def runs(self) -> bool:
        return self.outer is not None and self.outer.ended is None

    def is_over(self) -> bool:
        if self.outer is None:
            return self.dropped
        return self.dropped or (self.outer.ended is not None and time.monotonic() - self.outer.ended > _SHORT)

    def is_short(self) -> bool:
        return self.outer is None or self.outer.elapsed() < _SHORT

    def _bar(self) -> Bar:
        running = self.outer
        if running is None:
            return Bar(self.title, 0, None, time.monotonic() - self._called, compiling=self.compiling)
        beside = "" if self.inner is None else self.inner.text()
        return Bar(self.title, running.position, running.loop.length, running.elapsed(), beside)

    def paint(self) -> None:
        if self._finished or (self.closed and self.outer is None and self._place is None):
            return  # the bar has ended, or there was nothing to show
        self._finished = self.closed
        try:
            self._place = self._place or self._make_place()
            self._place.show([self._bar()], last=self.closed)
            if self.closed:
                self._place.close()
        except BrokenPipeError:
            self._place = NoBars()


class ProgramBars:
    """The bars of one program: the listener of its loops."""

    def __init__(self, title: str, file: IO[str] | None, live: bool | None) -> None:
        self._title = title
        self._output = output_for(file, live, WAITING)
        self._make_place = functools.partial(place_for, file, live, self._output)
        self._loops: dict[FollowedLoop, _LoopProgress] = {}
        self._several = False
        self._showing: _Showing | None = None

    def called(self) -> None:
        if self._output is not None:
            self._output.called(painter.paint)
        with painter.lock:
            if self._showing is None or not self._showing.runs():  # the previous call may still be running
                self._next_showing()

    def compiled(self) -> None:
        with painter.lock:
            if self._showing is not None:
                self._showing.compiling = False

    def failed(self) -> None:
        with painter.lock:
            if self._showing is not None:
                self._showing.dropped = True

    def expect(self, loops: Sequence[FollowedLoop]) -> None:
        self._several = sum(loop.inside is None for loop in loops) > 1
        if not loops:
            self.failed()  # it will report nothing

    def tick(self, loop: FollowedLoop, position: int) -> Answer:
        with painter.lock:
            running = self._loops.setdefault(loop, _LoopProgress(loop))
            if position == 0:
                running.begin()
                if loop.inside is None:
                    self._next_showing().begin(self._title_of(loop), running)
            running.go_on(position)
            if self._showing is not None:
                # The position of an inner loop belongs to one iteration of the outer one.
                self._showing.inner = None if loop.inside is None else running
            return running.answer()

    def end(self, loop: FollowedLoop, position: int) -> None:
        with painter.lock:
            self._loops[loop].end(position)
            if self._showing is not None:
                self._showing.inner = None

    def _title_of(self, loop: FollowedLoop) -> str:
        """The title of a loop's bar, with its path if there are several loops."""
        path = loop.path.removeprefix(f"{self._title}/")  # the path of a jitted function begins with its name
        return f"{self._title}: {path}" if self._several else self._title

    def _next_showing(self) -> _Showing:
        """The current bar, if it has been shown only for a moment; otherwise a new one."""
        now = self._showing
        if now is None or now.closed or now.runs() or not now.is_short():
            if now is not None:
                now.dropped = True
            now = self._showing = _Showing(self._title, self._make_place)
            painter.show(now)
        return now


class Painter:
    """Draws all bars, on a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self.lock = threading.RLock()  # protects the bars; not held while they are drawn
        self._drawing = threading.Lock()
        self._showings: list[_Showing] = []
        self._thread: threading.Thread | None = None

    def show(self, showing: _Showing) -> None:
        with self.lock:
            self._showings.append(showing)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lox-progress", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD)
            self.paint()
            with self.lock:
                if not self._showings:
                    self._thread = None
                    return

    def paint(self, last: bool = False) -> None:
        with self._drawing:
            with self.lock:
                there = list(self._showings)
                for showing in there:
                    showing.closed = last or showing.is_over()
                self._showings = [showing for showing in there if not showing.closed]
            for showing in there:
                showing.paint()

    def finish(self) -> None:
        """Waits for running programs, and leaves all bars in their last state."""
        if os.getpid() != self._process:
            return  # a forked child draws nothing: the bars belong to its parent
        with self.lock:
            there_are = bool(self._showings)
        if there_are:
            with contextlib.suppress(Exception):  # the exception of a program goes to its caller
                jax.effects_barrier()
            self.paint(last=True)


painter = Painter()
atexit.register(painter.finish)
