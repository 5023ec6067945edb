"""The errors and warnings of lox.loggers. Every error is a `lox.LoxError`, and so a `ValueError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lox import LoxError


class LoggerNotFoundError(LoxError):
    """No installed distribution offers a logger of that name."""


# Classes of loggers are attributes of `lox.loggers`. These are AttributeErrors so that `hasattr` and `inspect` work even if
# a logger is broken.


class LoggerLoadError(LoxError, AttributeError):
    """A logger is installed, but it cannot be imported, or it is not a valid logger."""


class DuplicateLoggerError(LoxError, AttributeError):
    """Two distributions offer a logger under the same name."""


class LoggerOptionError(LoxError, TypeError):
    """A logger was given an option, or a value for one, that it does not take."""


class LoggerStateError(LoxError, TypeError):
    """Something that is not a logger's state, a key or a record was passed as one."""


class LoggerClosedError(LoxError):
    """Something was logged to, or opened on, a logger that is closed."""


class RunExistsError(LoxError):
    """A run of that name already exists: with `if_exists="error"`, or because another logger has it open."""


class RecordError(LoxError):
    """A backend cannot store a record: its dtype, shape or structure changed."""


class RunFormatError(LoxError):
    """A folder or file is not a run, or is one that this version cannot read."""


class UnreadableRunsError(RunFormatError):
    """Some of several runs cannot be read.

    Attributes:
      runs: the other runs, as `lox.loggers.load` would have returned them.
      errors: what is wrong with each run that cannot be read, by the path of its first file.
    """

    def __init__(self, message: str, runs: Any, errors: Mapping[str, Exception]) -> None:
        super().__init__(message)
        self.runs = runs
        self.errors = dict(errors)


class ReaderError(LoxError):
    """A reader is not installed, cannot be imported, or is not a reader."""


class LoggerWarning(UserWarning):
    """A backend failed with `on_error="warn"`, or at exit, so records were lost; or `capacity=` dropped some; or `load` could
    not read some runs."""
