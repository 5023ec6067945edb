"""`summary=`: what a run's summary keeps of each key, by key pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from lox.wandb._errors import WandbOptionError

OPERATIONS = ("min", "max", "mean", "last", "first", "none")

How = str | Sequence[str]


class Summary:
    """One or several operations for each key pattern. The first pattern that matches decides."""

    def __init__(self, summary: How | Mapping[str, How] | None) -> None:
        patterns = {} if summary is None else summary if isinstance(summary, Mapping) else {"*": summary}
        self._patterns = {pattern: _operations(pattern, how) for pattern, how in patterns.items()}

    def of(self, name: str, key: str) -> str | None:
        """The summary of a metric for `define_metric`; None to let wandb keep the last value."""
        for pattern, operations in self._patterns.items():
            if fnmatchcase(name, pattern) or fnmatchcase(key, pattern):
                return operations
        return None


def _operations(pattern: str, how: How) -> str:
    operations = how.split(",") if isinstance(how, str) else list(how) if isinstance(how, Sequence) else [how]
    for operation in operations:
        if operation not in OPERATIONS:
            raise WandbOptionError(
                f"WandbLogger: summary={{{pattern!r}: {how!r}}}: {operation!r} is not one of "
                f"{', '.join(map(repr, OPERATIONS))}."
            )
    return ",".join(operations)
