"""How `init` opens a run: under which name, and what becomes of one that is there already."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from lox.loggers._delivery.resume import WrittenSteps
from lox.loggers._delivery.run import Run, Writer, numbered
from lox.loggers._delivery.sink import Sink
from lox.loggers._errors import LoggerLoadError, RunExistsError

if TYPE_CHECKING:
    from lox.loggers._delivery.logger import Logger


def open_run(logger: Logger, sink: Sink, run: Run) -> tuple[Run, Writer, WrittenSteps | None]:
    """Finds the name and opens the run. Runs on the worker thread, like all that touches a backend."""
    if logger.if_exists == "new" or not _taken(logger, sink, run.name):
        return _open_new(logger, sink, run)
    if logger.if_exists == "replace":
        sink.retire(run.name)
        logger.remove(run.name)
        return run, _open(logger, run), None
    if logger.if_exists == "resume":
        written = WrittenSteps(logger.written(run.name), f"{type(logger).__name__}.written({run.name!r})")
        run = dataclasses.replace(run, resume=True)
        return run, _open(logger, run), written
    raise RunExistsError(
        f"{type(logger).__name__}: run {run.name!r} already exists. Delete it, or pass if_exists='new', "
        "'replace' or 'resume'"
    )


def _open_new(logger: Logger, sink: Sink, run: Run) -> tuple[Run, Writer, None]:
    for name in numbered(run.name):
        if _taken(logger, sink, name):
            continue
        named = dataclasses.replace(run, name=name)
        try:
            return named, _open(logger, named), None
        except RunExistsError:  # somebody else took the name since we looked
            if logger.if_exists != "new":
                raise
    raise RunExistsError(
        f"{type(logger).__name__}: {run.name!r} and all its numbered names are said to exist. If they do not, "
        f"{type(logger).__name__}.exists or open is at fault"
    )


def _open(logger: Logger, run: Run) -> Writer:
    writer = logger.open(run)
    if missing := [name for name in ("write", "flush", "close") if not callable(getattr(writer, name, None))]:
        raise LoggerLoadError(
            f"{type(logger).__name__}.open returned {writer!r}, which has no {', '.join(missing)}. It must return a "
            "writer with write(logs), flush() and close()"
        )
    return writer


def _taken(logger: Logger, sink: Sink, name: str) -> bool:
    return sink.find(name) is not None or logger.exists(name)
