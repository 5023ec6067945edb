"""Where an execution of a tapped program begins and ends, for a host that puts numbered calls in order (``order``).

On platforms where calls wait for each other instead, both primitives are compiled to nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._host import order
from lox._host.delivery import WholeTarget
from lox._host.parcel import Parcel
from lox._host.primitive import HostEffect, deliver, packing_of
from lox._jax import compat, lowering
from lox._jax.primitive import EffectfulPrimitive
from lox._types import Array

_TOKEN = compat.ShapedArray((order.NUM_WORDS,), order.WORD)
_effect = HostEffect()


def begin(receiver: Any) -> Array:
    """The first token of an execution of a program that sends to this receiver."""
    (token,) = begin_p.bind(receiver=receiver)
    return token


def end(receiver: Any, token: Array) -> None:
    """No call follows the one that this token came from."""
    end_p.bind(token, receiver=receiver)


@dataclasses.dataclass(frozen=True)
class _Begin(WholeTarget):
    receiver: Any

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[np.ndarray]]:
        del parcel
        sequence = order.sequence_for(self.receiver)
        return lambda *arrays: (sequence.begin(),)


@dataclasses.dataclass(frozen=True)
class _End(WholeTarget):
    receiver: Any

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[()]]:
        sequence, take_apart = order.sequence_for(self.receiver), parcel.opener()

        def run(*arrays: np.ndarray) -> tuple[()]:
            (token,) = take_apart(arrays).leaves
            sequence.end(tuple(token.tolist()))
            return ()

        return run


begin_p = EffectfulPrimitive("lox_begin_execution")


@begin_p.def_impl
def _begin_impl(*, receiver: Any) -> list[Array]:
    del receiver
    return [order.first_token()]


@begin_p.def_effectful_abstract_eval
def _begin_abstract_eval(*, receiver: Any) -> Any:
    del receiver
    return [_TOKEN], {_effect}


def _begin_lowering(ctx: Any, *, receiver: Any) -> Any:
    def ask() -> list[Array]:
        return deliver(_Begin(receiver), [], results=(_TOKEN,))

    numbered = packing_of(ctx).numbered
    return lowering.lower_fun(ask if numbered else lambda: [order.first_token()], multiple_results=True)(ctx)


lowering.define_lowering(begin_p, _begin_lowering)

end_p = EffectfulPrimitive("lox_end_execution")


@end_p.def_impl
def _end_impl(token: Any, *, receiver: Any) -> list[Array]:
    del token, receiver
    return []


@end_p.def_effectful_abstract_eval
def _end_abstract_eval(token: Any, *, receiver: Any) -> Any:
    del token, receiver
    return [], {_effect}


def _end_batching(axis_data: Any, tokens: Any, dims: Any, *, receiver: Any) -> Any:
    del axis_data
    (token,), (dim,) = tokens, dims
    # A lane that has made the last call has the highest number.
    end(receiver, token if dim is None else jnp.max(token, dim))
    return [], []


def _end_lowering(ctx: Any, token: Any, *, receiver: Any) -> Any:
    if not packing_of(ctx).numbered:
        return []
    return lowering.lower_fun(lambda token: deliver(_End(receiver), [token]), multiple_results=True)(ctx, token)


compat.define_batching(end_p, _end_batching)
compat.define_jvp_binding_primals(end_p)
compat.define_transpose(end_p, lambda cotangents, token, receiver: [None])
lowering.define_lowering(end_p, _end_lowering)
