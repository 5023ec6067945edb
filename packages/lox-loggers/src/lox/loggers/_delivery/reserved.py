"""The names that `Logger` keeps for itself. A backend that uses one is refused at once, instead of failing later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lox.loggers._errors import LoggerOptionError

# The private names that Logger shares with its subclasses in these packages.
_OURS = frozenset(
    ("_sink", "_sinks", "_writes_here", "_open_one", "_open_lanes", "_receive", "_queue_results", "_destinations")
    + ("_can_open", "_all_formats", "_own_axes", "_tell_others", "_listeners")
)
_METHODS = frozenset(
    (
        "init",
        "spool",
        "tap",
        "log",
        "flush",
        "close",
        "runs",
        "open",
        "exists",
        "remove",
        "existing",
        "lock",
        "limit_close",
        "written",
        "check_names",
        "formats",
        "close_first_at_exit",
    )
)


def check_class(backend: type) -> None:
    """Raises an error if a backend defines one of our private names."""
    _refuse(backend.__name__, _OURS.intersection(vars(backend)))


def check_attribute(logger: object, name: str, value: Any) -> None:
    """Raises an error for an attribute that would hide one of ours."""
    _refuse(type(logger).__name__, _OURS.intersection([name]))
    if name in _METHODS and not callable(value):
        _refuse(type(logger).__name__, [name])


def _refuse(owner: str, names: Iterable[str]) -> None:
    if names := sorted(names):
        raise LoggerOptionError(f"{owner} uses the name {names[0]!r}, which is reserved by Logger. Use another name")
