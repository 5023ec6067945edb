"""``custom_linear_solve`` and ``custom_root``: solvers whose derivatives are not those of their iterations.

The solve itself runs in the forward pass, and its records are returned. Functions that run only for derivatives
(``matvec``, the transposed solve, the residual function) cannot return records: their marks are left to a transformation
outside.
"""

from __future__ import annotations

import weakref
from typing import Any

import jax
import jax.numpy as jnp

from lox._interpret.collect import Collector, Frame, Unrecorded
from lox._interpret.rules.derivatives import evaluate_call, finish_call, materialise, prepare_call
from lox._jax import compat
from lox._marks.mark import marking
from lox._types import Array


def linear_solve_jaxpr(eqn: Any) -> Any:
    return eqn.params["jaxprs"].solve


def run_linear_solve(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    jaxprs = eqn.params["jaxprs"]
    consts, b = _split(eqn, invals)
    context = prepare_call(collector, frame, jaxprs.solve)
    aux_types: list[Any] = []

    def run(name: str, x: list[Array]) -> list[Array]:
        of_derivatives = Unrecorded(collector, keep=True) if collector.returns_records else collector
        return of_derivatives.run(
            getattr(jaxprs, name), [*consts[name], *x], Frame(frame.context(frozenset(frame.state)))
        )

    def solve(_: Any, b: list[Array]) -> Any:
        outs, recorded = evaluate_call(collector, jaxprs.solve, context, [*consts["solve"], *b])
        aux = (outs[len(b) :], recorded)
        aux_types[:] = [jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), aux)]
        return outs[: len(b)], aux

    def transpose_solve(_: Any, b: list[Array]) -> Any:
        # JAX requires both solves to return the same structure. The auxiliary output of this one is not used.
        unused = jax.tree.map(lambda aval: jnp.zeros(aval.shape, aval.dtype), aux_types[0])
        return run("transpose_solve", b)[: len(b)], unused

    x, (aux, recorded) = jax.lax.custom_linear_solve(
        lambda x: run("matvec", x),
        b,
        solve,
        None if jaxprs.transpose_solve is None else transpose_solve,
        symmetric=jaxprs.vecmat is jaxprs.matvec,
        has_aux=True,
    )
    return finish_call(frame, ([*x, *aux], recorded))


def _split(eqn: Any, invals: list[Array]) -> tuple[dict[str, list[Array]], list[Array]]:
    lengths = eqn.params["const_lengths"]
    consts, rest = {}, list(invals)
    for name, length in zip(lengths._fields, lengths, strict=True):
        consts[name], rest = rest[:length], rest[length:]
    return consts, rest


def custom_root_jaxpr(eqn: Any) -> Any:
    return eqn.params["_prim"].solve_jaxpr


def run_custom_root(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    """For JAX >= 0.11. In older versions, a custom_root is a custom_jvp_call."""
    prim = eqn.params["_prim"]
    operands = prim.in_tree.unflatten(invals)
    # Records leave as a list: rows know by identity which arrays they share, and JAX rebuilds trees as trees of types.
    structure: list[Any] = []

    @jax.custom_jvp
    def find_root(context: Any, solve_consts: Any, guess: Any, f_consts: Any, tangent_consts: Any) -> Any:
        del f_consts, tangent_consts
        outs, recorded = evaluate_call(collector, prim.solve_jaxpr, context, jax.tree.leaves((solve_consts, guess)))
        leaves, tree = jax.tree.flatten(recorded)
        structure[:] = [tree]
        return outs, leaves

    def jvp(primals: Any, tangents: Any) -> Any:
        f_consts, tangent_consts = primals[3], primals[4]
        outs, recorded = find_root(*primals)
        root, aux = prim.out_tree.unflatten(outs) if prim.has_aux else (prim.out_tree.unflatten(outs), ())
        # f(p, root(p)) = 0 implies root' = -(df/dx)^-1 df/dp.
        f_tangents = jax.tree.map(materialise, tangents[3])
        _, moved = jax.jvp(lambda p: prim.f(p, root), (f_consts,), (f_tangents,))
        root_tangent = jax.tree.map(jnp.negative, prim.tangent_solve(tangent_consts, root, moved))
        out_tangents = [*jax.tree.leaves(root_tangent), *map(compat.zero_tangent, jax.tree.leaves(aux))]
        return (outs, recorded), (out_tangents, [*map(compat.zero_tangent, recorded)])

    find_root.defjvp(jvp, symbolic_zeros=True)
    context = prepare_call(collector, frame, prim.solve_jaxpr)
    outs, recorded = find_root(context, *operands)
    return finish_call(frame, (outs, structure[0].unflatten(recorded)))


_expanded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def linear_map_jaxpr(eqn: Any) -> Any:
    """The derivative of the residual, or its transpose, which the tangent solve calls. In JAX >= 0.11 it is an object that
    holds the residual and differentiates it late. The same jaxpr is returned each time."""
    prim = eqn.params["_prim"]
    if prim not in _expanded:
        with marking(True):
            _expanded[prim] = jax.make_jaxpr(prim.expand)(*prim.in_avals)
    return _expanded[prim]
