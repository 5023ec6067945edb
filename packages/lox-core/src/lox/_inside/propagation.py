"""Which values must be checked, so that no nan or inf is missed.

Most operations pass on what is not finite: if ``x`` has a nan or inf, so has ``x + y``. So a run of operations checks only
the results that no later operation of the run passes on. The tables below say what an operation passes on. An operation
that is in none of them passes on nothing, which costs an extra check and is never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._jax import compat

_ELEMENTWISE = ("add", "add_any", "sub", "mul", "neg", "abs", "square", "sqrt", "log", "log1p", "sin", "cos", "tan")
_MOVES = ("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "rev", "concatenate", "copy", "name")
_SUMS = ("reduce_sum", "cumsum", "dot_general", "reduce_precision")
_EVERY_OPERAND = frozenset([*_ELEMENTWISE, *_MOVES, *_SUMS])
# x / inf is 0, so an inf in the divisor is not passed on.
_FIRST_OPERAND = frozenset(["div", "rem"])
# Their results are finite even if an operand is infinite on purpose (exp(-inf) is 0), unless they overflow.
_BOUNDED = frozenset(
    ["exp", "exp2", "expm1", "tanh", "logistic", "erf", "sign", "is_finite", "eq", "ne", "lt", "le", "gt", "ge"]
)


def is_float(aval: Any) -> bool:
    """Whether values of this type are checked. A mutable array is not: its contents are checked where they are read."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact) and not compat.is_ref_type(aval)


def passes_on(eqn: Any, place: int) -> bool:
    """Whether a result is never finite if this operand is not."""
    name = eqn.primitive.name
    if not eqn.outvars or any(0 in getattr(var.aval, "shape", (0,)) for var in eqn.outvars):
        return False  # a result without elements shows nothing
    if name == "convert_element_type":
        aval = eqn.outvars[0].aval
        return is_float(aval) and jnp.finfo(aval.dtype).bits >= 8  # smaller floats have neither nan nor inf
    if name == "integer_pow":
        return int(eqn.params["y"]) > 0
    return name in _EVERY_OPERAND or (name in _FIRST_OPERAND and place == 0)


def to_check(eqns: Sequence[Any], infinite: set[Any]) -> set[Any]:
    """The variables of a run of equations to check, so that every nan and inf in its results is found.

    Args:
      infinite: variables that are checked for nan only, so an inf in them is not found.
    """
    seen_in_another: set[Any] = set()
    for eqn in eqns:
        hidden = any(var in infinite for var in eqn.outvars)
        for place, atom in enumerate(eqn.invars):
            if not isinstance(atom, compat.Literal) and passes_on(eqn, place) and (not hidden or atom in infinite):
                seen_in_another.add(atom)
    results = {var for eqn in eqns for var in eqn.outvars}
    return {var for var in results if is_float(var.aval)} - seen_in_another


def infinite_on_purpose(eqns: Sequence[Any], before: set[Any]) -> set[Any]:
    """Variables that hold an inf on purpose, as in ``where(mask, x, -inf)``: they are checked for nan only.

    Args:
      before: those that are known from earlier equations.
    """
    infinite = set(before)
    for eqn in eqns:
        if eqn.primitive.name not in _BOUNDED and any(is_infinite(atom, infinite) for atom in eqn.invars):
            infinite.update(eqn.outvars)
    return infinite


def is_infinite(atom: Any, infinite: set[Any]) -> bool:
    """Whether it is an inf constant, or holds an inf on purpose."""
    if isinstance(atom, compat.Literal):
        return is_float(atom.aval) and not np.isfinite(np.asarray(atom.val)).all()
    return atom in infinite
