"""One rule for each primitive that can hold marks.

A rule says what the primitive's jaxprs record (``usages``), and rebuilds it (``run``) with the public function of JAX
that made it. To find what happens to a primitive, look for its name in ``RULES`` at the end.

* *transparent* primitives (``jit``, ``checkpoint``, custom derivatives, ...) run their jaxpr once: rows pass out.
* *folding* ones (loops, branches) put rows into the stores at the end of each body, and carry the stores.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax

from lox import _derivative_rules, _shard_map_rule, _solver_rules
from lox import _jax_compat as compat
from lox._collect import Collector, Context, Frame
from lox._errors import UnsupportedPrimitiveError, name_sites
from lox._mark import log_p
from lox._rows import Rows
from lox._survey import Survey, Usages, in_branches, in_sequence
from lox._words import MAX_PACKED_ELEMENTS, Layout

Array = Any
Run = Callable[[Collector, Frame, Any, list[Array]], list[Array]]


class Rule(Protocol):
    folds: bool

    def usages(self, eqn: Any, survey: Survey) -> Usages: ...

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]: ...

    def run(self, collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]: ...


class Transparent:
    """Runs one jaxpr once; ``find(eqn)`` says which."""

    folds = False

    def __init__(self, find: Callable[[Any], Any], run: Run) -> None:
        self.find = find
        self.run = run

    def usages(self, eqn: Any, survey: Survey) -> Usages:
        return survey(self.find(eqn)).usages

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]:
        return survey(self.find(eqn)).folded


class Folding:
    folds = True

    def __init__(self, usages: Callable[[Any, Survey], Usages], run: Run) -> None:
        self.usages = usages
        self.run = run

    def folded(self, eqn: Any, survey: Survey) -> frozenset[str]:
        return frozenset(self.usages(eqn, survey))


# --- calls -----------------------------------------------------------------------------------------------------------


def _run_inline(find: Callable[[Any], Any]) -> Run:
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
    numbers = collector.stores_in(jaxpr, folds=False)
    collector.settle(frame, numbers)
    if label not in collector.memo:

        def evaluate(context: Context, *args: Array) -> Any:
            inner = Frame(context)
            outs = collector.run(jaxpr, args, inner)
            return outs, inner.state, inner.rows

        collector.memo[label] = (wrap(evaluate), jaxpr)
    outs, state, rows = collector.memo[label][0](frame.context(numbers), *args)
    frame.state.update(state)
    frame.rows.extend(rows)
    return outs


def _run_jit(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    label = (
        id(params["jaxpr"]),
        params["name"],
        params["donated_invars"],
        params["in_shardings"],
        params["out_shardings"],
        params["keep_unused"],
        params["inline"],
        params["compiler_options_kvs"],
    )

    def wrap(evaluate: Callable[..., Any]) -> Any:
        evaluate.__name__ = params["name"]
        given = compat.specified_or_none(params["in_shardings"])
        wanted = compat.specified_or_none(params["out_shardings"])
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


def _run_checkpoint(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    options = {"prevent_cse": params["prevent_cse"], "policy": params["policy"]}
    wrap = functools.partial(jax.checkpoint, **options)
    label = (id(params["jaxpr"]), "checkpoint", *options.values())
    return call_through(collector, frame, params["jaxpr"], wrap, label, invals)


# --- loops -----------------------------------------------------------------------------------------------------------


def _scan_usages(eqn: Any, survey: Survey) -> Usages:
    body = survey(eqn.params["jaxpr"]).usages
    return {key: usage.times(eqn.params["length"]) for key, usage in body.items()}


def _run_scan(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    jaxpr, length, reverse = params["jaxpr"], params["length"], params["reverse"]
    num_consts, num_carry = compat.scan_arities(params)
    consts, init, xs = invals[:num_consts], invals[num_consts:][:num_carry], invals[num_consts + num_carry :]
    numbers = collector.stores_in(jaxpr, folds=True)
    collector.settle(frame, numbers)
    # The structure of the rows is the same in every iteration: it leaves the body beside the traced values.
    structure: list[Any] = []
    separate = _is_scalar_code(jaxpr)

    def body(carry: Any, x: Any) -> Any:
        carried, state = carry
        inner = Frame(frame.context(numbers, state=state))
        outs = collector.body(jaxpr, [*consts, *carried, *x], inner)
        rows = inner.rows.stack()
        arrays, tree = jax.tree.flatten(rows)
        limit = 0 if separate and len(arrays) <= _FUSED_OUTPUTS else MAX_PACKED_ELEMENTS
        # An input that is an output as well, such as the step, costs nothing: JAX hands it on. What a loop inside has
        # returned it has packed as it should be, and that loop took longer than writing its rows.
        layout = Layout.of(arrays, limit, apart={*map(id, x), *rows.of_inner_loops()})
        structure[:] = [tree, layout]
        return (outs[:num_carry], inner.state), (outs[num_carry:], layout.pack(arrays))

    (carried, state), (ys, packed) = jax.lax.scan(
        body,
        (init, frame.context(numbers).state),
        xs,
        length=None if xs else length,  # as a length, JAX takes numbers only; those of `jax.export` need not be any
        reverse=reverse,
        unroll=params["unroll"],
    )
    frame.state.update(state)
    tree, layout = structure
    frame.rows.extend(tree.unflatten(layout.columns(packed)).of_iterations(length, reverse))
    return [*carried, *ys]


# A body of scalar arithmetic becomes one kernel, which writes a few outputs as cheaply as one; packing would only add
# the work of taking them apart. Any other body has a kernel for each output.
_FUSED_OUTPUTS = 12


def _is_scalar_code(jaxpr: Any) -> bool:
    body, _ = compat.open_jaxpr(jaxpr)
    return all(
        all(var.aval.size == 1 for var in eqn.outvars if hasattr(var.aval, "size"))
        and (eqn.primitive.name == "jit" or not any(compat.all_jaxprs_in_params(eqn.params)))
        and all(map(_is_scalar_code, compat.all_jaxprs_in_params(eqn.params)))
        for eqn in body.eqns
    )


def _while_usages(eqn: Any, survey: Survey) -> Usages:
    parts = [survey(eqn.params["cond_jaxpr"]).usages, survey(eqn.params["body_jaxpr"]).usages]
    return {key: usage.unbounded("while_loop") for key, usage in in_sequence(parts).items()}


def _run_while(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, rest = invals[: params["cond_nconsts"]], invals[params["cond_nconsts"] :]
    body_consts, init = rest[: params["body_nconsts"]], rest[params["body_nconsts"] :]
    numbers = collector.stores_in(cond, folds=True) | collector.stores_in(body, folds=True)
    collector.settle(frame, numbers)
    # The predicate is carried: the body can then tell which lanes of a vmap are still in the loop.
    first = Frame(frame.context(numbers))
    (start,) = collector.body(cond, [*cond_consts, *init], first)

    def step(carry: Any) -> Any:
        _, carried, state, going = carry
        alive = frame.alive & going if collector.tracks_lanes else frame.alive
        inner = Frame(frame.context(numbers, state=state, alive=alive))
        outs = collector.run(body, [*body_consts, *carried], inner)
        (going_on,) = collector.run(cond, [*cond_consts, *outs], inner)
        collector.settle(inner, numbers)
        return going_on, outs, inner.state, going_on

    _, outs, state, _ = jax.lax.while_loop(lambda carry: carry[0], step, (start, init, first.state, start))
    frame.state.update(state)
    return outs


# --- branches --------------------------------------------------------------------------------------------------------


def _cond_usages(eqn: Any, survey: Survey) -> Usages:
    return in_branches([survey(branch).usages for branch in eqn.params["branches"]])


def _run_cond(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    index, *operands = invals
    branches = eqn.params["branches"]
    numbers = frozenset[int]().union(*(collector.stores_in(branch, folds=True) for branch in branches))
    collector.settle(frame, numbers)
    shapes: list[Rows] = []
    looped = {key for key, usage in _cond_usages(eqn, collector.survey).items() if usage.looped}

    def make(i: int) -> Callable[..., Any]:
        def branch(state: Any, *args: Array) -> Any:
            alive = frame.alive & (index == i) if collector.tracks_lanes else frame.alive
            inner = Frame(frame.context(numbers, state=state, alive=alive))
            outs = collector.body(branches[i], list(args), inner)
            rows = inner.rows.stack(looped).flat()
            shapes.append(rows)
            # Plain lists: the branches must agree in structure, also where their keys share steps differently.
            return outs, inner.state, {key: rows[key][0].arrays() for key in sorted(rows)}

        return branch

    outs, state, arrays = jax.lax.switch(
        index, [make(i) for i in range(len(branches))], frame.context(numbers).state, *operands
    )
    frame.state.update(state)
    frame.rows.extend(Rows({key: (chunk.replace(arrays[key], chunk.lengths),) for key, (chunk,) in shapes[0].items()}))
    return outs


# --- the table -------------------------------------------------------------------------------------------------------


def _param(name: str) -> Callable[[Any], Any]:
    return lambda eqn: eqn.params[name]


RULES: dict[str, Rule] = {
    "jit": Transparent(_param("jaxpr"), _run_jit),
    "closed_call": Transparent(_param("call_jaxpr"), _run_inline(_param("call_jaxpr"))),
    "core_call": Transparent(_param("call_jaxpr"), _run_inline(_param("call_jaxpr"))),
    "core_closed_call": Transparent(_param("call_jaxpr"), _run_inline(_param("call_jaxpr"))),
    "eval_jaxpr": Transparent(_param("call_jaxpr"), _run_inline(_param("call_jaxpr"))),
    "remat2": Transparent(_param("jaxpr"), _run_checkpoint),
    "checkpoint": Transparent(_param("jaxpr"), _run_checkpoint),
    "custom_jvp_call": Transparent(_param("call_jaxpr"), _derivative_rules.run_custom_jvp),
    "custom_vjp_call": Transparent(_param("call_jaxpr"), _derivative_rules.run_custom_vjp),
    "scan": Folding(_scan_usages, _run_scan),
    "while": Folding(_while_usages, _run_while),
    "cond": Folding(_cond_usages, _run_cond),
    "custom_linear_solve": Transparent(_solver_rules.linear_solve_jaxpr, _solver_rules.run_linear_solve),
    "call_hi_primitive": Transparent(_solver_rules.custom_root_jaxpr, _solver_rules.run_custom_root),
    "shard_map": Folding(_shard_map_rule.usages, _shard_map_rule.run),
}


def find(eqn: Any) -> Rule:
    rule = RULES.get(eqn.primitive.name)
    if rule is not None and compat.is_known_form(eqn):
        return rule
    sites = name_sites(_sites(eqn.params))
    what = f"lox.log call ({sites})" if sites else "call of a logger or a tap"
    raise UnsupportedPrimitiveError(
        f"lox: a {what} is inside {eqn.primitive.name!r}, a primitive that lox cannot look into; "
        "move the call outside it, or take it out with lox.nolog"
    )


def _sites(params: dict[str, Any]) -> list[str]:
    sites: list[str] = []
    for jaxpr in compat.all_jaxprs_in_params(params):
        for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
            sites += [eqn.params["mark"].site] if eqn.primitive is log_p else _sites(eqn.params)
    return sites
