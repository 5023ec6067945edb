"""Evaluates jaxprs with numpy, without compiling anything.

Compiling would take nearly all of the fuzzer's time, and what lox promises is about the program that it makes, not
about XLA. Loops run in Python; what is not in the table is run by JAX, one operation at a time. A part of the programs
is compiled all the same (``laws.compiled``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lox._jax import compat

Array = Any


def evaluate(fun: Callable[..., Any], *args: Any) -> Any:
    """``fun(*args)``, traced as ``jit`` would."""
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    outs = run(jaxpr, [np.asarray(leaf) for leaf in jax.tree.leaves(args)])
    return jax.tree.structure(shape).unflatten(outs)


def run(jaxpr: Any, args: list[Array]) -> list[Array]:
    body, consts = compat.open_jaxpr(jaxpr)
    env: dict[Any, Array] = dict(zip(body.constvars, map(np.asarray, consts), strict=True))
    env.update(zip(body.invars, args, strict=True))

    def read(atom: Any) -> Array:
        return np.asarray(atom.val, atom.aval.dtype) if isinstance(atom, compat.Literal) else env[atom]

    for eqn in body.eqns:
        rule = RULES.get(eqn.primitive.name, _bind)
        outs = rule(eqn, *map(read, eqn.invars))
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in body.outvars]


def _bind(eqn: Any, *args: Array) -> list[Array]:
    return [np.asarray(out) for out in compat.bind_eqn(eqn, args)]


# --- control flow ----------------------------------------------------------------------------------------------------


def _call(name: str) -> Callable[..., list[Array]]:
    return lambda eqn, *args: run(eqn.params[name], list(args))


def _scan(eqn: Any, *args: Array) -> list[Array]:
    params = eqn.params
    num_consts, num_carry = compat.scan_arities(params)
    consts, carry, xs = args[:num_consts], list(args[num_consts:][:num_carry]), args[num_consts + num_carry :]
    length = params["length"]
    ys: list[Any] = [None] * length
    for i in reversed(range(length)) if params["reverse"] else range(length):
        outs = run(params["jaxpr"], [*consts, *carry, *(x[i] for x in xs)])
        carry, ys[i] = outs[:num_carry], outs[num_carry:]
    empty = [np.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars[num_carry:]]
    stacked = [np.stack(column) for column in zip(*ys, strict=True)] if length else empty
    return [*carry, *stacked]


def _while(eqn: Any, *args: Array) -> list[Array]:
    params = eqn.params
    cond_consts, rest = args[: params["cond_nconsts"]], args[params["cond_nconsts"] :]
    body_consts, state = rest[: params["body_nconsts"]], list(rest[params["body_nconsts"] :])
    while True:
        (going,) = run(params["cond_jaxpr"], [*cond_consts, *state])
        if not going.any():
            return state
        new = run(params["body_jaxpr"], [*body_consts, *state])
        # A condition with lanes: those that have left the loop keep what they have.
        state = [
            np.where(going.reshape(going.shape + (1,) * (x.ndim - going.ndim)), x, y)
            for x, y in zip(new, state, strict=True)
        ]


def _cond(eqn: Any, index: Array, *args: Array) -> list[Array]:
    branches = eqn.params["branches"]
    return run(branches[int(np.clip(int(index), 0, len(branches) - 1))], list(args))


# --- operations ------------------------------------------------------------------------------------------------------


def _plain(function: Callable[..., Array]) -> Callable[..., list[Array]]:
    """A function of the operands alone."""

    def rule(eqn: Any, *args: Array) -> list[Array]:
        with np.errstate(all="ignore"):
            return [np.asarray(function(*args), eqn.outvars[0].aval.dtype)]

    return rule


def _broadcast(eqn: Any, x: Array, *_: Array) -> list[Array]:
    shape, dims = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    middle = [1] * len(shape)
    for size, dim in zip(x.shape, dims, strict=True):
        middle[dim] = size
    return [np.broadcast_to(x.reshape(middle), shape)]


def _reshape(eqn: Any, x: Array, *_: Array) -> list[Array]:
    return [x.reshape(eqn.outvars[0].aval.shape)]


def _reduce(function: Callable[..., Array]) -> Callable[..., list[Array]]:
    return lambda eqn, x: [np.asarray(function(x, axis=tuple(eqn.params["axes"])), eqn.outvars[0].aval.dtype)]


def _slice(eqn: Any, x: Array) -> list[Array]:
    p = eqn.params
    strides = p["strides"] or [1] * x.ndim
    return [x[tuple(map(slice, p["start_indices"], p["limit_indices"], strides))]]


def _update(eqn: Any, x: Array, new: Array, *starts: Array) -> list[Array]:
    places = [int(np.clip(int(s), 0, n - k)) for s, n, k in zip(starts, x.shape, new.shape, strict=True)]
    copy = np.array(x)
    copy[tuple(slice(s, s + k) for s, k in zip(places, new.shape, strict=True))] = new
    return [copy]


def _dynamic_slice(eqn: Any, x: Array, *starts: Array) -> list[Array]:
    sizes = eqn.params["slice_sizes"]
    places = [int(np.clip(int(s), 0, n - k)) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return [x[tuple(slice(s, s + k) for s, k in zip(places, sizes, strict=True))]]


def _pad(eqn: Any, x: Array, fill: Array) -> list[Array]:
    if any(low < 0 or high < 0 or inner for low, high, inner in eqn.params["padding_config"]):
        return _bind(eqn, x, fill)
    around = [(low, high) for low, high, _ in eqn.params["padding_config"]]
    return [np.pad(x, around, constant_values=fill)]


def _iota(eqn: Any) -> list[Array]:
    p = eqn.params
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = p["shape"][p["dimension"]]
    counted = np.arange(shape[p["dimension"]]).reshape(shape).astype(p["dtype"])
    return [np.broadcast_to(counted, p["shape"])]


def _convert(eqn: Any, x: Array) -> list[Array]:
    with np.errstate(all="ignore"):
        return [x.astype(eqn.params["new_dtype"])]


def _bitcast(eqn: Any, x: Array) -> list[Array]:
    new = np.dtype(eqn.params["new_dtype"])
    if new.itemsize < x.dtype.itemsize:
        return [np.ascontiguousarray(x)[..., None].view(new)]
    viewed = np.array(x, order="C").view(new)
    return [viewed[..., 0] if new.itemsize > x.dtype.itemsize else viewed]


def _divide(eqn: Any, a: Array, b: Array) -> list[Array]:
    if a.dtype.kind in "iu":
        return _bind(eqn, a, b)
    with np.errstate(all="ignore"):
        return [np.asarray(a / b, eqn.outvars[0].aval.dtype)]


def _select(which: Array, *cases: Array) -> Array:
    return np.choose(which.astype(np.int32), cases) if len(cases) > 2 else np.where(which, cases[1], cases[0])


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == bool else np.invert(x)


def _and(a: Array, b: Array) -> Array:
    return np.logical_and(a, b) if a.dtype == bool else np.bitwise_and(a, b)


def _or(a: Array, b: Array) -> Array:
    return np.logical_or(a, b) if a.dtype == bool else np.bitwise_or(a, b)


RULES: dict[str, Callable[..., list[Array]]] = {
    "jit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "core_call": _call("call_jaxpr"),
    "eval_jaxpr": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "checkpoint": _call("jaxpr"),
    "remat2": _call("jaxpr"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "add": _plain(np.add),
    "add_any": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "sign": _plain(np.sign),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "rem": _plain(np.fmod),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "and": _plain(_and),
    "or": _plain(_or),
    "not": _plain(_not),
    "is_finite": _plain(np.isfinite),
    "sqrt": _plain(np.sqrt),
    "real": _plain(np.real),
    "imag": _plain(np.imag),
    "conj": _plain(np.conj),
    "copy": _plain(lambda x: x),
    "stop_gradient": _plain(lambda x: x),
    "select_n": _plain(_select),
    "complex": _plain(lambda real, imag: real + 1j * imag),
    "clamp": _plain(lambda low, x, high: np.clip(x, low, high)),
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "div": _divide,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": lambda eqn, x: [np.transpose(x, eqn.params["permutation"])],
    "concatenate": lambda eqn, *xs: [np.concatenate(xs, eqn.params["dimension"])],
    "rev": lambda eqn, x: [np.flip(x, eqn.params["dimensions"])],
    "reduce_sum": _reduce(np.sum),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "slice": _slice,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _update,
    "iota": _iota,
}
