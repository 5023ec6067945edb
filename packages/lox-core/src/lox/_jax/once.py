"""Marks and host calls under differentiation: rules of lox's own primitives.

JAX differentiates a program in passes that take it apart: what can be computed now, and what is left for later. In each of
them an equation of ours shall run once, as often as the loop around it. Two facts are not known to a rule, and are passed
to it in a JAX user context, which is part of the keys of JAX's caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import partial_eval as _pe

from lox._jax.compat import Literal

# True while JAX moves out of a loop what is the same in every iteration. Marks stay.
hoisting = jax.make_user_context(default_value=None)


def run_once(primitive: Any) -> None:
    """Equations of ``primitive`` run once, and as often as the loops around them."""

    def partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        if hoisting.value:
            return stage(trace, primitive, tracers, params)
        return trace.default_process_primitive(primitive, tracers, params)

    _pe.custom_partial_eval_rules[primitive] = partial_eval
    _pe.partial_eval_jaxpr_custom_rules[primitive] = _checkpoint


def stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """Put an equation into the jaxpr that partial evaluation builds, whatever is known."""
    staged = [trace.instantiate_const(tracer) for tracer in tracers]
    out_avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in staged), **params)
    outs = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in out_avals]
    eqn = _pe.new_eqn_recipe(trace, staged, outs, primitive, params, effects, _source_info_util.current())
    trace.effect_handles.append(_pe.EffectHandle(staged, eqn))
    for out in outs:
        out.recipe = eqn
    return outs


def _checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """In ``jax.checkpoint``, JAX saves the results of what has an effect. A token need not be saved, and in a while loop
    cannot: where all is computed again, it is the one that came in."""
    del saveable
    number = len(eqn.outvars)
    variables = [(atom, there) for atom, there in zip(eqn.invars, instantiated, strict=True) if _is_variable(atom)]
    if any(unknown):
        return None, eqn, [True] * number, [True] * number, [atom for atom, there in variables if not there]
    if not (number and passes_on(eqn)):
        return eqn, None, [False] * number, [False] * number, []
    token = eqn.invars[0]
    passed = eqn.replace(invars=[token], primitive=jax.lax.copy_p, params={}, effects=set())
    return eqn, passed, [False], [True], [atom for atom, there in variables[:1] if atom is token and not there]


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def passes_on(eqn: Any) -> bool:
    """Whether the results are the first operands: none at all, or the token that orders calls of the host."""
    return len(eqn.outvars) == int(eqn.params.get("has_token", False))
