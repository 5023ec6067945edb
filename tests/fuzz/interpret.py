"""Evaluates jaxprs with numpy, without compiling anything.

Compiling would take nearly all of the fuzzer's time, and what lox promises is about the program that it makes, not
about XLA. Loops run in Python; what is not in the table is run by JAX, one operation at a time. A part of the programs
is compiled all the same (``laws.COMPILED``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lox._jax import compat, hi_primitives

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


def _object(eqn: Any, *args: Array) -> list[Array]:
    """What JAX's upgrade flags make of ``checkpoint`` and of functions with derivative rules."""
    prim = hi_primitives.primitive_of(eqn.params)
    jaxpr = getattr(prim, "jaxpr", None) or getattr(getattr(prim, "traced", None), "jaxpr", None)
    return _bind(eqn, *args) if jaxpr is None else run(jaxpr, list(args))


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


def _shard_map(eqn: Any, *args: Array) -> list[Array]:
    """One device after the other: programs of the fuzzer do not talk to each other."""
    params = eqn.params
    sizes = dict(params["mesh"].shape)
    results = []
    for place in itertools.product(*map(range, sizes.values())):
        here = dict(zip(sizes, place, strict=True))
        parts = [_part(x, spec, sizes, here) for x, spec in zip(args, params["in_specs"], strict=True)]
        _devices.append(here)
        results.append(run(params["jaxpr"], parts))
        _devices.pop()
    wholes = []
    for column, spec in zip(zip(*results, strict=True), params["out_specs"], strict=True):
        for dim, axes in enumerate(spec):
            if axes is not None:
                column = [np.concatenate(column, dim)]  # a mesh of one axis
        wholes.append(column[0])
    return wholes


_devices: list[dict[str, int]] = []


def _part(x: Array, spec: Any, sizes: dict[str, int], here: dict[str, int]) -> Array:
    """What one device has of an array."""
    for dim, axes in enumerate(spec):
        for axis in () if axes is None else (axes,) if isinstance(axes, str) else axes:
            x = np.split(x, sizes[axis], dim)[here[axis]]
    return x


def _axis_index(eqn: Any) -> list[Array]:
    return [np.asarray(_devices[-1][eqn.params["axis_name"]], np.int32)]


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


def _gather(eqn: Any, x: Array, starts: Array) -> list[Array]:
    p = eqn.params
    dims, sizes = p["dimension_numbers"], p["slice_sizes"]
    left_out = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    out = np.empty(eqn.outvars[0].aval.shape, x.dtype)
    room = [n - size for n, size in zip(x.shape, sizes, strict=True)]
    for index in np.ndindex(starts.shape[:-1]):
        start = _window(
            starts, index, dims.start_index_map, dims.operand_batching_dims, dims.start_indices_batching_dims
        )
        if "FILL" in str(p["mode"]) and not _is_inside(start, room):
            return _bind(eqn, x, starts)
        part = x[tuple(slice(s, s + n) for s, n in zip(_clipped(start, room), sizes, strict=True))]
        part = part.reshape([n for d, n in enumerate(sizes) if d not in left_out])
        out[_at(index, dims.offset_dims, out.ndim)] = part
    return [out]


def _scatter(eqn: Any, x: Array, starts: Array, updates: Array) -> list[Array]:
    p = eqn.params
    dims, out = p["dimension_numbers"], np.array(x)
    inserted = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    window = iter(updates.shape[d] for d in dims.update_window_dims)
    sizes = [1 if d in inserted else next(window) for d in range(x.ndim)]
    room = [n - size for n, size in zip(x.shape, sizes, strict=True)]
    batching = dims.operand_batching_dims, dims.scatter_indices_batching_dims
    for index in np.ndindex(starts.shape[:-1]):
        start = _window(starts, index, dims.scatter_dims_to_operand_dims, *batching)
        if "FILL" in str(p["mode"]) and not _is_inside(start, room):
            continue
        place = tuple(slice(s, s + n) for s, n in zip(_clipped(start, room), sizes, strict=True))
        out[place] = updates[_at(index, dims.update_window_dims, updates.ndim)].reshape(sizes)
    return [out]


def _window(starts: Array, index: Any, to_dims: Any, batching: Any, index_batching: Any) -> dict[int, int]:
    """Where the window of an index begins, along the dimensions for which that is said."""
    begins = {d: int(s) for d, s in zip(to_dims, starts[index], strict=True)}
    return begins | {d: index[i] for d, i in zip(batching, index_batching, strict=True)}


def _is_inside(start: dict[int, int], room: list[int]) -> bool:
    return all(0 <= s <= room[d] for d, s in start.items())


def _clipped(start: dict[int, int], room: list[int]) -> list[int]:
    return [min(max(start.get(d, 0), 0), most) for d, most in enumerate(room)]


def _at(index: Any, windows: Any, ndim: int) -> tuple[Any, ...]:
    """An index of the batch, with whole windows."""
    rest = iter(index)
    return tuple(slice(None) if d in windows else next(rest) for d in range(ndim))


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
    "call_hi_primitive": _object,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "axis_index": _axis_index,
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
    "lox_detach": lambda eqn, *xs: list(xs),
    "reshard": lambda eqn, x: [x],
    "pvary": lambda eqn, *xs: list(xs),
    "pcast": lambda eqn, *xs: list(xs),
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
    "reduce_or": _reduce(np.any),
    "reduce_and": _reduce(np.all),
    "reduce_min": _reduce(np.min),
    "slice": _slice,
    "pad": _pad,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic_update_slice": _update,
    "iota": _iota,
}
