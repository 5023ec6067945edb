"""``custom_jvp_call`` and ``custom_vjp_call``: functions that bring their own derivative rules.

The rebuilt function returns its rows and stores with its results, and so must its rules. A rule is traced only when the
program is differentiated outside the transformation, ``grad(spool(f))``, after the structure of the logs was fixed. So the
records of a rule must have the same structure as those of the function. If a rule records nothing, the function is run for
its records. So it is if a rule calls its function again on tangents, as the rule of a linear function does.

The backward rule of a ``custom_vjp`` runs after the function has returned its logs, so its marks belong to a transformation
outside, ``spool(grad(f))``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import ConflictError
from lox._interpret.collect import Collector, Context, Frame, Unrecorded
from lox._interpret.silent import for_its_records
from lox._jax import compat, partial_eval
from lox._marks.mark import marking
from lox._storage.rows import Chunk, Rows
from lox._types import Array


def evaluate_call(collector: Collector, jaxpr: Any, context: Context, args: list[Array]) -> Any:
    inner = Frame(context)
    outs = collector.run(jaxpr, args, inner)
    return outs, (inner.state, inner.rows.flat())


def evaluate_rule(
    collector: Collector,
    rule: Any,
    primal: Any,
    context: Context,
    primals: list[Array],
    tangents: list[Array],
    args: Any,
) -> Any:
    """The results of a rule, and records that have the structure of the function's."""
    of_rule = [*primals, *tangents]
    if not collector.survey(rule).usages:
        outs, nothing = evaluate_call(collector, rule, context, of_rule)
        if not collector.survey(primal).usages:
            return outs, nothing
        return outs, _records_of_function(collector, primal, context, args)
    recorded, wanted = _counts(collector, rule), _counts(collector, primal)
    marks_tangents = partial_eval.marks_depend_on(rule, [False] * len(primals) + [True] * len(tangents))
    if (marks_tangents or recorded != wanted) and tangents and _calls_again(collector, rule, primal):
        outs, _ = evaluate_call(Unrecorded(collector, collector.keep), rule, context, of_rule)
        return outs, _records_of_function(collector, primal, context, args)
    if marks_tangents:
        raise _conflict(f"tangents, {describe_counts(recorded)}", describe_counts(wanted))
    # Keys with stores must have them here too, and be recorded equally often: the stores cannot check that later.
    there_are_stores = collector.stores_in(rule, folds=False) <= context.state.keys()
    if not there_are_stores or (context.state and recorded != wanted):
        raise _conflict(describe_counts(recorded), describe_counts(wanted))
    outs, (state, rows) = evaluate_call(collector, rule, context, of_rule)
    # Traced, as the function is: with concrete arrays, an array that two keys record would be one leaf, not two.
    expected_state, expected = jax.eval_shape(
        lambda context, args: evaluate_call(collector, primal, context, args)[1], context, list(args)
    )
    fitting = fit(rows, expected)
    if fitting is None or jax.tree.structure(state) != jax.tree.structure(expected_state):
        raise _conflict(describe_rows(rows), describe_rows(expected))
    return outs, (jax.tree.map(lambda x, like: compat.cast(x, like.dtype), state, expected_state), fitting)


def _records_of_function(collector: Collector, primal: Any, context: Context, args: list[Array]) -> Any:
    # A transformation outside gets the marks of the rule, and one inside has made the host calls of the rule.
    with marking(None):
        return evaluate_call(collector, for_its_records(primal), context, args)[1]


def _counts(collector: Collector, jaxpr: Any) -> dict[str, int | None]:
    return {key: usage.records for key, usage in collector.survey(jaxpr).usages.items()}


def _calls_again(collector: Collector, rule: Any, primal: Any) -> bool:
    """Whether a rule records only what its function records, once or several times."""
    recorded, wanted = _counts(collector, rule), _counts(collector, primal)
    if recorded.keys() != wanted.keys() or not _sites(collector, rule) <= _sites(collector, primal):
        return False
    pairs = [(recorded[key], wanted[key]) for key in wanted]
    return all(ours is None or (bool(theirs) and ours % theirs == 0) for ours, theirs in pairs if theirs is not None)


def _sites(collector: Collector, jaxpr: Any) -> set[str]:
    return {use.mark.site for usage in collector.survey(jaxpr).usages.values() for use in usage.uses}


def describe_counts(counts: dict[str, int | None]) -> str:
    return ", ".join(f"{key!r} x {'?' if number is None else number}" for key, number in counts.items())


def _conflict(recorded: str, expected: str) -> ConflictError:
    return ConflictError(
        f"lox: a derivative rule and its function record different things ({recorded} instead of {expected}), so "
        "grad(spool(f)) cannot return the logs of the function. Record the same in both, or write spool(grad(f))"
    )


def fit(rows: Rows, expected: Rows) -> Rows | None:
    """``rows`` with the order of keys, the types and the shared arrays of ``expected``; None if they do not fit."""
    if _outline(rows) != _outline(expected):
        return None
    arrays: dict[int, Array] = {}
    for key, chunks in expected.items():
        for chunk, like in zip(rows[key], chunks, strict=True):
            for array, place in zip(chunk.unpacked(), like.unpacked(), strict=True):
                if arrays.setdefault(id(place), array) is not array:
                    return None
    used: set[int] = set()

    def take(place: Any) -> Array:
        array = arrays[id(place)]
        # An array that is one here and two there has to become two.
        array = jnp.copy(array) if id(array) in used else array
        used.add(id(array))
        return compat.cast(array, place.dtype)

    return jax.tree.map(take, expected)


def _outline(rows: Rows) -> dict[str, Any]:
    return {
        key: [
            (chunk.lengths, tuple(axis for axis, _ in chunk.steps), [np.shape(array) for array in chunk.unpacked()])
            for chunk in chunks
        ]
        for key, chunks in rows.items()
    }


def describe_rows(rows: Rows) -> str:
    return ", ".join(map(_describe_key, rows.items())) or "nothing"


def _describe_key(item: tuple[str, tuple[Chunk, ...]]) -> str:
    key, chunks = item
    shapes = {
        np.shape(leaf)[len(chunk.lengths) :] for chunk in chunks for leaf in chunk.unpacked()[: len(chunk.leaves)]
    }
    of_shape = "" if shapes == {()} else f" of shape {' and '.join(map(str, sorted(shapes)))}"
    return f"{key!r} x {sum(chunk.rows for chunk in chunks)}{of_shape}"


def prepare_call(collector: Collector, frame: Frame, jaxpr: Any) -> Context:
    numbers = collector.stores_in(jaxpr, folds=False)
    collector.settle(frame, numbers)
    return frame.context(numbers)


def finish_call(frame: Frame, results: Any) -> list[Array]:
    outs, (state, rows) = results
    frame.state.update(state)
    frame.rows.extend(rows)
    return list(outs)


def run_custom_jvp(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    primal, num_consts = params["call_jaxpr"], params["num_consts"]

    @jax.custom_jvp
    def call(context: Context, *args: Array) -> Any:
        return evaluate_call(collector, primal, context, list(args))

    def jvp(primals: Any, tangents: Any) -> Any:
        context, *args = primals
        _, *arg_tangents = tangents
        rule_tangents = arg_tangents[num_consts:]
        if not params["symbolic_zeros"]:
            rule_tangents = list(map(materialise, rule_tangents))
        zeros = [type(tangent) is jax.custom_derivatives.SymbolicZero for tangent in rule_tangents]
        with collector.rule_context():
            jaxpr, consts, out_zeros = compat.call_thunk(params["jvp_jaxpr_fun"], *zeros)
        rule = compat.close(jaxpr, consts)
        nonzero = [tangent for tangent, zero in zip(rule_tangents, zeros, strict=True) if not zero]
        flat, recorded = evaluate_rule(collector, rule, primal, context, args[num_consts:], nonzero, args)
        outs, out_tangents = flat[: len(out_zeros)], iter(flat[len(out_zeros) :])
        filled = [
            compat.zero_tangent(out) if zero else next(out_tangents) for out, zero in zip(outs, out_zeros, strict=True)
        ]
        return (outs, recorded), (filled, jax.tree.map(compat.zero_tangent, recorded))

    call.defjvp(jvp, symbolic_zeros=True)
    return finish_call(frame, call(prepare_call(collector, frame, primal), *invals))


def run_custom_vjp(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    primal = params["call_jaxpr"]
    forward, backward = _vjp_rules(collector, params)

    @jax.custom_vjp
    def call(context: Context, *args: Array) -> Any:
        return evaluate_call(collector, primal, context, list(args))

    call.defvjp(forward, backward, symbolic_zeros=True)
    return finish_call(frame, call(prepare_call(collector, frame, primal), *invals))


def _vjp_rules(collector: Collector, params: dict[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    primal, num_consts = params["call_jaxpr"], params["num_consts"]

    def forward(context: Context, *args: Any) -> Any:
        context = jax.tree.map(lambda arg: arg.value, context, is_leaf=_is_primal)
        values = [arg.value for arg in args]
        perturbed = [arg.perturbed for arg in args[num_consts:]]
        with collector.rule_context():
            jaxpr, consts = compat.call_thunk(params["fwd_jaxpr_thunk"], *perturbed)
        _, residual_tree, forwarded = params["out_trees"]()
        flat, recorded = evaluate_rule(
            collector, compat.close(jaxpr, consts), primal, context, values[num_consts:], [], values
        )
        num_residuals = residual_tree.num_leaves - sum(place is not None for place in forwarded)
        computed = iter(flat[:num_residuals])
        residuals = [next(computed) if place is None else values[place] for place in forwarded]
        return (flat[num_residuals:], recorded), residuals

    def backward(residuals: Any, cotangents: Any) -> Any:
        outs, _ = cotangents
        if not params["symbolic_zeros"]:
            outs = [materialise(ct) for ct in outs]
        with collector.backward_context():
            results = compat.call_backward(params["bwd"], *residuals, *outs)
        return (None, *[None] * num_consts, *[None if compat.is_zero_tangent(ct) else ct for ct in results])

    return forward, backward


def _is_primal(leaf: Any) -> bool:
    return hasattr(leaf, "perturbed")


def materialise(tangent: Any) -> Any:
    """A tangent as an array. JAX uses a symbol for zero tangents."""
    if type(tangent) is jax.custom_derivatives.SymbolicZero:
        return compat.zeros_of(tangent.aval)
    return tangent
