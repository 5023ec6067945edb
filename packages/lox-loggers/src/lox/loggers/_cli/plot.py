"""`lox plot`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lox.loggers._cli.output import lines
from lox.loggers._cli.selection import RunSelection, choose
from lox.loggers._compare.characters import draw_all
from lox.loggers._compare.curves import Look, as_data, panels
from lox.loggers._compare.figure import figure
from lox.loggers._errors import LoggerOptionError, RunFormatError
from lox.loggers._json import finite, to_json


def plot(selection: RunSelection, look: Look, *, output: str | None, log: bool, as_json: bool) -> tuple[str, bool]:
    """The text to print, and whether everything could be read."""
    chosen = choose(selection)
    found = panels(chosen.experiments, look, chosen.wanted)
    if not found:
        raise RunFormatError(f"{', '.join(selection.paths)}: nothing to draw, because only config and text were logged")
    if as_json:
        return to_json(finite(as_data(found, look))) + "\n", chosen.whole
    if output is None:
        return lines(draw_all(found, look, *_size(), log=log)), chosen.whole
    _save(figure(found, look, log=log), output)
    return f"wrote {output}\n", chosen.whole


def _save(drawn: object, output: str) -> None:
    """Writes the figure and replaces the file atomically, so a viewer never sees a part of it."""
    path = Path(output)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        drawn.savefig(unfinished)  # type: ignore[attr-defined]
        os.replace(unfinished, path)
    except (ValueError, OSError) as error:  # an unknown format, or no such folder
        unfinished.unlink(missing_ok=True)
        raise LoggerOptionError(f"cannot write {output}: {error}") from error


def _size() -> tuple[int, int]:
    columns, rows = shutil.get_terminal_size((80, 24))
    return max(20, min(columns, 120) - 14), max(5, min(rows, 24) - 8)
