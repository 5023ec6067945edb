"""`--watch`: print again as files grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from lox import LoxError
from lox.loggers._cli.output import lines

_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def watch(render: Callable[[], str], seconds: float) -> None:
    """Prints what `render` returns whenever it has changed, until the user interrupts it. An error of reading is printed, and
    reading is tried again."""
    shown = None
    try:
        while True:
            try:
                text = render()
            except LoxError as error:
                text = f"lox: {lines(str(error))}\n"
            if text != shown:
                sys.stdout.write((_CLEAR if sys.stdout.isatty() else "\n" if shown is not None else "") + text)
                sys.stdout.flush()
                shown = text
            time.sleep(seconds)
    except KeyboardInterrupt:
        return
