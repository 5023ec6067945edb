"""The failures of a logger's background thread, kept until the user's thread raises them."""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
import warnings
from collections.abc import Callable, Iterator

from lox.loggers._errors import LoggerWarning, RecordError

_log = logging.getLogger("lox.loggers")


_here = threading.local()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    before, _here.telling = is_telling(), True
    try:
        yield
    finally:
        _here.telling = before


def is_telling() -> bool:
    """Whether this thread is reporting a failure, and so runs a handler of `logging` or of warnings. The handler may itself log
    through lox. That call must not raise the failure, which belongs to the user's next call."""
    return getattr(_here, "telling", False)


class Failures:
    """The errors of the background thread, kept for the next call from Python.

    No lock is held while handlers of `logging` and of warnings run. The lock is reentrant because a signal handler may log
    while its thread holds it.
    """

    def __init__(self, owner: str, on_error: str) -> None:
        self._owner = owner
        self._warn = on_error == "warn"
        self._lock = threading.RLock()
        self.pending: BaseException | None = None
        self._more = 0  # failures after the pending one
        self._lost_since = 0  # records that the pending failure and the later ones lost
        self._warned = False
        self._awaited = False
        self.lost = 0

    def add(self, error: BaseException, where: str, lost: int = 0) -> None:
        """Keeps an error, with where it happened and how many records were lost."""
        if not self._warn:
            self._keep(error, where, lost)
            return
        with self._lock:
            self.lost += lost
            first, self._warned = not self._warned, True
        if first:
            self.tell(f"{self._owner}: {where} failed: {describe(error)}. Training continues")

    def awaited(self, task: Callable[[], object]) -> Callable[[], None]:
        """Wraps a task of the background thread that a caller waits for."""

        def run() -> None:
            self._awaited = True
            try:
                task()
            finally:
                self._awaited = False

        return run

    def keep(self, error: BaseException, where: str) -> None:
        """Keeps an error that is raised even with `on_error="warn"`."""
        self._keep(error, where, 0)

    def take(self) -> BaseException | None:
        """The error to raise now, if any."""
        with self._lock:
            error, more, lost = self.pending, self._more, self._lost_since
            self.pending, self._more, self._lost_since = None, 0, 0
        if error is not None and more:
            failures = "1 more failure" if more == 1 else f"{more} more failures"
            with contextlib.suppress(Exception):
                error.add_note(f"and {failures}" + (f": {records_phrase(lost)} lost in all" if lost else ""))
        return error

    def tell_lost(self) -> None:
        with self._lock:
            lost, self.lost = self.lost, 0
        if lost and self._warn:
            verb = "was" if lost == 1 else "were"
            warnings.warn(f"{self._owner}: {records_phrase(lost)} {verb} lost", LoggerWarning, stacklevel=4)

    def _keep(self, error: BaseException, where: str, lost: int) -> None:
        with self._lock:
            self.lost += lost
            self._lost_since += lost
            if self.pending is not None:  # the first error is the cause; later ones often only follow from it
                self._more += 1
                return
            self.pending = error
        with contextlib.suppress(Exception):  # the methods of a foreign error may fail
            error.add_note(f"in {self._owner}, {where}" + (f", {records_phrase(lost)} lost" if lost else ""))
        if self._awaited:
            return  # the caller who waits raises it right away
        # A compiled program does not call the logger from Python, so report the error on the terminal before the program ends.
        with contextlib.suppress(Exception), _telling():  # a handler that fails must not end the thread either
            _log.error(
                "%s: %s failed: %s (raised by the next call of the logger, such as flush)",
                self._owner,
                where,
                describe(error),
            )

    def tell(self, message: str) -> None:
        """Issues a warning from the background thread."""
        try:
            with _telling():
                warnings.warn(message, LoggerWarning, stacklevel=2)
        except LoggerWarning as warning:  # warnings are errors here: raise it on the user's thread
            self.keep(warning, "on the background thread")


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def records_phrase(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def lost_records(error: BaseException) -> int | None:
    """The `lost_records` of an error, if it has a sensible number there."""
    try:
        lost = operator.index(error.lost_records)  # type: ignore[attr-defined]
    except Exception:
        return None
    return lost if lost >= 0 else None


def nothing_was_written(error: BaseException) -> bool:
    """Whether a writer refused a record before it took any of those that came with it."""
    return isinstance(error, RecordError) and lost_records(error) is None
