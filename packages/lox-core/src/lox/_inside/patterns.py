"""Which values ``lox.probe`` was asked for, and what it says about patterns that match nothing or too much."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections import Counter
from typing import Any

from lox._errors import warn_caller
from lox._inside.candidates import KINDS, PRIMITIVE, Candidate
from lox._inside.regions import Path
from lox._interpret.selection import check_names

# More marks than this take long to compile, and are usually a mistake.
MANY = 1000
# How many keys a warning lists.
_LISTED = 20


@dataclasses.dataclass(frozen=True)
class Patterns:
    """For each kind of value, patterns of paths.

    A pattern is compared with the end of a path, part by part: ``layer*`` matches every scope of such a name, wherever it is,
    and ``layer2/h`` matches what is called h directly inside layer2.
    """

    names: tuple[str, ...]
    functions: tuple[str, ...]
    scopes: tuple[str, ...]
    primitives: tuple[str, ...]
    loops: tuple[str, ...]

    @classmethod
    def of(cls, **given: Any) -> Patterns:
        return cls(**{kind: _patterns(given[kind], kind) for kind in KINDS})

    def any(self) -> bool:
        return any(getattr(self, kind) for kind in KINDS)

    def choose(self, candidates: list[Candidate]) -> list[Candidate]:
        return [found for found in candidates if any(_matches(p, found) for p in getattr(self, found.kind))]

    def warn(self, candidates: list[Candidate], chosen: list[Candidate]) -> None:
        if not self.any():
            warn_caller(f"lox.probe: no pattern was given, so no marks were added. {_there_are(candidates)}")
        for kind in KINDS:
            of_kind = [found for found in candidates if found.kind == kind]
            for pattern in getattr(self, kind):
                expected = pattern != "*" or not chosen  # with "*", it is fine if there is nothing of one kind
                if expected and not any(_matches(pattern, found) for found in of_kind):
                    warn_caller(f"lox.probe: {kind}={pattern!r} matches nothing. {_there_are(candidates, kind)}")
        if len(chosen) > MANY:
            counts = Counter(found.kind for found in chosen)
            numbers = ", ".join(f"{counts[kind]:,} by {kind}=" for kind in KINDS if counts[kind])
            warn_caller(
                f"lox.probe: the patterns match {len(chosen):,} values ({numbers}), which takes long to compile. Narrow them "
                "with a part of the path, as in 'layer2/*'; lox.probe(f, ...).found(*args) lists the paths"
            )


def _patterns(given: Any, option: str) -> tuple[str, ...]:
    if given is None or given is False:
        return ()
    return ("*",) if given is True else check_names(given, option) or ()


def _matches(pattern: str, candidate: Candidate) -> bool:
    parts = pattern.split("/")
    return any(_ends_with(path, parts) for path in candidate.paths)


def _ends_with(path: Path, parts: list[str]) -> bool:
    ending = path[-len(parts) :]
    return len(ending) == len(parts) and all(map(fnmatch.fnmatchcase, ending, parts))


def _there_are(candidates: list[Candidate], kind: str | None = None) -> str:
    """A list of what could have been asked for: of one kind, or of all kinds if there is nothing of that one."""
    here = [found for found in candidates if found.kind == kind]
    if kind is not None and not here:
        return f"The program has no {kind}. {_there_are(candidates)}"
    if kind == PRIMITIVE:
        counts = Counter(found.paths[1][-1] for found in here)
        listed = [f"{name!r} ({number})" for name, number in counts.most_common()]
    elif kind is not None:
        listed = [repr(found.key) for found in here]
    else:
        listed = [f"{found.kind}={found.key!r}" for found in candidates if found.kind != PRIMITIVE]
        listed = listed or sorted({f"primitives={found.paths[1][-1]!r}" for found in candidates})
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"Available: {', '.join(listed[:_LISTED])}{more}" if listed else "The program has nothing to probe"
