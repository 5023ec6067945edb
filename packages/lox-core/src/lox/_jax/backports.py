"""What lox changes in JAX, so that marks survive differentiation exactly once."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import core as _core
from jax._src import source_info_util as _source_info_util
from jax._src.interpreters import partial_eval as _pe
from jax._src.lax.control_flow import loops as _loops

from lox._jax.compat import Literal, close, holds_effect, our_effects

# --- marks under differentiation ---------------------------------------------------------------------------------------
# When JAX differentiates a scan it moves what does not depend on carry or xs out of the loop: a mark would then run once
# instead of n times. For the derivative of a while loop it runs the whole loop a second time, with its marks. And what it
# stages out of calls and conditionals is kept for its results only: marks have none. Loops, calls and conditionals without
# marks are left to JAX.


def keep_in_loops(primitive: Any) -> None:
    """Under differentiation, equations of ``primitive`` stay in their loops, and run once."""
    _our_primitives.add(primitive)

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _taking_a_checkpointed_scan_apart():
            return trace.default_process_primitive(primitive, tracers, params)
        # A mark of constants depends on nothing, and would leave the loop with what is known.
        return _stage(trace, primitive, tracers, params)

    _pe.custom_partial_eval_rules[primitive] = rule
    _pe.partial_eval_jaxpr_custom_rules[primitive] = _pass_on_in_checkpoint


def _stage(trace: Any, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """Put an equation into the jaxpr that partial evaluation builds, whatever is known."""
    staged = [trace.instantiate_const(tracer) for tracer in tracers]
    out_avals, effects = primitive.abstract_eval(*(tracer.aval for tracer in staged), **params)
    outs = [_pe.JaxprTracer(trace, _pe.PartialVal.unknown(aval), None) for aval in out_avals]
    eqn = _pe.new_eqn_recipe(trace, staged, outs, primitive, params, effects, _source_info_util.current())
    trace.effect_handles.append(_pe.EffectHandle(staged, eqn))
    for out in outs:
        out.recipe = eqn
    return outs


def _taking_a_checkpointed_scan_apart() -> bool:
    """That pass is a partial evaluation like any other: the one thing that tells it apart is who started it."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _loops._scan_partial_eval_custom.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


_our_primitives: set[Any] = set()


def _holds_ours(params: dict[str, Any]) -> bool:
    return holds_effect(params, tuple(our_effects))


def _is_ours(effect: Any) -> bool:
    return isinstance(effect, tuple(our_effects))


_hoist: Any = _loops._scan_known_hoisting


def _hoist_without_marks(jaxpr: Any, consts: Any, num_residuals: int, *rest: Any) -> Any:
    """JAX's own way to move nothing, for loops with marks."""
    if any(map(_is_ours, jaxpr.effects)):
        return jaxpr, consts, [False] * num_residuals, []
    return _hoist(jaxpr, consts, num_residuals, *rest)


class _EverythingIsARef:
    """Stands in for the module in which JAX looks up what must not be moved out of a loop."""

    AbstractRef = object


def _take_apart_without_hoisting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Scans in ``jax.checkpoint``: JAX moves all invariants but references, so let everything be one."""
    in_place = types.FunctionType(original.__code__, {**original.__globals__, "state": _EverythingIsARef})

    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        return (in_place if _holds_ours(eqn.params) else original)(saveable, unknown, instantiated, eqn)

    return rule


def _run_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """While loops: JAX runs the known part, and stages the whole loop for the rest."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _holds_ours(params):
            return original(trace, *tracers, **params)
        if not _marks_are_known(tracers, params):
            tracers = tuple(map(trace.instantiate_const, tracers))
        handles = list(trace.effect_handles)
        outs = original(trace, *tracers, **params)
        _forget_repetition(trace, handles, outs)
        return outs

    return rule


def _marks_are_known(tracers: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the known part of a while loop has all of its marks."""
    unknown = [not tracer.is_known() for tracer in tracers]
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, carry = unknown[num_cond:][:num_body], unknown[num_cond + num_body :]
    while True:
        _, staged, carry_out, _ = _pe.partial_eval_jaxpr_nounits(params["body_jaxpr"], consts + carry, carry)
        if list(carry_out) == carry:
            break
        carry = [a or b for a, b in zip(carry, carry_out, strict=True)]
    _, staged_cond, _, _ = _pe.partial_eval_jaxpr_nounits(params["cond_jaxpr"], unknown[:num_cond] + carry, False)
    return not any(map(_is_ours, {*staged.effects, *staged_cond.effects}))


def _inline(trace: Any, primitive: Any, fun: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
    """JAX < 0.11, closed calls: it takes them apart, and loses the part that has no results but an effect."""
    del primitive, params
    with _core.set_current_trace(trace):
        return fun.call_wrapped(*tracers)


def _whole_with_marks(primitive: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls and conditionals: where a mark would be in the part that is staged, all of it is, and the effect is kept."""

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if _holds_ours(params):
            unknown = [not tracer.is_known() for tracer in tracers]
            unknown = unknown[1:] if primitive.name == "cond" else unknown
            staged = [_pe.partial_eval_jaxpr_nounits(jaxpr, unknown, False)[1] for jaxpr in _closed_jaxprs(params)]
            if any(_is_ours(effect) for jaxpr in staged for effect in jaxpr.effects):
                return _stage(trace, primitive, tracers, params)
        return original(trace, *tracers, **params)

    return rule


def _closed_jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs of an equation with their constants, which ``jaxprs_in_params`` leaves behind."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(part, "eqns"):
                yield part if hasattr(part, "consts") else close(part, ())


def _forget_repetition(trace: Any, handles: list[Any], outs: Sequence[Any]) -> None:
    """Of a loop that was run for its known results and staged for the others: no marks in the staged one."""
    unknown = [out for out in outs if isinstance(out, _pe.JaxprTracer) and not out.pval.is_known()]
    if len(unknown) == len(outs):
        return
    trace.effect_handles[:] = handles
    if not unknown:  # it was staged for its effect alone
        return
    eqn = unknown[0].recipe
    silent = eqn._replace(params=_silent(eqn.params), effects=_others(eqn.effects))  # a recipe, not an equation
    for out in unknown:
        out.recipe = silent


def _run_once_in_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """While loops in ``jax.checkpoint``: what is computed again for the backward pass has no marks."""

    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, staged, *rest = original(saveable, unknown, instantiated, eqn)
        if known is not None and _holds_ours(eqn.params):
            staged = _silent_eqn(staged)
        return known, staged, *rest

    return rule


def _pass_on_in_checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """Equations of ours in ``jax.checkpoint``: JAX saves the results of what has an effect. A token need not be saved, and
    in a while loop cannot: where all is computed again, it is the one that came in."""
    del saveable
    number = len(eqn.outvars)
    variables = [(atom, there) for atom, there in zip(eqn.invars, instantiated, strict=True) if _is_variable(atom)]
    if any(unknown):
        return None, eqn, [True] * number, [True] * number, [atom for atom, there in variables if not there]
    if not (number and _passes_on(eqn)):
        return eqn, None, [False] * number, [False] * number, []
    token = eqn.invars[0]
    passed = eqn.replace(invars=[token], primitive=jax.lax.copy_p, params={}, effects=set())
    return eqn, passed, [False], [True], [atom for atom, there in variables[:1] if atom is token and not there]


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _silent_eqn(eqn: Any) -> Any:
    return eqn.replace(params=_silent(eqn.params), effects=_others(eqn.effects))


def _others(effects: Any) -> Any:
    return frozenset(effect for effect in effects if not _is_ours(effect))


def _silent(value: Any) -> Any:
    """A copy of a jaxpr, or of what holds jaxprs, without our equations."""
    if isinstance(value, dict):
        return {name: _silent(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_silent, value)) if type(value) in (tuple, list) else value
    if hasattr(value, "eqns") and hasattr(value, "consts") and hasattr(value, "jaxpr"):
        return close(_silent(value.jaxpr), value.consts) if value.jaxpr is not value else _silent_jaxpr(value)
    return _silent_jaxpr(value) if hasattr(value, "eqns") else value


def _silent_jaxpr(jaxpr: Any) -> Any:
    if not any(map(_is_ours, jaxpr.effects)):
        return jaxpr
    passed: dict[Any, Any] = {}  # results of ours that are one of their operands, as it came in

    def origin(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else passed.get(atom, atom)

    eqns = []
    for eqn in jaxpr.eqns:
        eqn = eqn.replace(invars=[*map(origin, eqn.invars)])
        if eqn.primitive in _our_primitives and _passes_on(eqn):
            passed.update(zip(eqn.outvars, eqn.invars, strict=False))
        else:
            eqns.append(_silent_eqn(eqn) if any(map(_is_ours, eqn.effects)) else eqn)
    return jaxpr.replace(eqns=eqns, outvars=[*map(origin, jaxpr.outvars)], effects=_others(jaxpr.effects))


def _passes_on(eqn: Any) -> bool:
    """Whether the results are the first operands: none at all, or the token that orders calls of the host."""
    return len(eqn.outvars) == int(eqn.params.get("has_token", False))


def _mind_the_marks() -> None:
    _loops._scan_known_hoisting = _hoist_without_marks
    rules, checkpoint_rules = _pe.custom_partial_eval_rules, _pe.partial_eval_jaxpr_custom_rules
    for primitive in [p for p in rules if p.name in ("jit", "eval_jaxpr", "cond", "remat2", "checkpoint")]:
        rules[primitive] = _whole_with_marks(primitive, rules[primitive])
    rules[_loops.while_p] = _run_once(rules[_loops.while_p])
    checkpoint_rules[_loops.while_p] = _run_once_in_checkpoint(checkpoint_rules[_loops.while_p])
    if jax.__version_info__ < (0, 11):
        _pe.call_partial_eval_rules[_core.closed_call_p] = _inline
    checkpoint_rules[_loops.scan_p] = _take_apart_without_hoisting(checkpoint_rules[_loops.scan_p])


_mind_the_marks()
