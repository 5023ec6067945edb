"""`LoggerContract`: all tests of `lox.loggers.testing` for a backend."""

from __future__ import annotations

from lox.loggers._contract.records import RecordsContract
from lox.loggers._contract.runs import RunsContract


class LoggerContract(RecordsContract, RunsContract):
    """What every backend promises. Each test makes its own loggers in an empty folder."""
