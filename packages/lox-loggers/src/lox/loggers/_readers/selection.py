"""Which keys are read, selected by pattern."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

import lox
from lox.loggers import _tree
from lox.loggers._errors import LoggerOptionError


class Keys:
    """Decides for each leaf (`key`, or `key/leaf` of a nested value) whether it is wanted.

    A pattern that matches `norm` also takes `norm/w` and `norm/b`: in formats without nested values, these are separate keys.
    """

    def __init__(self, patterns: str | Iterable[str] | None) -> None:
        if patterns is not None and not isinstance(patterns, str | Iterable):
            raise LoggerOptionError(f"keys must be a name or a pattern, or several; got {patterns!r}")
        given: Sequence[str] = [patterns] if isinstance(patterns, str) else list(patterns or ["*"])
        if wrong := [pattern for pattern in given if not isinstance(pattern, str)]:
            raise LoggerOptionError(f"keys must be names or patterns, each a str; got {wrong[0]!r}")
        self.patterns = given
        self._used: set[str] = set()
        self._known: dict[str, bool] = {}

    def __call__(self, label: str) -> bool:
        if label not in self._known:
            names = _above(label)
            matching = [pattern for pattern in self.patterns if any(fnmatchcase(name, pattern) for name in names)]
            self._used.update(matching)
            self._known[label] = bool(matching)
        return self._known[label]

    @property
    def unused(self) -> list[str]:
        """The patterns that have matched nothing so far."""
        return [pattern for pattern in self.patterns if pattern not in self._used]

    @property
    def seen(self) -> list[str]:
        """All labels that were asked about."""
        return sorted(self._known)

    def choose(self, logs: lox.logdict) -> lox.logdict:
        """The wanted part of logs. A reader may have read all of them."""
        if self.patterns == ["*"]:
            return logs
        leaves = {key: _tree.leaves_of(logs[key]) for key in logs}
        kept = {
            key: [leaf for leaf in of_key if any([*map(self, _tree.names_of(key, leaf[0]))])]
            for key, of_key in leaves.items()
        }
        chosen = logs.filter(lambda key: bool(kept[key]))
        for key in chosen:
            if len(kept[key]) < len(leaves[key]):
                # By name, because the numbers of the remaining leaves of a list would change.
                named = [(tuple(("dict", part) for _, part in path), leaf) for path, leaf in kept[key]]
                dict.__setitem__(chosen, key, _tree.tree_of(named))
        return chosen


def _above(label: str) -> list[str]:
    parts = label.split("/")
    return ["/".join(parts[: end + 1]) for end in range(len(parts))]
