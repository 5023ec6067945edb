"""``lox.logdict``: logs by key, with their steps and counts."""

from lox._logdict.mapping import logdict as logdict
