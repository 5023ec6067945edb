"""Jitted functions: their options, and how to make a function from a jit equation."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax._src.sharding_impls import UNSPECIFIED as _UNSPECIFIED
from jax.experimental.layout import Format

from lox._jax.compat import Literal


def placements(shardings: Sequence[Any], layouts: Sequence[Any]) -> tuple[Any, ...]:
    """Where and how values are placed, as an argument of ``jax.jit``; None if nothing was specified."""
    placed = [None if sharding is _UNSPECIFIED else sharding for sharding in shardings]
    return tuple(
        sharding if layout is None else Format(layout, sharding)
        for sharding, layout in zip(placed, layouts, strict=True)
    )


_JittedFunction = type(jax.jit(lambda: None))


def is_jitted(fun: Any) -> bool:
    return isinstance(fun, _JittedFunction)


def is_function(fun: Any) -> bool:
    """Whether it is a plain Python function or a jitted one, with no state that changes between calls."""
    return isinstance(fun, (types.FunctionType, _JittedFunction))


def jit_options(fun: Any) -> dict[str, Any] | None:
    """The options of a jitted function; None if it is not jitted, or has a device or a backend of its own."""
    info = getattr(fun, "_jit_info", None)
    if not isinstance(fun, _JittedFunction) or info is None or info.device is not None or info.backend is not None:
        return None
    options = {
        "static_argnums": info.static_argnums,
        "static_argnames": info.static_argnames,
        "donate_argnums": info.donate_argnums,
        "donate_argnames": info.donate_argnames,
        "keep_unused": info.keep_unused,
    }
    if info.compiler_options_kvs:
        options["compiler_options"] = dict(info.compiler_options_kvs)
    given = placements(info.in_shardings_leaves, info.in_layouts_leaves)
    wanted = placements(info.out_shardings_leaves, info.out_layouts_leaves)
    if any(place is not None for place in given):
        options["in_shardings"] = info.in_shardings_treedef.unflatten(given)
    if any(place is not None for place in wanted):
        options["out_shardings"] = info.out_shardings_treedef.unflatten(wanted)
    return options


# Options that only an outermost jit takes.
TOP_LEVEL_OPTIONS = ("compiler_options", "in_shardings", "out_shardings")


def without_top_level_options(fun: Any) -> Any:
    """The same jitted function, for use inside one that has these options."""
    info = fun._jit_info
    kept = {name: getattr(info, name) for name in ("static_argnums", "static_argnames", "keep_unused", "inline")}
    return jax.jit(fun.__wrapped__, **kept)


def jit_of_equation(eqn: Any, run: Callable[..., Any], ends_here: Collection[Any]) -> Callable[..., Any]:
    """A jit equation as a function of its variables that is dispatched like the jitted function.

    Args:
      ends_here: variables that nothing needs after it. Others are not donated: a value that only ``lox.log`` uses once more is
        not used again without lox.
    """
    params = eqn.params
    variables = [
        (donated, atom in ends_here and eqn.invars.count(atom) == 1)
        for donated, atom in zip(params["donated_invars"], eqn.invars, strict=True)
        if not isinstance(atom, Literal)
    ]
    plain = all(s is _UNSPECIFIED for s in (*params["in_shardings"], *params["out_shardings"]))
    if plain and not params["compiler_options_kvs"] and not params["keep_unused"]:
        return jax.jit(run, donate_argnums=tuple(i for i, may_go in enumerate(variables) if all(may_go)))
    needed = [donated and not spare for donated, spare in variables]
    return _copying(run, needed) if any(needed) else run


def _copying(run: Callable[..., Any], needed: list[bool]) -> Callable[..., Any]:
    """The function with copies of some of its arguments, which it gives away."""
    return lambda *args: run(*[arg.copy() if copied else arg for arg, copied in zip(args, needed, strict=True)])
