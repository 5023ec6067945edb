"""Which values must be checked, so that no value that is not finite goes unseen.

Most operations pass on what is not finite: a nan or inf in ``x`` is one in ``x + y``. So of a run of operations only those
results are checked that nothing in the run passes on. What an operation passes on is read off the tables below; an
operation that is in none of them passes on nothing, which costs one check more and is never wrong.
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
# inf / inf is nan, but x / inf is 0: a divisor is not passed on.
_FIRST_OPERAND = frozenset(["div", "rem"])
# exp(-inf) is 0, and so on: nothing that is infinite comes out, if nothing overflows.
_BOUNDED = frozenset(
    ["exp", "exp2", "expm1", "tanh", "logistic", "erf", "sign", "is_finite", "eq", "ne", "lt", "le", "gt", "ge"]
)


def is_float(aval: Any) -> bool:
    """A mutable array is none: what it holds is looked at where it is read."""
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact) and not compat.is_ref_type(aval)


def passes_on(eqn: Any, place: int) -> bool:
    """Whether a result is sure not to be finite where this operand is not."""
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
    """The variables of a run of equations whose checks find everything that its results hold.

    ``infinite``: those of which only nan is looked for, so that an inf in them does not show.
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
    """Variables that hold an inf which somebody wrote, ``where(mask, x, -inf)``: there only nan is worth a look.

    ``before``: those that are known to from earlier equations.
    """
    infinite = set(before)
    for eqn in eqns:
        if eqn.primitive.name not in _BOUNDED and any(is_infinite(atom, infinite) for atom in eqn.invars):
            infinite.update(eqn.outvars)
    return infinite


def is_infinite(atom: Any, infinite: set[Any]) -> bool:
    """Whether somebody wrote it as an inf, or let it hold one."""
    if isinstance(atom, compat.Literal):
        return is_float(atom.aval) and not np.isfinite(np.asarray(atom.val)).all()
    return atom in infinite
