"""How `init` opens a run: which name it gets, and what happens if a run of that name exists."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lox.loggers._delivery.names import folded, numbered
from lox.loggers._delivery.resume import WrittenSteps
from lox.loggers._delivery.run import Run, Writer
from lox.loggers._delivery.sink import Sink
from lox.loggers._errors import LoggerLoadError, RunExistsError

if TYPE_CHECKING:
    from lox.loggers._delivery.logger import Logger

_MOST_TOLD = 8
_log = logging.getLogger("lox.loggers")


class Siblings:
    """The names that one `init` has given to its lanes. They differ even if the keys, or the names that `name=` gives, are
    equal."""

    def __init__(self) -> None:
        self._names: dict[Sink, set[str]] = {}

    def of(self, sink: Sink) -> set[str]:
        return self._names.setdefault(sink, set())


def is_free(logger: Logger, sink: Sink, name: str, siblings: Siblings) -> bool:
    """Whether a run can be opened under exactly that name. Runs on the worker thread, like everything that touches a backend."""
    if folded(name) in siblings.of(sink):
        return False
    if logger.if_exists == "resume":
        return True
    return not sink.has(name) and (logger.if_exists != "new" or not logger.exists(name))


def open_run(logger: Logger, sink: Sink, run: Run, siblings: Siblings) -> tuple[Run, Writer, WrittenSteps | None]:
    """Finds the name and opens the run. Runs on the worker thread.

    Names that this logger has used are skipped: `if_exists` is only about earlier runs.
    """
    for name in _candidates(logger, sink, run.name, siblings):
        if logger.if_exists == "new" and logger.exists(name):
            continue
        try:
            opened = _open_locked(logger, sink, dataclasses.replace(run, name=name))
        except RunExistsError:  # another process has the run, or has just taken the name
            if logger.if_exists == "new":
                continue
            raise
        siblings.of(sink).add(folded(name))
        return opened
    owner = type(logger).__name__
    raise RunExistsError(
        f"{owner}.exists reports {run.name!r} and all its numbered names as existing. If they do not exist, fix "
        f"{owner}.exists or {owner}.open"
    )


def tell_others(logger: Logger, sink: Sink) -> None:
    """Reports runs of an earlier experiment that were not replaced."""
    if sink.closed or not sink.runs:
        return
    nothing: Iterable[str] = ()
    others = [name for name in sink.ask(logger.existing, nothing) if not sink.has(name)]
    if others:
        shown = ", ".join(map(repr, others[:_MOST_TOLD])) + (", ..." if len(others) > _MOST_TOLD else "")
        _log.warning(
            "%s: %d earlier runs were not replaced: %s. if_exists='replace' replaces only runs of the same names",
            type(logger).__name__,
            len(others),
            shown,
        )


def first_name(name: str, sink: Sink, siblings: Siblings) -> str:
    """The name of a resumed run. Lanes with equal names are numbered in the same order as before."""
    return next(each for each in numbered(name) if folded(each) not in siblings.of(sink))


def _candidates(logger: Logger, sink: Sink, name: str, siblings: Siblings) -> Iterator[str]:
    if logger.if_exists != "resume":
        return sink.unused(name)
    # The order is stable: the second lane with a name continues the second run with that name, open or not.
    return (each for each in numbered(name) if folded(each) not in siblings.of(sink) and not sink.has(each))


def _open_locked(logger: Logger, sink: Sink, run: Run) -> tuple[Run, Writer, WrittenSteps | None]:
    """Opens a run with its lock held, from before it is checked until it is closed."""
    lock = logger.lock(run.name)
    try:
        opened = _open_there(logger, run) if logger.exists(run.name) else (run, _open(logger, run), None)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    if lock is not None:
        sink.hold(run.name, lock)
    return opened


def _open_there(logger: Logger, run: Run) -> tuple[Run, Writer, WrittenSteps | None]:
    """Opens a run that an earlier logger left."""
    if logger.if_exists == "new":
        raise RunExistsError(f"{type(logger).__name__}: run {run.name!r} already exists")
    if logger.if_exists == "replace":
        logger.remove(run.name)
        return run, _open(logger, run), None
    if logger.if_exists == "resume":
        source = f"{type(logger).__name__}.written({run.name!r})"
        written = WrittenSteps(logger.written(run.name), source, logger._own_axes)
        run = dataclasses.replace(run, resume=True)
        return run, _open(logger, run), written
    raise RunExistsError(
        f"{type(logger).__name__}: run {run.name!r} already exists. Delete it, or pass if_exists='new', "
        "'replace' or 'resume'"
    )


def _open(logger: Logger, run: Run) -> Writer:
    writer = logger.open(run)
    if missing := [name for name in ("write", "flush", "close") if not callable(getattr(writer, name, None))]:
        raise LoggerLoadError(
            f"{type(logger).__name__}.open returned {writer!r}, which has no {', '.join(missing)}. It must return a "
            "writer with write(logs), flush() and close()"
        )
    return writer
