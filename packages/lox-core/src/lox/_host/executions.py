"""Where an execution of a tapped program begins and ends, for a host that puts numbered calls in order (``order``).

On platforms where calls wait for each other instead, both are compiled to nothing.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._host import tokens
from lox._host.delivery import WholeTarget
from lox._host.order import Event, Kind, Sequence
from lox._host.parcel import Parcel
from lox._host.primitive import HostEffect, deliver, numbered_at, packing_of
from lox._host.tokens import WORD, Token
from lox._jax import compat, lowering
from lox._jax.primitive import EffectfulPrimitive
from lox._types import Array

_effect = HostEffect()


def begin(sequence: Sequence, token: Array, device: Any) -> Array:
    """An execution begins, on this device: its first token, with both labels. ``sequence`` puts its calls in order."""
    (number,) = number_p.bind()
    token = tokens.labelled(token, number, device)
    say_p.bind(token, sequence=sequence, kind=Kind.BEGIN)
    return token


def end(sequence: Sequence, first: Array, last: Array) -> None:
    """No call follows the one that the last token came from."""
    say_p.bind(first, last, sequence=sequence, kind=Kind.END)


# --- the number of an execution --------------------------------------------------------------------------------------

number_p = EffectfulPrimitive("lox_execution_number")


@number_p.def_impl
def _number_impl() -> list[Array]:
    return [jnp.asarray(secrets.randbits(32), WORD)]


@number_p.def_effectful_abstract_eval
def _number_abstract_eval() -> Any:
    return [compat.ShapedArray((), WORD)], {_effect}


def _number_lowering(ctx: Any) -> Any:
    # The devices of an automatically sharded program would need a collective to agree on one. There, all executions have the
    # same number, and the host takes calls of one place in the order in which they arrive.
    if packing_of(ctx).numbered and not lowering.may_split_values(ctx):
        make: Callable[[], Array] = lambda: lax.rng_uniform(WORD(0), WORD(2**32 - 1), ())  # noqa: E731
    else:
        make = lambda: jnp.zeros((), WORD)  # noqa: E731
    return lowering.lower_fun(lambda: [make()], multiple_results=True)(ctx)


lowering.define_lowering(number_p, _number_lowering)

# --- its beginning and its end ---------------------------------------------------------------------------------------

# Its operands are tokens. The last one is sent.
say_p = EffectfulPrimitive("lox_say_execution")


@dataclasses.dataclass(frozen=True)
class _Said(WholeTarget):
    sequence: Sequence
    kind: Kind

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[()]]:
        take_apart = parcel.opener()

        def run(*arrays: np.ndarray) -> tuple[()]:
            (words,) = take_apart(arrays).leaves
            self.sequence.receive(Event(self.kind, Token.of(words)))
            return ()

        return run


@say_p.def_impl
def _say_impl(*tokens: Any, sequence: Sequence, kind: Kind) -> list[Array]:
    if numbered_at(tokens[-1]):
        sequence.receive(Event(kind, Token.of(np.asarray(tokens[-1]))))
    return []


@say_p.def_effectful_abstract_eval
def _say_abstract_eval(*tokens: Any, **_: Any) -> Any:
    del tokens
    return [], {_effect}


def _say_batching(axis_data: Any, tokens: Any, dims: Any, **params: Any) -> Any:
    # All lanes together have made as many calls on a track as the one that has made the most; no lanes have made none.
    most = (lambda token, dim: jnp.max(token, dim)) if axis_data.size else (lambda token, dim: tokens[0])
    say_p.bind(*(t if dim is None else most(t, dim) for t, dim in zip(tokens, dims, strict=True)), **params)
    return [], []


def _say_transpose(cotangents: Any, *tokens: Any, sequence: Sequence, kind: Kind) -> list[None]:
    """After a call with tangents in it, which reverse mode does not make, nobody knows how many calls there were."""
    del cotangents
    known = [token for token in tokens if not compat.is_linear(token)]
    say_p.bind(*known, sequence=sequence, kind=kind if len(known) == len(tokens) else Kind.LEAVE)
    return [None] * len(tokens)


def _say_lowering(ctx: Any, *tokens: Any, sequence: Sequence, kind: Kind) -> Any:
    if not packing_of(ctx).numbered:
        return []

    def say(*tokens: Array) -> list[Array]:
        return deliver(_Said(sequence, kind), tokens[-1:])

    return lowering.lower_fun(say, multiple_results=True)(ctx, *tokens)


compat.define_batching(say_p, _say_batching)
compat.define_jvp_binding_primals(say_p)
compat.define_transpose(say_p, _say_transpose)
lowering.define_lowering(say_p, _say_lowering)
