"""Primitives that are objects (``lox._jax.hi_primitives``): checkpoints, and functions with derivative rules.

Their rules follow those for the older primitives in ``calls`` and ``derivatives``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.rules import calls, derivatives
from lox._jax import compat
from lox._jax import hi_primitives as hi

Array = Any


def _prim(eqn: Any) -> Any:
    return hi.primitive_of(eqn.params)


# --- jax.checkpoint with jax_remat3 ------------------------------------------------------------------------------------


def checkpoint_jaxpr(eqn: Any) -> Any:
    return _prim(eqn).jaxpr


def run_checkpoint(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    prim = _prim(eqn)
    prevent_cse = prim.prevent_cse if isinstance(prim.prevent_cse, bool) else (False, *prim.prevent_cse)
    options = {"prevent_cse": prevent_cse, "policy": prim.policy}
    wrap = functools.partial(jax.checkpoint, **options)
    label = (id(prim.jaxpr), "checkpoint", *options.values())
    return calls.call_through(collector, frame, prim.jaxpr, wrap, label, invals)


# --- custom_jvp with jax_custom_jvp3, custom_vjp with jax_custom_vjp3 --------------------------------------------------


def primal_jaxpr(eqn: Any) -> Any:
    return hi.primal_jaxpr(_prim(eqn))


class _Call:
    """The function of an equation, which returns its records as a list. JAX rebuilds what such a function returns as trees of
    types, and rows know by identity which arrays they share."""

    def __init__(self, collector: Collector, primal: Any) -> None:
        self.collector = collector
        self.primal = primal
        self.tree: Any = None

    def __call__(self, context: Context, *args: Array) -> Any:
        outs, recorded = derivatives.evaluate_call(self.collector, self.primal, context, list(args))
        leaves, self.tree = jax.tree.flatten(recorded)
        return outs, leaves

    def rule(self, rule: Any, context: Context, args: list[Array], tangents: list[Array]) -> tuple[list[Array], Any]:
        """The results and the records of one of its derivative rules."""
        outs, recorded = derivatives.evaluate_rule(self.collector, rule, self.primal, context, args, tangents, args)
        # Constants are numpy arrays, which JAX does not take from a rule here, as it does without the flags. Those of the rule
        # itself stay as they are: a residual may be a condition of Python.
        return outs, list(map(_on_device, jax.tree.leaves(recorded)))

    def finish(self, frame: Frame, results: Any) -> list[Array]:
        outs, leaves = results
        return derivatives.finish_call(frame, (outs, self.tree.unflatten(leaves)))


def _on_device(value: Any) -> Array:
    return value if isinstance(value, jax.Array) else compat.array_of(value, jax.typeof(value))


def run_custom_jvp(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    prim, primal = _prim(eqn), primal_jaxpr(eqn)
    evaluate = _Call(collector, primal)

    def jvp(primals: Any, tangents: Any) -> Any:
        context, *args = primals
        zeros = [type(tangent) is jax.custom_derivatives.SymbolicZero for tangent in tangents[1:]]
        nonzero = [tangent for tangent, zero in zip(tangents[1:], zeros, strict=True) if not zero]
        with collector.rule_context():
            rule, out_zeros = hi.trace_jvp_rule(prim, args, zeros, nonzero)
        flat, recorded = evaluate.rule(rule, context, args, nonzero)
        outs, out_tangents = flat[: len(out_zeros)], iter(flat[len(out_zeros) :])
        filled = [
            compat.zero_tangent(out) if zero else next(out_tangents) for out, zero in zip(outs, out_zeros, strict=True)
        ]
        return (outs, recorded), (filled, [*map(compat.zero_tangent, recorded)])

    call = jax.custom_jvp(lambda context, *args: evaluate(context, *args))
    call.defjvp(jvp, symbolic_zeros=True)
    return evaluate.finish(frame, call(derivatives.prepare_call(collector, frame, primal), *invals))


def run_custom_vjp(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    prim, primal = _prim(eqn), primal_jaxpr(eqn)
    evaluate = _Call(collector, primal)

    def forward(context: Context, *args: Any) -> Any:
        context = jax.tree.map(lambda arg: arg.value, context, is_leaf=lambda leaf: hasattr(leaf, "perturbed"))
        values = [arg.value for arg in args]
        with collector.rule_context():
            rule, restore = hi.trace_forward_rule(prim, values, [arg.perturbed for arg in args])
        flat, recorded = evaluate.rule(rule, context, values, [])
        outs, residuals = restore(flat)
        return (outs, recorded), residuals

    def backward(residuals: Any, cotangents: Any) -> Any:
        with collector.backward_context():
            return None, *hi.run_backward_rule(prim, residuals, cotangents[0])

    call = jax.custom_vjp(lambda context, *args: evaluate(context, *args))
    call.defvjp(forward, backward, symbolic_zeros=True)
    return evaluate.finish(frame, call(derivatives.prepare_call(collector, frame, primal), *invals))
