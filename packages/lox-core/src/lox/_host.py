"""Calls from a running program to the host.

``deliver_p`` is the one primitive that leaves the device. It is ours, and not a JAX callback, for four reasons:

* all operands travel packed in one array, so that a call costs microseconds;
* under ``vmap`` there is one call for all lanes, whatever their number: each lane axis stays a leading axis;
* a call in which no lane is **alive** (took the branch, is still in the loop, passes ``where=``) is not made at all;
* under ``grad`` and ``checkpoint`` it runs once.

Host functions get numpy arrays, never JAX arrays, and must not call JAX: that can deadlock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox import _jax_compat as compat
from lox._errors import LogTypeError, OrderError
from lox._logdict import logdict
from lox._words import Layout, is_key, key_words

Array = Any


class Delivery(NamedTuple):
    """What one host call brings."""

    lanes: tuple[int, ...]  # sizes of the vmap axes, outermost first
    alive: np.ndarray  # which lanes the call is for, of shape `lanes`
    operands: Any  # the receiver's operands, lane axes leading
    logs: logdict  # lane axes leading

    def split(self) -> Iterator[tuple[Any, logdict]]:
        """``(operands, logs)`` of each lane that is alive, in lane order."""
        if not self.lanes:
            if self.alive:
                yield self.operands, self.logs
            return
        leaves, tree = jax.tree.flatten((self.operands, self.logs))
        for lane in zip(*np.nonzero(self.alive), strict=True):
            yield tree.unflatten([leaf[lane] for leaf in leaves])


@dataclasses.dataclass(frozen=True)
class Receiver:
    """Where deliveries go: ``handle(delivery)`` on the host, with ``operands`` sent along each time."""

    handle: Callable[[Delivery], None]
    operands: Any = ()

    def __post_init__(self) -> None:
        if not callable(self.handle):
            raise LogTypeError(f"lox: a callback must be callable, got {type(self.handle).__name__}")


def send(receiver: Receiver, logs: logdict, *, alive: Array = True, masked: bool = False, ordered: bool = False) -> None:
    """Deliver ``logs`` in one host call.

    Args:
      alive: lanes for which it is False are left out.
      masked: ``alive`` can be False also where no lanes are (a ``where=``); otherwise only control flow decides, and
        without lanes the call is made whenever the program reaches it.
    """
    leaves, tree = jax.tree.flatten((receiver.operands, logs))
    target = _Unflatten(receiver.handle, tree, tuple(map(_key_impl, leaves)))
    _deliver(target, leaves, alive=alive, masked=masked, ordered=ordered)


def call(fun: Callable[..., np.ndarray], operands: Any, result: jax.ShapeDtypeStruct) -> Array:
    """One host call that returns an array: ``fun(lanes, operands) -> array of shape lanes + result.shape``."""
    leaves, tree = jax.tree.flatten(operands)
    (out,) = _deliver(_Answer(fun, tree), leaves, results=(compat.ShapedArray(result.shape, result.dtype),))
    return out


@dataclasses.dataclass(frozen=True)
class _Unflatten:
    """Puts a delivery together again. Equal for equal programs, so that the compiled one is found again."""

    handle: Callable[[Delivery], None]
    tree: Any
    impls: tuple[str | None, ...]  # of the leaves that are PRNG keys

    def __call__(self, lanes: tuple[int, ...], alive: np.ndarray, leaves: list[np.ndarray]) -> tuple[()]:
        leaves = [key_words(leaf, impl) if impl else leaf for leaf, impl in zip(leaves, self.impls, strict=True)]
        operands, logs = self.tree.unflatten(leaves)
        self.handle(Delivery(lanes, alive, operands, logs))
        return ()


@dataclasses.dataclass(frozen=True)
class _Answer:
    fun: Callable[..., np.ndarray]
    tree: Any

    def __call__(self, lanes: tuple[int, ...], alive: np.ndarray, leaves: list[np.ndarray]) -> tuple[np.ndarray]:
        return (self.fun(lanes, self.tree.unflatten(leaves)),)


def _deliver(
    target: Callable[..., Any],
    leaves: list[Any],
    *,
    alive: Array = True,
    masked: bool = False,
    ordered: bool = False,
    results: tuple[Any, ...] = (),
) -> list[Array]:
    arrays = [_to_device_form(leaf) for leaf in leaves]
    # Eagerly there is nothing to gain from packing, and numpy need not go to the device and back.
    limit = 0 if not compat.tracing_now() else 64
    layout = Layout.of(arrays, limit)
    return deliver_p.bind(
        jnp.asarray(alive) if isinstance(alive, compat.Tracer) else np.asarray(alive),
        *layout.pack(arrays),
        target=target,
        layout=layout,
        lanes=(),
        masked=masked,
        ordered=ordered,
        results=results,
    )


def _key_impl(leaf: Any) -> str | None:
    return str(jax.random.key_impl(leaf)) if isinstance(leaf, jax.Array) and is_key(leaf.dtype) else None


def _to_device_form(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf
    array = np.asarray(leaf)
    if array.dtype == object:
        raise LogTypeError(f"lox: cannot send a value of type {type(leaf).__name__} to the host")
    # As JAX would: 64-bit values are 32-bit ones unless x64 mode is on.
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


# --- the primitive ---------------------------------------------------------------------------------------------------
# operands: alive, then the packed leaves. Each has len(lanes) leading axes, of the lane's size or, where the operand
# does not vary over the lanes, of size 1.


class HostEffect(compat.Effect):
    __str__ = lambda self: "LoxHost"  # noqa: E731


class OrderedHostEffect(compat.Effect):
    __str__ = lambda self: "LoxOrderedHost"  # noqa: E731


_host_effect, _ordered_host_effect = HostEffect(), OrderedHostEffect()
compat.allow_effect(HostEffect)
compat.allow_effect(OrderedHostEffect, ordered=True)

deliver_p = compat.Primitive("lox_deliver")
deliver_p.multiple_results = True


def _run(
    *operands: np.ndarray, target: Any, layout: Layout, lanes: tuple[int, ...], masked: bool, results: Any
) -> tuple[np.ndarray, ...]:
    """The host's side of a delivery."""
    del masked, results
    alive, *arrays = operands
    leaves = layout.unpack_numpy(arrays)
    if lanes:
        alive = np.broadcast_to(alive, lanes)
        leaves = [np.broadcast_to(leaf, lanes + leaf.shape[len(lanes) :]) for leaf in leaves]
    return target(lanes, alive, leaves)


@deliver_p.def_impl
def _deliver_impl(*operands: Any, ordered: bool, **params: Any) -> list[Any]:
    del ordered
    arrays = [np.asarray(operand) for operand in operands]
    if not arrays[0].any() and not params["results"]:
        return []
    return [jnp.asarray(out) for out in _run(*arrays, **params)]


@deliver_p.def_effectful_abstract_eval
def _deliver_abstract_eval(*operands: Any, lanes: tuple[int, ...], ordered: bool, results: Any, **_: Any) -> Any:
    outs = [compat.ShapedArray(lanes + result.shape, result.dtype) for result in results]
    return outs, {_ordered_host_effect if ordered else _host_effect}


def _deliver_batching(axis_data: Any, operands: Any, dims: Any, *, lanes: Any, ordered: bool, **params: Any) -> Any:
    if ordered:
        raise OrderError("lox.tap: ordered=True cannot be kept under vmap; leave it out: records of a lane keep their order")
    operands = [
        jnp.expand_dims(operand, 0) if dim is None else jnp.moveaxis(operand, dim, 0)
        for operand, dim in zip(operands, dims, strict=True)
    ]
    outs = deliver_p.bind(*operands, lanes=(axis_data.size, *lanes), ordered=ordered, **params)
    return outs, [0] * len(outs)


def _deliver_lowering(ctx: Any, *operands: Any, masked: bool, ordered: bool, **params: Any) -> Any:
    alive_aval = ctx.avals_in[0]
    if masked or alive_aval.size > 1:
        return compat.lower_fun(_deliver_if_any_alive, multiple_results=True)(
            ctx, *operands, masked=masked, ordered=ordered, **params
        )
    return host_call_p_lowering(ctx, *operands, masked=masked, ordered=ordered, **params)


def _deliver_if_any_alive(alive: Array, *operands: Array, **params: Any) -> list[Array]:
    if params["results"]:
        return host_call_p.bind(alive, *operands, **params)
    jax.lax.cond(jnp.any(alive), lambda: host_call_p.bind(alive, *operands, **params), lambda: [])
    return []


compat.define_batching(deliver_p, _deliver_batching)
compat.define_jvp_binding_primals(deliver_p)
compat.define_lowering(deliver_p, _deliver_lowering)
compat.keep_in_loops(deliver_p)

# The call itself, without the question whether any lane is alive.
host_call_p = compat.Primitive("lox_host_call")
host_call_p.multiple_results = True
host_call_p.def_effectful_abstract_eval(_deliver_abstract_eval)


def host_call_p_lowering(ctx: Any, *operands: Any, ordered: bool, **params: Any) -> Any:
    if ordered and compat.current_device_count(ctx) > 1:
        raise OrderError("lox.tap: ordered=True cannot be kept on more than one device; leave it out")

    def run(*arrays: Any) -> tuple[np.ndarray, ...]:
        return _run(*map(np.asarray, arrays), **params)

    return compat.lower_to_host_call(ctx, run, operands, _ordered_host_effect if ordered else None)


compat.define_lowering(host_call_p, host_call_p_lowering)
