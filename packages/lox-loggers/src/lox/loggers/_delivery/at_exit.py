"""Closes loggers that are still open when the interpreter exits, before anything that they need is gone."""

from __future__ import annotations

import atexit
import contextlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from lox.loggers._delivery.failures import describe
from lox.loggers._errors import LoggerWarning

if TYPE_CHECKING:
    from lox.loggers._delivery.sink import Sink

open_sinks: set[Sink] = set()
"""The sinks that have to be closed before the interpreter exits."""


def _close_at_exit() -> None:
    """Waits for what the device still sends, then drains every queue while threads still run. This handler is registered after
    JAX's exit handlers, so it runs before them."""
    sinks = [sink for sink in list(open_sinks) if not sink.foreign]
    if not sinks:
        return
    for sink in sinks:
        sink.limit_patience()
    with contextlib.suppress(Exception):  # the exception of a program is not for a logger to report
        _despite_signals(jax.effects_barrier)
    for sink in sinks:
        try:
            _despite_signals(sink.close)
        except TimeoutError as stuck:
            warnings.warn(str(stuck), LoggerWarning, stacklevel=1)
        sink.failures.tell_lost()
        if (error := sink.failures.take()) is not None:  # no call is left that could raise it
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            warnings.warn(f"{sink.owner}: {describe(error)}{notes}", LoggerWarning, stacklevel=1)


def _despite_signals(finish: Callable[[], None]) -> None:
    """Closes loggers even if a signal handler calls `sys.exit` again, or Ctrl-C is pressed once. A second Ctrl-C stops waiting
    for the current logger."""
    interrupts = 0
    while True:
        try:
            return finish()
        except SystemExit:
            continue
        except KeyboardInterrupt:
            interrupts += 1
            if interrupts > 1:
                return None


atexit.register(_close_at_exit)


def close_first_at_exit() -> None:
    """Makes loggers close before the exit handlers that were registered so far: handlers run in reverse order."""
    atexit.unregister(_close_at_exit)
    atexit.register(_close_at_exit)
