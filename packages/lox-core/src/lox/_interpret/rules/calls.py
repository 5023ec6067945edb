"""Primitives that call a function: ``jit``, ``checkpoint``, closed calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.table import Rebuild
from lox._jax import compat, jitted
from lox._types import Array


def run_inline(find: Callable[[Any], Any]) -> Rebuild:
    return lambda collector, frame, eqn, invals: collector.run(find(eqn), invals, frame)


def call_through(
    collector: Collector,
    frame: Frame,
    jaxpr: Any,
    wrap: Callable[[Callable[..., Any]], Any],
    label: Any,
    args: list[Array],
) -> list[Array]:
    """Evaluate ``jaxpr`` inside ``wrap(function)``, with rows and stores passed in and out as values."""
    # An inner jaxpr of JAX may return a Ref that it was given, but a function may not.
    refs = compat.returned_refs(jaxpr)
    numbers = collector.stores_in(jaxpr, folds=False)
    collector.settle(frame, numbers)
    call, _ = collector.memo.get(label, (None, None))
    if call is None:

        def evaluate(context: Context, *args: Array) -> Any:
            inner = Frame(context)
            outs = collector.run(jaxpr, args, inner)
            return [out for i, out in enumerate(outs) if i not in refs], inner.state, inner.rows

        call = wrap(evaluate)
        if not compat.holds_tracers(jaxpr):  # tracers stand for other values in each evaluation
            collector.memo[label] = (call, jaxpr)
    outs, state, rows = call(frame.context(numbers), *args)
    frame.state.update(state)
    frame.rows.extend(rows)
    rest = iter(outs)
    return [args[refs[i]] if i in refs else next(rest) for i in range(len(outs) + len(refs))]


def run_jit(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    label = (
        id(params["jaxpr"]),
        params["name"],
        params["donated_invars"],
        params["in_shardings"],
        params["out_shardings"],
        params["in_layouts"],
        params["out_layouts"],
        params["keep_unused"],
        params["inline"],
        params["compiler_options_kvs"],
    )

    def wrap(evaluate: Callable[..., Any]) -> Any:
        evaluate.__name__ = params["name"]
        given = jitted.placements(params["in_shardings"], params["in_layouts"])
        wanted = jitted.placements(params["out_shardings"], params["out_layouts"])
        options: dict[str, Any] = {}
        if any(sharding is not None for sharding in given):
            options["in_shardings"] = (None, *given)
        if any(sharding is not None for sharding in wanted):
            options["out_shardings"] = (list(wanted), None, None)
        donated = tuple(i + 1 for i, is_donated in enumerate(params["donated_invars"]) if is_donated)
        return jax.jit(
            evaluate,
            donate_argnums=donated,
            keep_unused=params["keep_unused"],
            inline=params["inline"],
            compiler_options=dict(params["compiler_options_kvs"]) or None,
            **options,
        )

    return call_through(collector, frame, params["jaxpr"], wrap, label, invals)


def run_checkpoint(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    prevent_cse = params["prevent_cse"]
    if params["differentiated"]:
        # This one computes again what the forward pass did not save. The barrier that keeps the compiler from saving it after
        # all is added by JAX when it differentiates, not by its public function.
        invals = _separate(invals, prevent_cse)
    by_argument = isinstance(prevent_cse, tuple)
    state = frame.context(collector.stores_in(params["jaxpr"], folds=False)).state
    policy = compat.savable_policy(params["policy"], jax.tree.leaves(state))
    options = {"prevent_cse": (False, *prevent_cse) if by_argument else prevent_cse, "policy": policy}
    wrap = functools.partial(jax.checkpoint, **options)
    label = (id(params["jaxpr"]), "checkpoint", *options.values())
    return call_through(collector, frame, params["jaxpr"], wrap, label, invals)


def _separate(args: list[Array], which: bool | tuple[bool, ...]) -> list[Array]:
    """The arguments, with a barrier around the chosen ones: the compiler cannot identify them with values elsewhere."""
    chosen = [
        i for i, arg in enumerate(args) if (which if isinstance(which, bool) else which[i]) and not compat.is_ref(arg)
    ]
    separate = list(args)
    for i, value in zip(chosen, jax.lax.optimization_barrier([args[i] for i in chosen]), strict=True):
        separate[i] = value
    return separate
