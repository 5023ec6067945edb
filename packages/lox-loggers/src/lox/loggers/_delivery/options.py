"""The options that every logger has, checked when it is made."""

from __future__ import annotations

from lox.loggers._errors import LoggerOptionError


def check_choice(owner: str, option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refused(owner, option, value, f"one of {', '.join(map(repr, allowed))}")


def check_queue_size(owner: str, value: object) -> None:
    if not isinstance(value, int) or value < 1:
        raise _refused(owner, "queue_size", value, "an int of at least 1")


def check_close_timeout(owner: str, value: object) -> None:
    if value is not None and not (isinstance(value, int | float) and value > 0):
        raise _refused(owner, "close_timeout", value, "a positive number of seconds, or None")


def check_flag(owner: str, option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _refused(owner, option, value, "True or False")


def _refused(owner: str, option: str, value: object, allowed: str) -> LoggerOptionError:
    return LoggerOptionError(f"{owner}: {option}={value!r}; it must be {allowed}")
