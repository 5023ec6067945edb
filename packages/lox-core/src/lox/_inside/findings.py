"""What ``lox.probe(f, ...).found(*args)`` returns: a table of what the patterns match."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from lox._inside.candidates import KINDS, Candidate


@dataclasses.dataclass(frozen=True)
class Finding:
    """One key that a probe adds.

    Attributes:
      key: the path under which it is recorded.
      kind: the option of ``lox.probe`` that asks for it.
      types: dtype and shape of each of its arrays, such as ``float32[8,16]``.
      count: how many records it makes; None if that is not known before the program runs.
      file, line: the source line that computes it.
    """

    key: str
    kind: str
    types: tuple[str, ...]
    count: int | None
    file: str
    line: int

    @classmethod
    def of(cls, candidate: Candidate) -> Finding:
        types = tuple(aval.str_short(short_dtypes=False) for aval in candidate.avals)
        where = candidate.line
        return cls(candidate.key, candidate.kind, types, candidate.count, where.file, where.line)


class Findings(Sequence[Finding]):
    """Findings in program order. ``print`` shows them as a table."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self._findings = tuple(findings)

    def __getitem__(self, index: Any) -> Any:
        return Findings(self._findings[index]) if isinstance(index, slice) else self._findings[index]

    def __len__(self) -> int:
        return len(self._findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    @property
    def keys(self) -> list[str]:
        return [finding.key for finding in self]

    def __repr__(self) -> str:
        if not self:
            return "nothing found"
        rows = [("key", "option", "type", "records", "source"), *map(_row, self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        kinds = [finding.kind for finding in self]
        total = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)
        return "\n".join([*lines, f"in all: {total}"])


def _row(finding: Finding) -> tuple[str, ...]:
    count = "?" if finding.count is None else str(finding.count)
    where = f"{os.path.basename(finding.file)}:{finding.line}"
    return finding.key, finding.kind, " ".join(finding.types), count, where
