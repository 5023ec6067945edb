"""Whether the derivative rule of a function has marks of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lox._jax import compat
from lox._jax import hi_primitives as hi
from lox._marks.mark import marking


def rule_has_marks(eqn: Any) -> bool:
    trace = _TRACE.get(hi.name_of(eqn))
    if trace is None:
        return False
    with marking(True):
        return any(map(compat.is_our_effect, trace(eqn).effects))


def _trace_jvp(eqn: Any) -> Any:
    number = len(eqn.invars) - eqn.params["num_consts"]
    return compat.call_thunk(eqn.params["jvp_jaxpr_fun"], *[False] * number)[0]


def _trace_forward(eqn: Any) -> Any:
    number = len(eqn.invars) - eqn.params["num_consts"]
    return compat.call_thunk(eqn.params["fwd_jaxpr_thunk"], *[True] * number)[0]


def _trace_jvp_object(eqn: Any) -> Any:
    types = [atom.aval for atom in eqn.invars]
    zeros = [aval.to_tangent_aval().dtype == jax.dtypes.float0 for aval in types]
    tangents = [aval.to_tangent_aval() for aval, zero in zip(types, zeros, strict=True) if not zero]
    return hi.trace_jvp_rule(hi.primitive_of(eqn.params), types, zeros, tangents)[0]


def _trace_forward_object(eqn: Any) -> Any:
    types = [atom.aval for atom in eqn.invars]
    return hi.trace_forward_rule(hi.primitive_of(eqn.params), types, [True] * len(types))[0]


_TRACE: dict[str, Callable[[Any], Any]] = {
    "custom_jvp_call": _trace_jvp,
    "custom_vjp_call": _trace_forward,
    "CustomJVPTraced": _trace_jvp_object,
    "CustomVJPTraced": _trace_forward_object,
}
