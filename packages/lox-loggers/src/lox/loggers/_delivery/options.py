"""The options that every logger has, checked when it is created."""

from __future__ import annotations

from lox.loggers._errors import LoggerOptionError


def check_options(
    owner: str,
    if_exists: object,
    on_error: object,
    processes: object,
    queue_size: object,
    close_timeout: object,
    time: object,
) -> None:
    """Raises a LoggerOptionError for a value that an option of `owner` does not take."""
    _check_choice(owner, "if_exists", if_exists, ("new", "error", "replace", "resume"))
    _check_choice(owner, "on_error", on_error, ("raise", "warn"))
    _check_choice(owner, "processes", processes, ("first", "all"))
    if not isinstance(queue_size, int) or queue_size < 1:
        raise _refused(owner, "queue_size", queue_size, "an int of at least 1")
    if close_timeout is not None:
        check_seconds(owner, "close_timeout", close_timeout)
    if not isinstance(time, bool):
        raise _refused(owner, "time", time, "True or False")


def check_seconds(owner: str, option: str, value: object) -> None:
    if not (isinstance(value, int | float) and value > 0):
        raise _refused(owner, option, value, "a positive number of seconds, or None")


def _check_choice(owner: str, option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refused(owner, option, value, f"one of {', '.join(map(repr, allowed))}")


def _refused(owner: str, option: str, value: object, allowed: str) -> LoggerOptionError:
    return LoggerOptionError(f"{owner}: {option}={value!r}; it must be {allowed}")
