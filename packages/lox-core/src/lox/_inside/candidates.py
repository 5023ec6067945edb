"""What can be probed in a program: every value that a pattern could name."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from lox._inside.regions import Node, Path, Place, Region, is_function
from lox._jax import compat, hi_primitives, source
from lox._marks.primitives import log_p, watch_p

# The kinds of candidates: each is the name of the option of ``lox.probe`` that asks for it.
NAME, FUNCTION, SCOPE, PRIMITIVE, LOOP = "names", "functions", "scopes", "primitives", "loops"
KINDS = (NAME, FUNCTION, SCOPE, PRIMITIVE, LOOP)


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A value that a mark could be put on, or several that belong together.

    Attributes:
      key: the path, unique in the program.
      paths: what patterns are compared with: the path with its numbers, and without them.
      values: which results of which equations; empty for the counter of a loop.
      at: the id of the equation after which all values are known; None for the start of the region.
    """

    key: str
    kind: str
    paths: tuple[Path, Path]
    region: Region
    values: tuple[tuple[int, int], ...]
    at: int | None
    avals: tuple[Any, ...]
    line: source.Line

    @property
    def count(self) -> int | None:
        """How many records it makes; None if that is not known before the program runs."""
        total = 1
        for loop in self.region.loops:
            if loop.length is None:
                return None
            total *= loop.length
        return None if self.region.branched else total


class Candidates:
    """Finds candidates, region by region, and numbers the keys that would clash."""

    def __init__(self, prefix: str, taken: set[str]) -> None:
        self._prefix = prefix
        self._taken = taken
        self._last: Counter[str] = Counter()
        self.found: list[Candidate] = []

    def visit(self, region: Region, residuals: frozenset[int] = frozenset()) -> list[Candidate]:
        """The candidates of a region and of all regions inside it, in program order."""
        start = len(self.found)
        if not region.place.again:  # what a checkpoint computes again is not recorded again
            self._visit(region, residuals)
        return self.found[start:]

    def _visit(self, region: Region, residuals: frozenset[int]) -> None:
        uses = _Uses(region, residuals)
        scopes = _scope_runs(region)
        for index, eqn in enumerate(region.body.eqns):
            place = region.place_of(eqn)
            if eqn.primitive not in (log_p, watch_p) and not place.again and not region.computes_tangents(eqn):
                self._equation(region, index, place, uses)
            for run in () if region.computes_tangents(eqn) else scopes.get(index, ()):
                self._add(SCOPE, run.place, region, uses.leaving(run.indices), eqn)

    def _equation(self, region: Region, index: int, place: Place, uses: _Uses) -> None:
        eqn = region.body.eqns[index]
        node = region.nodes.get(id(eqn))
        if node is not None:
            self._node(region, index, node, uses)
        elif hi_primitives.name_of(eqn) in ("name", "CheckpointName"):  # the second with jax_remat3
            self._add(NAME, place.at(hi_primitives.params_of(eqn)["name"]), region, uses.results(index), eqn)
        else:
            self._add(PRIMITIVE, place.at(hi_primitives.name_of(eqn)), region, uses.results(index), eqn)

    def _node(self, region: Region, index: int, node: Node, uses: _Uses) -> None:
        eqn = node.eqn
        for inner in node.regions():
            if node.loop is not None and inner.iterates:
                counter = compat.ShapedArray((), jax.numpy.int32)
                self._append(LOOP, node.place, inner, (), None, (counter,), eqn)
            self.visit(inner, uses.residuals(index))
        if is_function(eqn):
            self._add(FUNCTION, node.place, region, uses.leaving([index]), eqn)

    def _add(self, kind: str, place: Place, region: Region, values: list[Any], eqn: Any) -> None:
        if values:
            sources = tuple((id(of), i) for of, i in values)
            avals = tuple(of.outvars[i].aval for of, i in values)
            self._append(kind, place, region, sources, id(eqn), avals, eqn)

    def _append(self, kind: str, place: Place, region: Region, values: Any, at: Any, avals: Any, eqn: Any) -> None:
        key = self._number(self._prefix + "/".join(place.path))
        path = (*place.path[:-1], key.rsplit("/", 1)[-1])
        line = region.line_of(eqn) if at is not None else source.line_of(eqn)
        self.found.append(Candidate(key, kind, (path, place.plain), region, values, at, avals, line))

    def _number(self, key: str) -> str:
        unique = key
        while unique in self._taken:
            self._last[key] += 1
            unique = f"{key}.{self._last[key]}"
        self._taken.add(unique)
        return unique


class _Uses:
    """Which equations of a region use the results of which others.

    Under ``grad`` the forward pass also returns residuals: values that only the backward pass uses. They are not results of a
    function or a scope, so they are left out, even if they leave a body as outputs (those with the numbers ``residuals``).
    """

    def __init__(self, region: Region, residuals: frozenset[int]) -> None:
        self._eqns = region.body.eqns
        self._by: dict[Any, list[int]] = {}
        for index, eqn in enumerate(self._eqns):
            for atom in eqn.invars:
                if not isinstance(atom, compat.Literal):
                    self._by.setdefault(atom, []).append(index)
        self._backward = [region.place_of(eqn).backward for eqn in self._eqns]
        outs = [(i, atom) for i, atom in enumerate(region.body.outvars) if not isinstance(atom, compat.Literal)]
        self._outs = {atom for i, atom in outs if i not in residuals}
        self._residual_outs = {atom for i, atom in outs if i in residuals} - self._outs

    def results(self, index: int) -> list[tuple[Any, int]]:
        eqn = self._eqns[index]
        return [(eqn, i) for i, var in enumerate(eqn.outvars) if is_array(var.aval)]

    def leaving(self, indices: list[int]) -> list[tuple[Any, int]]:
        """The results of these equations that others use."""
        candidates = [(eqn, i) for index in indices for eqn, i in self.results(index)]
        inside = set(indices)
        return [(eqn, i) for eqn, i in candidates if self._leaves(eqn.outvars[i], inside)]

    def _leaves(self, var: Any, inside: set[int]) -> bool:
        others = [by for by in self._by.get(var, ()) if by not in inside]
        return var in self._outs or (bool(others) and not self._is_residual(var, inside))

    def _is_residual(self, var: Any, inside: set[int]) -> bool:
        """Whether these equations belong to the forward pass, and all others that use the variable to the backward pass."""
        if self._backward[min(inside)] or var in self._outs:
            return False
        others = [by for by in self._by.get(var, ()) if by not in inside]
        return all(self._backward[by] for by in others) and (bool(others) or var in self._residual_outs)

    def residuals(self, index: int) -> frozenset[int]:
        """Which results of an equation only the backward pass uses."""
        return frozenset(i for i, var in enumerate(self._eqns[index].outvars) if self._is_residual(var, {index}))


@dataclasses.dataclass
class _Run:
    """Equations of one named scope that follow each other."""

    place: Place
    indices: list[int]


def _scope_runs(region: Region) -> dict[int, list[_Run]]:
    """The runs of named scopes by the index of their last equation, inner ones first."""
    ended: dict[int, list[_Run]] = {}
    open_runs: list[_Run] = []
    for index, eqn in enumerate(region.body.eqns):
        place = region.place_of(eqn)
        depth = len(place.path) - len(source.scopes_of(eqn).names)
        here = [] if place.again else [place.path[: depth + n + 1] for n in range(len(place.path) - depth)]
        kept = 0
        while kept < min(len(here), len(open_runs)) and open_runs[kept].place.path == here[kept]:
            kept += 1
        for run in reversed(open_runs[kept:]):
            ended.setdefault(run.indices[-1], []).append(run)
        del open_runs[kept:]
        for path in here[kept:]:
            cut = len(path)
            open_runs.append(_Run(place._replace(path=path, plain=place.plain[:cut]), []))
        for run in open_runs:
            run.indices.append(index)
    for run in reversed(open_runs):
        ended.setdefault(run.indices[-1], []).append(run)
    return ended


def is_array(aval: Any) -> bool:
    """Whether it is the type of an array, and not of a reference, a token, or a derivative that is always zero."""
    return type(aval) is compat.ShapedArray and aval.dtype != jax.dtypes.float0


def keys_of_marks(jaxpr: Any) -> Iterator[str]:
    """The keys that the program logs itself."""
    for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive is log_p:
            yield from eqn.params["mark"].keys
        for inner in compat.all_jaxprs_in_params(eqn.params):
            yield from keys_of_marks(inner)
