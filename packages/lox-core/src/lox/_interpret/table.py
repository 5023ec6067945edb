"""The table of rules: one for each primitive that can hold marks.

A rule says what the primitive's jaxprs record (``usages``), and rebuilds the primitive (``run``) with the public function
of JAX that made it. There are two kinds of primitives:

* *transparent* ones (``jit``, ``checkpoint``, custom derivatives, ...) run their jaxpr once, and pass its rows out.
* *folding* ones (loops, branches) put rows into the stores at the end of each body, and carry the stores.

``lox/_interpret/rules`` fills the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from lox._errors import UnsupportedPrimitiveError, name_sites
from lox._jax import compat, hi_primitives
from lox._marks.primitives import log_p
from lox._types import Array

if TYPE_CHECKING:  # both import this module to look up rules
    from lox._interpret.collect import Collector, Frame
    from lox._interpret.survey import Survey, Usages


class Rebuild(Protocol):
    """Evaluates an equation, rebuilt around a function that evaluates what is inside it."""

    def __call__(self, collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]: ...


class Rule(Protocol):
    folds: bool

    def usages(self, eqn: Any, survey: Survey) -> Usages: ...

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]: ...

    def run(self, collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]: ...


class Transparent:
    """Runs one jaxpr once; ``find(eqn)`` returns it."""

    folds = False

    def __init__(self, find: Callable[[Any], Any], run: Rebuild) -> None:
        self.find = find
        self.run = run

    def usages(self, eqn: Any, survey: Survey) -> Usages:
        return survey(self.find(eqn)).usages

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]:
        return survey(self.find(eqn)).folded


class Folding:
    folds = True

    def __init__(self, usages: Callable[[Any, Survey], Usages], run: Rebuild) -> None:
        self.usages = usages
        self.run = run

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]:
        return frozenset(self.usages(eqn, survey))


RULES: dict[str, Rule] = {}


def knows(eqn: Any) -> bool:
    return hi_primitives.name_of(eqn) in RULES


def find(eqn: Any) -> Rule:
    if knows(eqn):
        return RULES[hi_primitives.name_of(eqn)]
    sites = name_sites(_sites(eqn.params))
    what = f"lox.log call ({sites})" if sites else "call of a logger or a tap"
    raise UnsupportedPrimitiveError(
        f"lox: a {what} is inside {hi_primitives.name_of(eqn)!r}, a primitive that lox does not know. "
        "Move the call outside it, or remove it with lox.nolog"
    )


def _sites(params: dict[str, Any]) -> list[str]:
    sites: list[str] = []
    for jaxpr in compat.all_jaxprs_in_params(params):
        for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
            sites += [eqn.params["mark"].site] if eqn.primitive is log_p else _sites(eqn.params)
    return sites
