"""Which scans a tap can take in chunks, and of how many iterations.

What a chunk records is held in stores, so there must be a bound on it. Of n records of a key one is due with ``interval=n``,
whatever the counter was at first. So a chunk of n iterations, if each makes one record or none, has at most one to send.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from lox._interpret import table
from lox._interpret.survey import Survey
from lox._jax import compat, hi_primitives, sharding
from lox._jax.scans import Scan, is_scan
from lox._marks.mark import Mark
from lox._marks.primitives import log_p
from lox._storage.packing import UNLIMITED

# Identifies a call of lox.log, traced with certain types.
Label = tuple[Mark, Any]


def label_of(mark: Mark, leaves: Iterable[Any]) -> Label:
    return mark, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)


def label_of_equation(eqn: Any) -> Label:
    return label_of(eqn.params["mark"], [var.aval for var in eqn.invars])


def has_rules(eqn: Any) -> bool:
    """Whether an equation is a function with rules of its own, for derivatives or for lanes. One of them can run in its place and
    record other things."""
    return hi_primitives.name_of(eqn).lower().startswith("custom") or not any(compat.all_jaxprs_in_params(eqn.params))


class Chunks(NamedTuple):
    """How a scan can be cut.

    Attributes:
      size: so many iterations are a chunk.
      labels: the marks whose records can wait for its end.
      full: those that make as many records in each chunk as a store takes.
    """

    size: int
    labels: frozenset[Label]
    full: frozenset[Label]


# If iterations are left after whole chunks, what the loop returns is joined with what they return, which is a copy.
_MAX_COPIED_BYTES = 2**24


class Cuts:
    """Which scans can be taken in chunks.

    Args:
      interval: of so many records, one is stored.
      rows: so many records fit into the store of a mark.
      most: leave out loops whose body has more operations. If there is such a limit, conditions are cheaper than calls: also
        leave out loops that would send less than ``rows`` records at a time.
      in_order: whether the marks of a loop wait all or none, because records arrive in program order.
    """

    def __init__(self, survey: Survey, jaxpr: Any, interval: int, rows: int, most: int, in_order: bool) -> None:
        self._survey, self._whole = survey, survey(jaxpr).usages
        self._interval, self._rows, self._in_order = interval, rows, in_order
        self._most = most if most < UNLIMITED else None
        self._bounds = _Bounds(survey)

    def of(self, eqn: Any, labels: frozenset[Label]) -> Chunks | None:
        """How a scan with these marks is cut, if it is."""
        loop = Scan.of(eqn)
        if not isinstance(loop.length, int) or not loop.length:
            return None
        if self._most is not None and _operations(loop.jaxpr) > self._most:
            return None
        bounds = self._bounds(loop.jaxpr)
        waiting = frozenset(label for label in labels if self._can_be_stored(label, loop) and self._size(label, bounds))
        if not waiting or (self._in_order and waiting != labels):
            return None
        together = self._interval * self._rows
        size = _that_divides(loop, eqn.outvars, min(self._size(label, bounds) for label in waiting))
        if size is None or (self._most is not None and size != together):
            return None
        full = waiting if size == together else ()
        return Chunks(size, waiting, frozenset(label for label in full if self._makes_one(label, loop)))

    def are_inside(self, eqn: Any, labels: frozenset[Label]) -> bool:
        """Whether a scan is not cut because it holds loops that are: each of its iterations sends something anyway."""
        loop = Scan.of(eqn)
        bounds = self._bounds(loop.jaxpr)
        is_known = isinstance(loop.length, int) and all(map(math.isfinite, bounds.values()))
        could_wait = all(self._can_be_stored(label, loop) for label in labels)
        return is_known and could_wait and not all(self._size(label, bounds) for label in labels)

    def _size(self, label: Label, bounds: dict[Any, float]) -> int:
        """The most iterations after which the records of a mark fit into its store; 0 if not even those of one do. They fit if
        those that are due do, or all of them. The counter of a key counts the records of all its marks."""
        of_keys = max(1, *(bounds[key] for key in self._survey.selected(label[0])))
        return int(max(self._interval * self._rows // of_keys, self._rows // max(1, bounds[label])))

    def _can_be_stored(self, label: Label, loop: Scan) -> bool:
        """Not if values in a shard_map are split further, by axes that it leaves alone."""
        uses = [use for key in label[0].keys if key in self._whole for use in self._whole[key].uses]
        if any(sharding.is_split(aval) for use in uses if use.mesh for aval in use.operands):
            return False
        return self._most is None or (self._makes_one(label, loop) and self._is_aligned(label, loop))

    def _makes_one(self, label: Label, loop: Scan) -> bool:
        """Whether each iteration makes one record, and nobody else one of the same key."""
        usages = [self._survey(loop.jaxpr).usages[key] for key in self._survey.selected(label[0])]
        return all(u.is_certain and u.records == 1 and len(u.uses) == 1 and not u.uses[0].lanes for u in usages)

    def _is_aligned(self, label: Label, loop: Scan) -> bool:
        """Whether only the last records of a program do not fill a store."""
        usages = [self._whole[key] for key in self._survey.selected(label[0]) if key in self._whole]
        once = all(usage.records == loop.length and len(usage.uses) == 1 for usage in usages)
        return once or loop.length % (self._interval * self._rows) == 0


def _that_divides(loop: Scan, results: Any, size: int) -> int | None:
    """The size of the chunks, if it may not be larger than this one: one that divides the loop, if the copy would be large."""
    if size > loop.unroll:
        size -= size % loop.unroll
    if loop.length <= size or loop.length % size == 0:
        return size
    returned = sum(math.prod(var.aval.shape) * var.aval.dtype.itemsize for var in results[loop.num_carry :])
    if isinstance(returned, int) and returned <= _MAX_COPIED_BYTES:  # jax.export need not know it
        return size
    return next((smaller for smaller in range(size, 1, -1) if loop.length % smaller == 0), None)


class _Bounds:
    """The most records that a jaxpr makes of each key, and of each mark by its label; infinite if nobody knows."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._read: dict[int, tuple[Any, dict[Any, float]]] = {}

    def __call__(self, jaxpr: Any) -> dict[Any, float]:
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._read:
            self._read[id(body)] = (body, self._sum(map(self._of, body.eqns)))
        return self._read[id(body)][1]

    def _sum(self, parts: Iterable[dict[Any, float]]) -> dict[Any, float]:
        total: dict[Any, float] = {}
        for part in parts:
            for name, count in part.items():
                total[name] = total.get(name, 0) + count
        return total

    def _of(self, eqn: Any) -> dict[Any, float]:
        if eqn.primitive is log_p:
            keys = self._survey.selected(eqn.params["mark"])
            return dict.fromkeys((*keys, label_of_equation(eqn)), 1.0) if keys else {}
        return self._inside(eqn) if self._survey.has_marks(eqn) else {}

    def _inside(self, eqn: Any) -> dict[Any, float]:
        name, rule = hi_primitives.name_of(eqn), table.find(eqn)
        if is_scan(eqn) and isinstance(Scan.of(eqn).length, int):
            length = Scan.of(eqn).length
            return {name: count * length if length else 0 for name, count in self(Scan.of(eqn).jaxpr).items()}
        if name == "cond":
            branches = [self(branch) for branch in eqn.params["branches"]]
            return {name: max(branch.get(name, 0) for branch in branches) for name in self._sum(branches)}
        if name == "shard_map":
            return self(eqn.params["jaxpr"])
        if isinstance(rule, table.Transparent) and not has_rules(eqn):
            return self(rule.find(eqn))
        inside = self._sum(map(self, compat.all_jaxprs_in_params(eqn.params)))
        return dict.fromkeys((*inside, *rule.usages(eqn, self._survey)), math.inf)


def _operations(jaxpr: Any) -> int:
    eqns = compat.open_jaxpr(jaxpr)[0].eqns
    return len(eqns) + sum(_operations(inner) for eqn in eqns for inner in compat.all_jaxprs_in_params(eqn.params))
