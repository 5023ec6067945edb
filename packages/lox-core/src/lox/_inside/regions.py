"""The map of a traced program: bodies inside equations inside bodies, each with a readable path.

A ``Region`` is one body at one place: a function that is called twice has two. A ``Node`` is an equation that can be
entered. Both are made when they are first reached, because derivative rules are traced late. Paths depend only on the
program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from lox._interpret.table import RULES
from lox._jax import compat, hi_primitives, source
from lox._jax.scans import Scan, is_scan

Path = tuple[str, ...]


class Loop(NamedTuple):
    """A loop around a region."""

    path: str
    length: int | None  # None if it runs until a condition is false


class Place(NamedTuple):
    """Where an equation is.

    Attributes:
      path: the surrounding loops, functions and scopes, numbered where names would clash.
      plain: the same without the numbers.
    """

    path: Path
    plain: Path
    scopes: Path
    backward: bool
    again: bool

    def at(self, label: str, number: int = 0) -> Place:
        """A place inside this one; without a label, this one."""
        if not label:
            return self
        numbered = f"{label}.{number}" if number else label
        return self._replace(path=(*self.path, numbered), plain=(*self.plain, label))


START = Place((), (), (), False, False)


class Node:
    """An equation with bodies that can be entered."""

    def __init__(
        self, eqn: Any, place: Place, around: tuple[Loop, ...], branched: bool, line: source.Line, of_jax: bool
    ) -> None:
        self.eqn = eqn
        self.line = line
        self.of_jax = of_jax
        self.place = place
        self.around = around
        self.branched = branched
        self.loop = _loop(eqn, "/".join(place.path))
        self._regions: dict[int, Region] = {}

    def region(self, jaxpr: Any) -> Region:
        """The region of one of its bodies, or of a derivative rule."""
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._regions:
            label = _parts(self.eqn).get(id(body), "")
            loops = (*self.around, self.loop) if self.loop else self.around
            self._regions[id(body)] = Region(self, body, self.place.at(label), loops)
        return self._regions[id(body)]

    def regions(self) -> Iterator[Region]:
        """The regions of its bodies that can be looked into."""
        for jaxpr in compat.all_jaxprs_in_params(self.eqn.params):
            region = self.region(jaxpr)
            if not region.linear:
                yield region


class Region:
    """One body at one place of the program."""

    def __init__(self, node: Node, body: Any, place: Place, loops: tuple[Loop, ...]) -> None:
        self.body = body  # also keeps its equations alive, which are identified by their id
        self.place = place
        self.loops = loops
        self._line, self._of_jax = node.line, node.of_jax
        # The condition of a while loop belongs to the loop, but is not an iteration of it.
        self.iterates = node.loop is not None and body is not compat.open_jaxpr(node.eqn.params.get("cond_jaxpr"))[0]
        self.branched = node.branched or node.eqn.primitive.name == "cond"
        # JAX transposes the product of a linear solve, and nothing can be added to a function that is transposed.
        self.linear = node.eqn.primitive.name == "custom_linear_solve" and body is not _solve(node.eqn)
        self._tangents = _of_tangents(node.eqn, body)
        self.nodes: dict[int, Node] = {}
        self._labels: Counter[Path] = Counter()
        for eqn in body.eqns:
            if can_be_entered(eqn) and not self.computes_tangents(eqn):
                place = self.place_of(eqn)
                label = _label(eqn)
                here = (*place.path, label)
                node_place = place.at(label, self._labels[here])
                self._labels[here] += 1
                of_jax = self._of_jax or (is_function(eqn) and source.is_of_jax(eqn))
                self.nodes[id(eqn)] = Node(eqn, node_place, loops, self.branched, self.line_of(eqn), of_jax)

    def computes_tangents(self, eqn: Any) -> bool:
        """Whether it is in the linear part of a forward derivative rule. No mark or report may depend on that part."""
        return id(eqn) in self._tangents

    def line_of(self, eqn: Any) -> source.Line:
        """Its source line. For equations inside a function of JAX, and those without a line, it is that of the call."""
        line = self._line if self._of_jax else source.line_of(eqn)
        return self._line if line == source.UNKNOWN else line

    def place_of(self, eqn: Any) -> Place:
        names, backward, again = source.scopes_of(eqn)
        here = self.place
        if backward and not here.backward:
            here = here.at("backward")
        return Place(
            (*here.path, *names),
            (*here.plain, *names),
            (*here.scopes, *names),
            here.backward or backward,
            here.again or again,
        )


class _Whole(NamedTuple):
    """The whole program, as if it were the body of an equation."""

    primitive: Any
    params: dict[str, Any]


class _Program(NamedTuple):
    name: str


def root(jaxpr: Any) -> Node:
    return Node(_Whole(_Program("program"), {"call_jaxpr": jaxpr}), START, (), False, source.UNKNOWN, False)


def can_be_entered(eqn: Any) -> bool:
    return hi_primitives.name_of(eqn) in RULES


# The current primitives, and what replaces them with JAX's upgrade flags.
_FUNCTIONS = ("jit", "custom_jvp_call", "custom_vjp_call", "CustomJVPTraced", "CustomVJPTraced")
_FORWARD_RULES = ("custom_jvp_call", "CustomJVPTraced")


def is_function(eqn: Any) -> bool:
    """Whether it calls a function with a name."""
    return hi_primitives.name_of(eqn) in _FUNCTIONS


_LABELS = {
    "scan": "scan",
    "Scan3": "scan",
    "while": "while",
    "cond": "cond",
    "shard_map": "shard_map",
    "custom_linear_solve": "linear_solve",
    "CustomRoot": "custom_root",
}


def _label(eqn: Any) -> str:
    if is_function(eqn):
        return (source.function_name(eqn) or hi_primitives.name_of(eqn)).strip("<>")
    return _LABELS.get(hi_primitives.name_of(eqn), "")


def _loop(eqn: Any, path: str) -> Loop | None:
    if is_scan(eqn):
        return Loop(path, Scan.of(eqn).length)
    return Loop(path, None) if eqn.primitive.name == "while" else None


def _parts(eqn: Any) -> dict[int, str]:
    """The names of the bodies of an equation that has several."""
    name, params = eqn.primitive.name, eqn.params
    if name == "cond":
        branches = params["branches"]
        labels = ["false", "true"] if len(branches) == 2 else [str(i) for i in range(len(branches))]
        return {id(compat.open_jaxpr(branch)[0]): label for branch, label in zip(branches, labels, strict=True)}
    if name == "while":
        return {id(compat.open_jaxpr(params["cond_jaxpr"])[0]): "condition"}
    return {}


def _solve(eqn: Any) -> Any:
    return compat.open_jaxpr(eqn.params["jaxprs"].solve)[0]


def _of_tangents(eqn: Any, body: Any) -> frozenset[int]:
    """The equations of a ``custom_jvp`` rule that depend on tangents. Among its operands, these follow the primals."""
    if hi_primitives.name_of(eqn) not in _FORWARD_RULES:
        return frozenset()
    prim = hi_primitives.primitive_of(eqn.params)
    primal, _ = compat.open_jaxpr(hi_primitives.primal_jaxpr(prim) if prim else eqn.params["call_jaxpr"])
    if body is primal:
        return frozenset()
    dependent: set[Any] = set(body.invars[len(primal.invars) - eqn.params.get("num_consts", 0) :])
    found = set()
    for inner in body.eqns:
        if any(not isinstance(atom, compat.Literal) and atom in dependent for atom in inner.invars):
            dependent.update(inner.outvars)
            found.add(id(inner))
    return frozenset(found)
