"""JAX's new kind of primitives: objects with their own jaxprs and rules, all under one primitive.

In JAX >= 0.11 ``custom_root`` is one of them. With the flags ``jax_remat3``, ``jax_custom_jvp3``, ``jax_custom_vjp3`` and
``jax_scan3``, so are ``jax.checkpoint``, functions with derivative rules, and ``jax.lax.scan``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import config as _config
from jax._src.interpreters import ad

Array = Any

# JAX 0.10 has some of the flags, with other objects behind them. Marks in those are found and refused.
ARE_SETTLED = jax.__version_info__ >= (0, 11)


def primitive_of(params: dict[str, Any]) -> Any | None:
    """The object of an equation; None if it has none, or only what is left of one to be transposed."""
    return None if "residuals_tree" in params else params.get("_prim")


def name_of(eqn: Any) -> str:
    """The name under which the rule for an equation is found: that of its primitive, or of the class of such an object."""
    prim = primitive_of(eqn.params)
    return eqn.primitive.name if prim is None else type(prim).__name__


def params_of(eqn: Any) -> dict[str, Any]:
    """The parameters of an equation, or of its object."""
    prim = primitive_of(eqn.params)
    return eqn.params if prim is None else prim.params


def params_with_jaxprs(prim: Any) -> dict[str, Any]:
    """The parameters of an object. A traced function, as ``jax.jit(f).trace`` returns it, is replaced by its jaxpr."""
    return {name: value.jaxpr if _is_traced(value) else value for name, value in prim.params.items()}


def _is_traced(value: Any) -> bool:
    return hasattr(value, "jaxpr") and hasattr(value, "out_tree")


def checkpoints_are_objects() -> bool:
    return ARE_SETTLED and bool(_config.remat3.value)


# --- functions with derivative rules -----------------------------------------------------------------------------------


def primal_jaxpr(prim: Any) -> Any:
    """The function itself, as a jaxpr of the operands of the equation."""
    return prim.traced.jaxpr


def trace_jvp_rule(prim: Any, args: Sequence[Array], zeros: Sequence[bool], tangents: Sequence[Array]) -> Any:
    """The jvp rule as a jaxpr of the operands and their nonzero tangents, and which tangents it returns as zero."""
    out_zeros: list[bool] = []

    def flat(*values: Array) -> list[Array]:
        primals, nonzero = values[: len(args)], iter(values[len(args) :])
        filled = [_zero_like(p) if zero else next(nonzero) for p, zero in zip(primals, zeros, strict=True)]
        outs, out_tangents = prim.jvp_rule(prim.in_tree.unflatten(primals), prim.in_tree.unflatten(filled))
        flat_tangents = prim.out_tree.flatten_up_to(out_tangents)
        out_zeros[:] = [type(tangent) is ad.Zero for tangent in flat_tangents]
        return [*jax.tree.leaves(outs), *(t for t, zero in zip(flat_tangents, out_zeros, strict=True) if not zero)]

    return jax.make_jaxpr(flat)(*args, *tangents), out_zeros


def _zero_like(primal: Array) -> Any:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def trace_forward_rule(
    prim: Any, args: Sequence[Array], perturbed: Sequence[bool]
) -> tuple[Any, Callable[[list[Array]], tuple[list[Array], Any]]]:
    """The forward rule as a jaxpr of the operands, and a function that splits its results into those of the function and
    residuals."""
    trees: list[Any] = []

    def flat(*values: Array) -> list[Array]:
        outs, residuals = prim.vjp_fwd(prim.in_tree.unflatten(perturbed), *prim.in_tree.unflatten(values))
        leaves, tree = jax.tree.flatten(residuals)
        trees[:] = [tree]
        return [*jax.tree.leaves(outs), *leaves]

    jaxpr = jax.make_jaxpr(flat)(*args)
    number = prim.out_tree.num_leaves
    return jaxpr, lambda results: (results[:number], trees[0].unflatten(results[number:]))


def run_backward_rule(prim: Any, residuals: Any, cotangents: Sequence[Any]) -> list[Any]:
    """The cotangents of all operands, None for zeros. Closed-over values come first, and have no cotangents."""
    internal = [ad.Zero(ct.aval) if _is_symbolic_zero(ct) else ct for ct in cotangents]
    results, _ = prim.bwd(residuals, prim.out_tree.unflatten(internal))
    closures, trees = prim.in_tree.children()[:2], prim.in_tree.children()[2:]
    flat = [ct for tree, result in zip(trees, results, strict=True) for ct in tree.flatten_up_to(result)]
    return [None] * sum(tree.num_leaves for tree in closures) + [None if type(ct) is ad.Zero else ct for ct in flat]


def _is_symbolic_zero(cotangent: Any) -> bool:
    return type(cotangent) is jax.custom_derivatives.SymbolicZero


# --- scans -------------------------------------------------------------------------------------------------------------


def classic_scan() -> Any:
    """A context without ``jax_scan3``, which JAX has only sketched: ``jit`` gets its scans wrong, and nothing differentiates
    them."""
    flag = getattr(_config, "scan3", None)  # JAX < 0.11 has none
    return flag(False) if flag is not None and flag.value else contextlib.nullcontext()


def scan(body: Callable[..., Any], init: Any, xs: Any, **options: Any) -> Any:
    """``jax.lax.scan`` for loops that lox makes, whatever the flags are."""
    with classic_scan():
        return jax.lax.scan(body, init, xs, **options)
