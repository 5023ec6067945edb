"""`lox loggers`."""

from __future__ import annotations

import sys

from lox.loggers._cli.output import lines, table
from lox.loggers._errors import LoggerLoadError
from lox.loggers._registry import available, load_backend


def list_loggers() -> bool:
    """Prints what is installed; returns whether all of it can be used."""
    rows = [("name", "class", "from", "")]
    notes = []
    for name, backend in available().items():
        for each in (backend, *backend.rivals):
            state = "name claimed twice" if backend.rivals else "ok"
            try:
                load_backend(each)
            except LoggerLoadError as error:
                state = "broken"
                notes.append(str(error))
            rows.append((name, each.path, f"{each.distribution} {each.version}", state))
    sys.stdout.write(table(rows))
    for text in notes:
        sys.stdout.write(f"\n{lines(text)}\n")
    return all(state == "ok" for *_, state in rows[1:])
