"""What ``lox.find_nonfinite`` reports: a few numbers on the device, and a table of the operations that they refer to."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._errors import LoxError
from lox._inside.regions import Loop
from lox._jax.source import Line

Array = Any
# How many operands of an operation are reported with their ranges.
OPERANDS = 3
# How many lanes ``print`` lists.
_LISTED = 8


class Site(NamedTuple):
    """An operation of the program."""

    primitive: str
    line: Line
    scope: str
    backward: bool
    loops: tuple[Loop, ...]
    operands: int
    opaque: bool  # whether it holds programs that lox cannot look into


class Sites:
    """The operations of one traced program, by number. Derivative rules are traced late and add theirs."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._numbers: dict[Any, int] = {}

    def number(self, key: Any, site: Site) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._sites)
            self._sites.append(site)
        return self._numbers[key]

    def __getitem__(self, number: int) -> Site:
        return self._sites[number]

    # Equal tables are interchangeable: a report is a pytree, and trees are compared.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sites) and (self is other or self._sites == other._sites)

    def __hash__(self) -> int:
        return hash(Sites)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class Report:
    """Whether a nan or inf arose, and where the first one did.

    All fields except ``sites`` are arrays: scalars, or with leading axes for lanes and records; ``report[i]`` is one of those.
    Once the program has run, a report has more: the properties below.

    Attributes:
      found: whether one arose.
      nan: whether it is a nan; otherwise an inf.
      site: the number of the operation, for ``sites``.
      line: its source line, which is kept even if the report is stored as plain numbers.
      counters: the current iterations of the surrounding loops, outermost first.
      low, high: the ranges of the operands.
      device: in a shard_map, the number of the device along its mesh; otherwise -1.
    """

    found: Array
    nan: Array
    site: Array
    line: Array
    counters: Array
    low: Array
    high: Array
    device: Array
    sites: Sites = dataclasses.field(metadata={"static": True})

    @property
    def primitive(self) -> str:
        """The operation, such as ``"div"``; empty if nothing was found."""
        return self._site.primitive if self._one() else ""

    @property
    def file(self) -> str:
        return self._site.line.file if self._one() else ""

    @property
    def column(self) -> int:
        return self._site.line.column if self._one() else 0

    @property
    def scope(self) -> str:
        """The path of loops, functions and named scopes around it."""
        return self._site.scope if self._one() else ""

    @property
    def backward(self) -> bool:
        """Whether it is in a backward pass."""
        return self._one() and self._site.backward

    @property
    def loops(self) -> dict[str, int]:
        """The iteration of each surrounding loop, by the loop's path."""
        if not self._one():
            return {}
        names = [loop.path for loop in self._site.loops]
        return dict(zip(names, map(int, np.asarray(self.counters)), strict=False))

    @property
    def operands(self) -> tuple[tuple[float, float], ...]:
        """Smallest and largest element of each of its operands."""
        if not self._one():
            return ()
        pairs = zip(np.asarray(self.low), np.asarray(self.high), strict=True)
        return tuple((float(low), float(high)) for low, high in pairs)[: self._site.operands]

    @property
    def _site(self) -> Site:
        return self.sites[int(self.site)]

    def _one(self) -> bool:
        if isinstance(self.found, jax.core.Tracer):
            raise LoxError(
                "lox: a report has no values while the program is traced. Return it, and read it outside jit"
            )
        if np.ndim(self.found):
            raise LoxError(
                f"lox: these are several reports, of shape {np.shape(self.found)}. Take one of them: report[i]"
            )
        return bool(self.found)

    def __getitem__(self, index: Any) -> Report:
        """The report of a lane or a record."""
        if not np.ndim(self.found):
            raise LoxError("lox: this is a single report, without lanes or records: leave out the index")
        return jax.tree.map(lambda leaf: leaf[index], self)

    def __len__(self) -> int:
        if not np.ndim(self.found):
            raise TypeError("this is one report, not several: it has no length")
        return int(np.shape(self.found)[0])

    def __bool__(self) -> bool:
        """Whether a nan or inf was found; for several reports, by any of them."""
        return bool(self.found.any())

    def __str__(self) -> str:
        if isinstance(self.found, jax.core.Tracer):
            return f"Report({self.found.aval.str_short()}, not known yet)"
        if not np.ndim(self.found):
            return self._describe() if self.found else "no nan or inf arose"
        found = np.argwhere(np.asarray(self.found))
        total = math.prod(np.shape(self.found))
        lines = [f"{list(map(int, index))}: {self[tuple(index)]}" for index in found[:_LISTED]]
        more = [f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        return "\n".join([f"{len(found)} of {total} reports found a nan or inf", *lines, *more])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each finding."""
        from lox._inside.html import show_report

        return show_report(self)

    def _describe(self) -> str:
        site = self._site
        inside = ", which lox cannot look into" if site.opaque else ""
        parts = [f"{'nan' if self.nan else 'inf'} from {site.primitive}{inside} at {short_line(site.line)}"]
        parts += [f"in {site.scope}"] if site.scope else []
        parts += ["backward pass" if site.backward else "forward pass"]
        parts += [_iteration(loop, count) for loop, count in zip(site.loops, np.asarray(self.counters), strict=False)]
        parts += [f"device {int(self.device)}"] if self.device >= 0 else []
        ranges = [f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}" for low, high in self.operands]
        parts += [f"operands: {', '.join(ranges)}"] if ranges else []
        return "; ".join(parts)


def short_line(line: Line) -> str:
    here = os.getcwd() + os.sep
    return f"{line.file.removeprefix(here)}:{line.line}:{line.column}"


def _iteration(loop: Loop, count: Any) -> str:
    return f"iteration {int(count)} of {loop.path}"
