"""The condition of a single lane, in loops whose condition looks at all lanes at once.

The loops of equinox, and of libraries that use them, run in every lane as long as *any* lane wants to continue. Their
predicate has no lanes, so the loop stays a loop under ``vmap``, and the body selects what to keep. Such a predicate comes out
of a primitive that ignores the batch. Its operand is the lane's own answer.

While a body is evaluated, ``Frame.own`` holds that answer for the predicate and for values computed from it. Conditionals and
loops use it to find the lanes that would be here on their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lox._jax import compat
from lox._storage.stores import select
from lox._types import Array

if TYPE_CHECKING:  # collect imports this module
    from lox._interpret.collect import Frame


# Primitives of equinox whose result has no lanes, even if the operand has. For one lane they are the identity.
_ASK_ALL_LANES = frozenset(["unvmap_any", "unvmap_all", "unvmap_max", "nonbatchable"])


def asks_all_lanes(jaxpr: Any) -> bool:
    """Whether a condition asks all lanes at once."""
    return any(eqn.primitive.name in _ASK_ALL_LANES for eqn in compat.open_jaxpr(jaxpr)[0].eqns)


def asks_all_lanes_inside(jaxpr: Any) -> bool:
    """Whether a condition in it, at any depth, asks all lanes at once."""
    body, _ = compat.open_jaxpr(jaxpr)
    inner = (part for eqn in body.eqns for part in compat.all_jaxprs_in_params(eqn.params))
    return asks_all_lanes(body) or any(map(asks_all_lanes_inside, inner))


def follow(frame: Frame, eqn: Any, invals: list[Array]) -> None:
    """If an equation that was just evaluated depends on other lanes, note what a lane alone would compute."""
    asks = eqn.primitive.name in _ASK_ALL_LANES
    if not asks and not (frame.own and any(_has_own(frame, atom) for atom in eqn.invars)):
        return
    own = [answer(frame, atom, value) for atom, value in zip(eqn.invars, invals, strict=True)]
    if asks:
        frame.own.update(zip(eqn.outvars, own, strict=False))
    elif _is_logic(eqn):
        frame.own.update(zip(eqn.outvars, compat.bind_eqn(eqn, own), strict=True))


def _has_own(frame: Frame, atom: Any) -> bool:
    return not isinstance(atom, compat.Literal) and atom in frame.own


def _is_logic(eqn: Any) -> bool:
    """Whether it computes a scalar that predicates are made of. Such an equation is cheap to compute twice."""
    return not eqn.effects and all(
        getattr(var.aval, "shape", None) == () and getattr(var.aval.dtype, "kind", "") in "biu" for var in eqn.outvars
    )


def answer(frame: Frame, atom: Any, value: Array) -> Array:
    """The value that a variable would have in a lane alone; ``value`` unless other lanes were asked."""
    return frame.own.get(atom, value) if _has_own(frame, atom) else value


def select_state(alone: Array, after: Any, before: Any) -> Any:
    """In lanes that alone would have run a body, the state after it; in the others, the state before it."""
    return select(alone, after, before)
