"""Loops in which a tap knows beforehand when a record is due or a batch is full. It sends between chunks of iterations, and
asks nothing in the loop.

``lox._storage.packing`` says where this pays. GPUs wait for the host at every condition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lox._interpret import table
from lox._interpret.survey import Survey, Use
from lox._jax import compat, hi_primitives, sharding
from lox._jax.scans import Scan, is_scan
from lox._marks.primitives import log_p


class Call(NamedTuple):
    """What leaves the device together after a chunk.

    Attributes:
      stores: their numbers.
      around: the equations of the shard_maps inside the loop in which the marks are.
    """

    stores: tuple[int, ...]
    around: tuple[Any, ...] = ()

    @property
    def num_axes(self) -> int:
        """How many mesh axes these shard_maps have. Outside them, they lead the stores."""
        return sum(len(sharding.manual_axes_of(eqn)) for eqn in self.around)


class Pace(NamedTuple):
    """How a scan is taken.

    Attributes:
      size: so many iterations are a chunk.
      calls: those made after each chunk, in program order. Their stores are sent at no other time.
      held: whether the stores hold the first record of a chunk; otherwise they are buffers that a chunk fills.
      has_rest: whether a last chunk that is shorter has calls of its own.
    """

    size: int
    calls: tuple[Call, ...]
    held: bool
    has_rest: bool

    @property
    def stores(self) -> tuple[int, ...]:
        return tuple(number for call in self.calls for number in call.stores)


class Steady(NamedTuple):
    """A scan each of whose iterations makes one record of these keys.

    Attributes:
      marks: the equations of all marks in it, in program order, each with those of the shard_maps around it.
    """

    keys: frozenset[str]
    length: int
    marks: tuple[tuple[Any, tuple[Any, ...]], ...]


# If iterations are left after whole chunks, what the loop returns is joined with what they return, which is a copy.
_MAX_COPIED_BYTES = 2**24


def can_be_chunked(loop: Scan, results: Sequence[Any], size: int) -> bool:
    if loop.unroll != 1 or not isinstance(loop.length, int) or not loop.length:
        return False
    returned = sum(math.prod(var.aval.shape) * var.aval.dtype.itemsize for var in results[loop.num_carry :])
    is_joined = loop.length > size and loop.length % size > 0
    return not is_joined or returned <= _MAX_COPIED_BYTES


def steady_loops(survey: Survey, jaxpr: Any, size: int, most: int, held: bool) -> dict[int, Steady]:
    """The scans, by the id of their equation, in which the first record of a key is the first of a chunk. JAX shares a body
    between scans of one function, whatever their lengths.

    Args:
      size: so many records of a key belong together.
      most: leave out loops whose body has more operations.
      held: whether single records are sent. They arrive in program order, so all keys of a loop wait for the end of a chunk, or
        none.
    """
    return _Search(survey, jaxpr, size, most, held).found


class _Search:
    def __init__(self, survey: Survey, jaxpr: Any, size: int, most: int, held: bool) -> None:
        self.survey, self.size, self.most, self.held = survey, size, most, held
        self.whole = survey(jaxpr).usages
        self.found: dict[int, Steady] = {}
        self.unsteady: set[int] = set()  # equations that are not steady in one of the places they are in
        self.odd: set[str] = set()  # keys that are also recorded outside loops of whole chunks
        self.ruled: set[str] = set()  # keys of functions that have rules of their own
        self._find_odd(jaxpr, frozenset())
        self._visit(jaxpr, frozenset())
        self.found = {eqn: loop for eqn, loop in self.found.items() if eqn not in self.unsteady}

    def _find_odd(self, jaxpr: Any, in_chunks: frozenset[str]) -> None:
        for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
            if eqn.primitive is log_p:
                self.odd.update(key for key in self.survey.selected(eqn.params["mark"]) if key not in in_chunks)
            elif self.survey.has_marks(eqn):
                jaxprs = list(compat.all_jaxprs_in_params(eqn.params))
                if not jaxprs or hi_primitives.name_of(eqn).lower().startswith("custom"):
                    self.ruled.update(table.find(eqn).usages(eqn, self.survey))
                loop, inside = self._steps(eqn), in_chunks
                if loop is not None and self.size > 1 and loop.length % self.size == 0:
                    inside = in_chunks | self._one_each(loop)
                for inner in jaxprs:
                    self._find_odd(inner, inside)

    def _visit(self, jaxpr: Any, in_chunks: frozenset[str]) -> None:
        for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
            if eqn.primitive is log_p or not self.survey.has_marks(eqn):
                continue
            steady: frozenset[str] = frozenset()
            loop = self._steps(eqn)
            if loop is not None:
                body, length = loop.jaxpr, loop.length
                keys = frozenset(key for key in self._one_each(loop) - in_chunks if self._is_aligned(key, length))
                if keys and (not self.held or len(keys) == len(self.survey(body).usages)):
                    steady = keys
                    self.found[id(eqn)] = Steady(keys, length, tuple(_marks_in(body)))
            if not steady:
                self.unsteady.add(id(eqn))
            for inner in compat.all_jaxprs_in_params(eqn.params):
                self._visit(inner, in_chunks | steady)

    def _steps(self, eqn: Any) -> Scan | None:
        """The scan that an equation is, if it can be taken in chunks."""
        loop = Scan.of(eqn) if is_scan(eqn) else None
        if loop is None or not can_be_chunked(loop, eqn.outvars, self.size):
            return None
        return loop if self.most >= 2**31 or _operations(loop.jaxpr) <= self.most else None

    def _one_each(self, loop: Scan) -> frozenset[str]:
        """The keys of which each iteration makes one record."""

        def makes_one(usage: Any) -> bool:
            return usage.is_certain and usage.records == 1 and len(usage.uses) == 1 and not usage.uses[0].lanes

        return frozenset(key for key, usage in self.survey(loop.jaxpr).usages.items() if makes_one(usage))

    def _is_aligned(self, key: str, length: int) -> bool:
        """Whether chunks begin with the scan: it runs once and nobody else records the key, or all loops are whole chunks."""
        usage = self.whole[key]
        # A rule can run instead of the function that records.
        if key in self.ruled or not all(map(self._can_be_kept, usage.uses)):
            return False
        runs_once = usage.is_certain and usage.records == length and len(usage.uses) == 1
        return runs_once or key not in self.odd

    def _can_be_kept(self, use: Use) -> bool:
        """Whether its records can wait. Those of lanes that differ cannot, nor can buffers and values that are split further in a
        shard_map."""
        return not use.lanes and not (use.mesh and (not self.held or any(map(sharding.is_split, use.operands))))


def _operations(jaxpr: Any) -> int:
    eqns = compat.open_jaxpr(jaxpr)[0].eqns
    return len(eqns) + sum(_operations(inner) for eqn in eqns for inner in compat.all_jaxprs_in_params(eqn.params))


def _marks_in(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive is log_p:
            yield eqn, around
        else:
            within = (*around, eqn) if eqn.primitive.name == "shard_map" else around
            for inner in compat.all_jaxprs_in_params(eqn.params):
                yield from _marks_in(inner, within)
