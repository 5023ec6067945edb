"""Which marks a transformation takes: ``argnames=`` and ``tags=``."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable
from typing import Any

from lox._errors import LogTypeError, warn_caller
from lox._interpret.survey import Survey
from lox._marks.mark import Mark


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which keys of which marks a transformation takes."""

    argnames: tuple[str, ...] | None
    tags: tuple[str, ...] | None

    @classmethod
    def of(cls, argnames: Any, tags: Any) -> Selection:
        return cls(check_names(argnames, "argnames"), check_names(tags, "tags"))

    def warn_of_unknown_names(self, selected: Iterable[str], jaxpr: Any) -> None:
        """Warns about names that no key has, which are probably misspelled. A pattern may match nothing."""
        names = [name for name in self.argnames or () if not set(name) & set("*?[")]
        unknown = sorted(set(names) - set(selected))
        if unknown and self.tags is None:
            there_are = Survey(lambda mark, key: True)(jaxpr).usages
            if there_are:
                keys = ", ".join(map(repr, there_are))
                warn_caller(f"lox: argnames {', '.join(map(repr, unknown))}: no such key. The function logs {keys}")

    def __call__(self, mark: Mark, key: str) -> bool:
        if self.argnames is not None and not any(fnmatch.fnmatchcase(key, pattern) for pattern in self.argnames):
            return False
        if self.tags is not None and not set(self.tags) & set(mark.tags):
            return False
        return not mark.explicit or self.argnames is not None or self.tags is not None


def check_names(given: Any, option: str) -> tuple[str, ...] | None:
    """An option that takes a str or several."""
    if given is None:
        return None
    several = isinstance(given, Iterable) and not isinstance(given, str) and not hasattr(given, "dtype")
    names = tuple(given) if several else (given,)
    for name in names:
        if not isinstance(name, str):
            raise LogTypeError(
                f"lox: {option} takes a str or an iterable of str, got {name!r} of type {type(name).__name__}. "
                "Arguments of the function come in a second call: lox.spool(f)(x)"
            )
    return names
