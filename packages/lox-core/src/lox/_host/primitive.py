"""``deliver_p``, the one primitive that leaves the device.

lox has its own primitive instead of a JAX callback for four reasons:

* all operands travel packed in one array, so a call costs microseconds;
* under ``vmap`` there is one call for all lanes, whatever their number: each lane axis stays a leading axis;
* a call in which no lane is **alive** (took the branch, is still in the loop, passes ``where=``) is not made at all;
* under ``grad`` and ``checkpoint`` it runs once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._errors import OrderError
from lox._host import order, tokens
from lox._host.parcel import Parcel, as_they_are, pack
from lox._jax import compat, lowering, sharding
from lox._jax.primitive import EffectfulPrimitive
from lox._storage.packing import Packing, packing_on
from lox._storage.words import is_key, key_impl
from lox._types import Alive, Array


class Target(Protocol):
    """The host's side of a delivery. Targets of equal programs are equal, so JAX finds the compiled program again."""

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[np.ndarray, ...]]:
        """A function of the arrays that are sent."""

    def parts(self, number: int) -> list[tuple[Target, Sequence[int]]]:
        """The deliveries that this one, of so many leaves, is made of; each with the leaves that it needs."""


def deliver(
    target: Target,
    leaves: Sequence[Array],
    *,
    constants: int = 0,
    token: Array | None = None,
    sequence: order.Sequence | None = None,
    waits: bool = True,
    alive: Alive = True,
    masked: bool = False,
    ordered: bool = False,
    results: tuple[Any, ...] = (),
) -> list[Array]:
    """Make a host call. The first ``constants`` leaves are the same in every call.

    With a ``token`` it is delivered after the call that the token came from, and the first result is the next token. XLA is
    free to reorder calls that do not depend on each other, and does.

    Args:
      sequence: puts the calls in order where they are numbered. Their tokens come from ``executions.begin``.
      waits: whether, elsewhere, the call waits for the one that the token came from.
    """
    has_alive = alive is not True
    return deliver_p.bind(
        *([] if token is None else [token]),
        *([jnp.asarray(alive)] if has_alive else []),
        # PRNG keys reach the host as their words.
        *[jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf for leaf in leaves],
        target=target,
        lanes=(),
        has_token=token is not None,
        sequence=sequence,
        waits=waits,
        has_alive=has_alive,
        masked=masked,
        ordered=ordered,
        results=results,
        constants=constants,
        impls=tuple(map(key_impl, leaves)),
    )


# --- the primitive ---------------------------------------------------------------------------------------------------
# operands: a token and `alive`, if there are any, then the arrays. All except the token have len(lanes) leading axes. An
# axis has the size of the lane axis, or size 1 if the operand is the same in all its lanes.


class HostEffect(compat.Effect):
    __str__ = lambda self: "LoxHost"  # noqa: E731


class OrderedHostEffect(compat.Effect):
    __str__ = lambda self: "LoxOrderedHost"  # noqa: E731


_host_effect, _ordered_host_effect = HostEffect(), OrderedHostEffect()
compat.allow_effect(HostEffect)
compat.allow_effect(OrderedHostEffect, ordered=True)

deliver_p = EffectfulPrimitive("lox_deliver")


@deliver_p.def_impl
def _deliver_impl(
    *operands: Any,
    target: Target,
    lanes: Any,
    has_token: bool,
    has_alive: bool,
    sequence: order.Sequence | None,
    results: Any,
    impls: Any,
    **_: Any,
) -> list[Any]:
    token = list(operands[: int(has_token)])
    # Under an eager jvp, an operand can be a Python number, which numpy would turn into a 64-bit one.
    arrays = [np.asarray(operand, jax.typeof(operand).dtype) for operand in operands[int(has_token) :]]
    if has_alive and not arrays[0].any() and not results:
        return token
    run = target.prepare(as_they_are(arrays, lanes, has_alive, impls))
    if token and sequence is not None and numbered_at(token[0]):
        # A loop before this call is a compiled program, whose calls are numbered.
        sequence.receive_call(np.asarray(token[0]), functools.partial(run, *arrays))
        return [tokens.following(token[0])]
    return token + [jnp.asarray(out) for out in run(*arrays)]


@deliver_p.def_effectful_abstract_eval
def _deliver_abstract_eval(*operands: Any, lanes: Any, has_token: bool, ordered: bool, results: Any, **_: Any) -> Any:
    outs = [compat.ShapedArray(lanes + result.shape, result.dtype) for result in results]
    return [*operands[: int(has_token)], *outs], {_ordered_host_effect if ordered else _host_effect}


def _deliver_batching(
    axis_data: Any,
    operands: Any,
    dims: Any,
    *,
    lanes: Any,
    has_token: bool,
    sequence: order.Sequence | None,
    ordered: bool,
    **params: Any,
) -> Any:
    if ordered:
        raise OrderError(
            "lox.tap: ordered=True does not work under vmap. Leave it out: the records of each lane keep their order"
        )
    if not axis_data.size and not params["results"]:  # no lanes, no call
        return operands[: int(has_token)], dims[: int(has_token)]
    moved = [
        jnp.expand_dims(operand, 0) if dim is None else jnp.moveaxis(operand, dim, 0)
        for operand, dim in zip(operands, dims, strict=True)
    ]
    if has_token:
        # One call for all lanes needs one token. A slice of the batched token depends on all of them; and all lanes together
        # have made as many calls on a track as the one that has made the most.
        moved[0] = moved[0][0] if sequence is None else jnp.max(moved[0], 0)
    params |= {"lanes": (axis_data.size, *lanes), "has_token": has_token, "sequence": sequence, "ordered": ordered}
    outs = deliver_p.bind(*moved, **params)
    return outs, [None] * int(has_token) + [0] * (len(outs) - int(has_token))


def packing_of(ctx: Any) -> Packing:
    """The packing for the platform that a program is lowered for."""
    return packing_on(lowering.platform(ctx), lowering.may_split_values(ctx))


def numbered_at(token: Any) -> bool:
    """Outside compiled programs: whether calls are numbered on the device where a token is."""
    return any(packing_on(device.platform, may_be_split=False).numbered for device in jnp.asarray(token).devices())


def _deliver_lowering(
    ctx: Any,
    *operands: Any,
    has_token: bool,
    has_alive: bool,
    masked: bool,
    sequence: order.Sequence | None,
    waits: bool,
    **params: Any,
) -> Any:
    packing = packing_of(ctx)
    matters = has_alive and (masked or ctx.avals_in[int(has_token)].size > 1)
    make = _deliver_if_any_alive if matters else _deliver_always
    params |= {"has_alive": has_alive, "packing": packing, "sequence": sequence if packing.numbered else None}
    passes_by = has_token and not (waits or packing.numbered)

    def make_call(*operands: Array) -> list[Array]:
        if passes_by:
            return [operands[0], *make(*operands[1:], has_token=False, **params)]
        return make(*operands, has_token=has_token, **params)

    return lowering.lower_fun(make_call, multiple_results=True)(ctx, *operands)


def _deliver_if_any_alive(*operands: Array, has_token: bool, has_alive: bool, **params: Any) -> list[Array]:
    token, (alive, *leaves) = list(operands[: int(has_token)]), operands[int(has_token) :]
    # Without lanes: it is alive if the call is made.
    told = [] if alive.size == 1 and not params["results"] else [alive]
    # Packed before it is asked: to hand many values into a branch takes longer.
    call = _host_call(token, told, leaves, **params)
    return call() if params["results"] else lax.cond(jnp.any(alive), call, lambda: token)


def _deliver_always(*operands: Array, has_token: bool, has_alive: bool, **params: Any) -> list[Array]:
    """Without lanes the program is here, or it would not make the call."""
    token, leaves = operands[: int(has_token)], operands[int(has_token) + int(has_alive) :]
    return _host_call(token, [], leaves, **params)()


def _host_call(
    token: Sequence[Array],
    alive: Sequence[Array],
    leaves: Sequence[Array],
    *,
    packing: Packing,
    lanes: Any,
    constants: int,
    impls: Any,
    sequence: order.Sequence | None,
    **params: Any,
) -> Callable[[], list[Array]]:
    """A function that makes the call."""
    counted = bool(token) and sequence is not None
    # Of a token that only makes a call wait, one word is enough. They are scalars, which are packed even where values may be
    # split.
    number = token[0].size if counted else len(token) * (not packing.beside)
    words = [token[0][i] for i in range(number)]
    arrays, parcel = pack(packing, words, alive, leaves, lanes=lanes, constants=constants, impls=impls)
    call = functools.partial(host_call_p.bind, parcel=parcel, lanes=lanes, **params)
    if counted:
        after = tokens.following(token[0])
        return lambda: [after, *call(*arrays, sequence=sequence, has_token=False)]
    return functools.partial(call, *token, *arrays, sequence=None, has_token=bool(token))


def _deliver_transpose(
    cotangents: Any, *operands: Any, target: Target, has_token: bool, has_alive: bool, impls: Any, **params: Any
) -> Any:
    """A call with tangents in it is not made in reverse mode, which never computes them. One that only comes after such a
    call is, and so are the parts of the call that have none."""
    del cotangents
    first = int(has_token) + int(has_alive)
    alive, leaves = operands[int(has_token) : first], operands[first:]
    token = [tokens.first_token()] if has_token else []
    whole: list[tuple[Target, Sequence[int]]] = [(target, range(len(leaves)))]
    for part, places in target.parts(len(leaves)) if any(map(compat.is_linear, leaves)) else whole:
        told = [*alive, *(leaves[i] for i in places)]
        if not any(map(compat.is_linear, told)):
            chosen = {**params, "target": part, "impls": tuple(impls[i] for i in places), "sequence": None}
            token = deliver_p.bind(*token, *told, has_token=has_token, has_alive=has_alive, **chosen)[: int(has_token)]
    return [None] * len(operands)


compat.define_batching(deliver_p, _deliver_batching)
compat.define_transpose(deliver_p, _deliver_transpose)
compat.define_jvp_binding_primals(deliver_p)
lowering.define_lowering(deliver_p, _deliver_lowering)

# The call itself, made without checking whether any lane is alive.
host_call_p = compat.Primitive("lox_host_call")
host_call_p.multiple_results = True
host_call_p.def_effectful_abstract_eval(_deliver_abstract_eval)


def _host_call_lowering(
    ctx: Any,
    *operands: Any,
    target: Target,
    parcel: Parcel,
    lanes: Any,
    sequence: order.Sequence | None,
    has_token: bool,
    ordered: bool,
    results: Any,
) -> Any:
    if ordered and lowering.current_device_count(ctx) > 1:
        raise OrderError("lox.tap: ordered=True does not work on more than one device. Leave it out")
    automatic = lowering.automatic_axes(ctx)
    if automatic:
        params = dict(target=target, parcel=parcel, lanes=lanes, sequence=sequence, ordered=ordered, results=results)
        outs = [compat.ShapedArray(lanes + r.shape, r.dtype) for r in results]
        bind = functools.partial(host_call_p.bind, has_token=has_token, **params)
        once = functools.partial(_once_along, automatic, bind, outs, int(has_token))
        return lowering.lower_fun(once, multiple_results=True)(ctx, *operands)
    run = target.prepare(parcel)
    if sequence is not None:
        run = sequence.in_turn(parcel.token_words, run)
    beside = int(has_token and not parcel.token_words)  # a token that is among the arrays is not sent twice
    returned = tuple(np.zeros(aval.shape, aval.dtype) for aval in ctx.avals_in[: int(has_token)])
    call = (lambda *arrays: (*returned, *run(*arrays[beside:]))) if has_token else run
    sent = slice(int(has_token) - beside, None)
    effect = _ordered_host_effect if ordered else None
    return lowering.lower_to_host_call(ctx, call, operands[sent], effect, bool(results), ctx.avals_in[sent])


def _once_along(
    automatic: tuple[str, ...], call: Callable[..., Any], outs: Sequence[Any], num_tokens: int, *operands: Array
) -> list[Array]:
    """In a shard_map that leaves some mesh axes to the compiler: one call for all devices along those axes, with the whole
    values."""

    def on_each(*operands: Array) -> list[Array]:
        nothing = [*operands[:num_tokens], *(jnp.zeros(out.shape, out.dtype) for out in outs)]
        is_first = lax.axis_index(automatic) == 0
        returned = lax.cond(is_first, lambda: list(call(*operands)), lambda: nothing)
        # The other devices return zeros, so the sum is what the host returned. The value of a token does not matter.
        return [*returned[:num_tokens], *(lax.psum(out, automatic) for out in returned[num_tokens:])]

    whole = jax.sharding.PartitionSpec()
    # Without axis_names it covers all remaining axes. If they are named, JAX 0.9 forgets the surrounding ones.
    everywhere = [jax.sharding.reshard(x, whole) if sharding.is_split(x) else x for x in operands]
    return jax.shard_map(on_each, in_specs=whole, out_specs=whole, check_vma=False)(*everywhere)


lowering.define_lowering(host_call_p, _host_call_lowering)
