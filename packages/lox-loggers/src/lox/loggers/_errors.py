"""The errors and warnings of lox.loggers: all of them are `lox.LoxError`s, hence `ValueError`s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lox import LoxError


class LoggerNotFoundError(LoxError):
    """No installed distribution offers a logger of that name."""


# Classes of loggers are attributes of `lox.loggers`. Who asks whether there is one (`hasattr`, `inspect`) is to get an
# answer, whatever is wrong with it: hence the AttributeErrors.


class LoggerLoadError(LoxError, AttributeError):
    """A logger is installed, but it cannot be imported, or it is not what a logger has to be."""


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

    runs: the others, as `lox.loggers.load` would have returned them.
    errors: what is wrong with each of those that cannot be read, by the path of its first file.
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
