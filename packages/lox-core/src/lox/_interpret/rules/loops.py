"""``scan`` and ``while``: the body is evaluated once, with the stores in its carry."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from lox._interpret import answers, lanes
from lox._interpret.chunks import scan_in_chunks
from lox._interpret.collect import Collector, Frame
from lox._interpret.held import Held
from lox._interpret.survey import Survey, Usages, in_lanes, in_sequence
from lox._jax import compat, hi_primitives, sharding
from lox._jax.scans import Scan
from lox._storage.words import Layout
from lox._types import Array


def scan_usages(eqn: Any, survey: Survey) -> Usages:
    loop = Scan.of(eqn)
    return {key: usage.times(loop.length) for key, usage in survey(loop.jaxpr).usages.items()}


def run_scan(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    loop = Scan.of(eqn)
    jaxpr, length, reverse, num_carry = loop.jaxpr, loop.length, loop.reverse, loop.num_carry
    consts, init, xs = loop.split(invals)
    numbers = collector.stores_in(jaxpr, folds=True)
    collector.settle(frame, numbers)
    # The structure of the rows is the same in every iteration, so it is taken out of the body as a Python value.
    structure: list[Any] = []
    fused = collector.packing.fused if _is_scalar_code(jaxpr) else 0
    index = _scanned_index(collector, length)

    pace = collector.pace(eqn, frame.later)
    later, asks = frame.later | pace.stores | pace.clocks, frame.asks and pace.asks

    def body(carry: Any, inputs: Any) -> Any:
        (carried, state), (x, place) = carry, inputs
        inner = Frame(frame.context(numbers, state=state, later=later, asks=asks))
        inner.index = place
        outs = collector.body(jaxpr, loop.arguments(consts, carried, x), inner)
        rows = inner.rows.stack()
        arrays, tree = jax.tree.flatten(rows)
        limit = 0 if len(arrays) <= fused else collector.packing.rows
        # Not packed: inputs that are also outputs, such as the step, which JAX passes on at no cost; and what loops inside
        # returned, which is packed already.
        apart = {*map(id, x), id(place), *rows.of_inner_loops()}
        layout = Layout.of(arrays, limit, apart, collector.packing.turned, mixed=collector.packing.mixed)
        structure[:] = [tree, layout]
        return (outs[:num_carry], inner.state), (outs[num_carry:], layout.pack(arrays))

    def scan(step: Any, carry: Any, inputs: Any, length: Any) -> Any:
        # JAX takes only numbers as a length, and with `jax.export` it need not be one.
        given = None if xs or index is not None else length
        return hi_primitives.scan(step, carry, inputs, length=given, reverse=reverse, unroll=loop.unroll)

    if pace.size:
        collector.before_chunks(frame, pace)
    start = (init, frame.context(numbers).state)
    if not pace.size:
        (carried, state), (ys, packed) = scan(body, start, (xs, index), length)
    else:
        held = Held(start[1], pace, collector.packing.rows)

        def chunk(size: int, carry: Any, inputs: Any) -> Any:
            end, ys = scan(held.step(body), carry, inputs, size)
            (carried, state), (_, before) = held.unpack(end), held.unpack(carry)
            between = Frame(frame.context(frozenset(), state=state))
            collector.after_chunk(between, pace, size, before)
            return held.pack((carried, between.state)), ys

        whole, rest = functools.partial(chunk, pace.size), functools.partial(chunk, length % pace.size)
        end, (ys, packed) = scan_in_chunks(
            whole, rest, held.pack(start), (xs, index), length=length, size=pace.size, reverse=reverse
        )
        carried, state = held.unpack(end)
    frame.state.update(state)
    tree, layout = structure
    frame.rows.extend(tree.unflatten(layout.packed_leaves(packed)).of_iterations(length, reverse))
    return [*carried, *ys]


def _scanned_index(collector: Collector, length: Any) -> Array | None:
    """The counter of a scan, for collectors that ask for it. As an input it is cheaper than as a carried value."""
    return jax.lax.iota(jnp.int32, length) if collector.wants_index else None


def _is_scalar_code(jaxpr: Any) -> bool:
    body, _ = compat.open_jaxpr(jaxpr)
    return all(
        all(var.aval.size == 1 for var in eqn.outvars if hasattr(var.aval, "size"))
        and (eqn.primitive.name == "jit" or not any(compat.all_jaxprs_in_params(eqn.params)))
        and all(map(_is_scalar_code, compat.all_jaxprs_in_params(eqn.params)))
        for eqn in body.eqns
    )


def while_usages(eqn: Any, survey: Survey) -> Usages:
    parts = [survey(eqn.params["cond_jaxpr"]).usages, survey(eqn.params["body_jaxpr"]).usages]
    usages = {key: usage.unbounded("while_loop") for key, usage in in_sequence(parts).items()}
    return in_lanes(lanes.of_predicate(eqn.params["cond_jaxpr"]), usages)


def run_while(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, rest = invals[: params["cond_nconsts"]], invals[params["cond_nconsts"] :]
    body_consts, init = rest[: params["body_nconsts"]], rest[params["body_nconsts"] :]
    numbers = collector.stores_in(cond, folds=True) | collector.stores_in(body, folds=True)
    collector.settle(frame, numbers)
    in_lanes = bool(lanes.of_predicate(cond))
    if in_lanes:
        # A value that is selected by lane varies along the mesh axes along which the predicate varies.
        init = [sharding.vary_like(value, *invals) for value in init]
    (asked,) = compat.open_jaxpr(cond)[0].outvars
    # Carried along with the predicate: whether a lane of a vmap, alone, would still be in the loop.
    first = Frame(frame.context(numbers))
    (start,) = collector.body(cond, [*cond_consts, *init], first)
    start_alone = start if in_lanes else answers.answer(first, asked, start)

    def any_lane(going: Array) -> Array:
        return jnp.any(going) if in_lanes else going

    def step(carry: Any) -> Any:
        here, carried, before, going = carry
        inner = Frame(frame.context(numbers, state=before))
        if collector.tracks_lanes:
            inner.alive = frame.alive & (here if in_lanes else going)
        if in_lanes:
            inner.lanes = lanes.both(frame.lanes, going)
        outs = collector.run(body, [*body_consts, *carried], inner)
        if in_lanes:
            outs = lanes.choose(going, outs, carried)
        (going_on,) = collector.run(cond, [*cond_consts, *outs], inner)
        collector.settle(inner, numbers)
        alone = going_on if in_lanes else answers.answer(inner, asked, going_on)
        if alone is going_on:
            return any_lane(going_on), outs, inner.state, going_on
        return going_on, outs, answers.select_state(going, inner.state, before), going & alone

    carry = (any_lane(start), init, first.state, start_alone)
    _, outs, state, _ = jax.lax.while_loop(lambda carry: carry[0], step, carry)
    frame.state.update(state)
    return outs
