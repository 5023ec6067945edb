"""``tick_p``: a loop reports its progress to the host, as often as the host wants.

A loop looks between chunks of iterations whether a tick is due, which the host decided in answer to the last one. So the
host chooses the interval while the program runs, and a look without a tick costs only a comparison.

Under ``vmap`` there is one tick for all lanes. They run in lockstep, and the tick has the position of the farthest lane.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lox._jax import compat, lowering
from lox._jax.primitive import EffectfulPrimitive
from lox._types import Array


class FollowedLoop(NamedTuple):
    """A loop that reports its progress.

    Attributes:
      path: where it is in the program.
      length: how many iterations it has; None if that is not known before it runs.
      inside: the path of the followed loop around it; None for an outermost loop.
    """

    path: str
    length: int | None
    inside: str | None


class Answer(NamedTuple):
    """What the host wants to hear next.

    Attributes:
      steps: after how many more iterations it wants to hear of the loop again.
      inside: whether, until then, it wants to hear of the loops inside as well.
    """

    steps: int
    inside: bool


class Listener(Protocol):
    """The host's side. The program waits while a method runs, so methods must be short."""

    def expect(self, loops: Sequence[FollowedLoop]) -> None:
        """A program was traced; these are its loops."""

    def tick(self, loop: FollowedLoop, position: int) -> Answer:
        """``position`` iterations are done; at 0, the loop has just begun."""

    def end(self, loop: FollowedLoop, position: int) -> None:
        """An outermost loop has ended."""


@dataclasses.dataclass(frozen=True)
class TickTarget:
    """Which listener hears about which loop. Targets of equal programs are equal, so JAX finds the compiled program again."""

    listener: Listener
    loop: FollowedLoop

    def call(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at = int(position)
        steps, inside = self.listener.tick(self.loop, at % 2**32)
        return _wrapped(at + min(max(steps, 1), _FARTHEST)), np.asarray(inside, np.bool_)

    def call_at_end(self, position: np.ndarray, due: np.ndarray) -> tuple[()]:
        del due
        self.listener.end(self.loop, int(position) % 2**32)
        return ()


# Counters have 32 bits and wrap around: two that are less than this apart can be compared.
_FARTHEST = 2**30


def _wrapped(position: int) -> np.ndarray:
    return np.asarray((position + 2**31) % 2**32 - 2**31, np.int32)


class LoopClock(NamedTuple):
    """What a followed loop carries: how many iterations are done, and at how many the next tick is due."""

    done: Array
    due: Array

    def after(self, steps: int) -> LoopClock:
        return LoopClock(self.done + jnp.int32(steps), self.due)

    def is_due(self) -> Array:
        return self.done - self.due >= 0

    def until_due(self, wanted: Array) -> LoopClock:
        """The clock, with no tick due unless one is wanted."""
        return LoopClock(self.done, jnp.where(wanted, self.due, self.done + jnp.int32(_FARTHEST)))


def start() -> LoopClock:
    return LoopClock(jnp.int32(0), jnp.int32(0))


def tick(listener: Listener, loop: FollowedLoop, wanted: Array, clock: LoopClock) -> tuple[LoopClock, Array]:
    """Make a tick if one is wanted and due. Returns the next clock, and whether loops inside should report."""
    due, inside = tick_p.bind(wanted, *clock, target=TickTarget(listener, loop))
    return LoopClock(clock.done, due), inside


def end(listener: Listener, loop: FollowedLoop, clock: LoopClock) -> None:
    # `due` makes the call wait: the compiler knows the length of a scan in advance, but not the last answer of the host.
    end_p.bind(*clock, target=TickTarget(listener, loop))


# --- the primitives --------------------------------------------------------------------------------------------------


class TickEffect(compat.Effect):
    __str__ = lambda self: "LoxTick"  # noqa: E731


_effect = TickEffect()
compat.allow_effect(TickEffect)

tick_p = EffectfulPrimitive("lox_tick")  # wanted, done, due -> due, inside
end_p = EffectfulPrimitive("lox_end")  # done, due ->
call_p = compat.Primitive("lox_tick_call")  # the call itself
call_p.multiple_results = True

_RESULTS = [compat.ShapedArray((), np.dtype(np.int32)), compat.ShapedArray((), np.dtype(np.bool_))]


@tick_p.def_impl
def _tick_impl(wanted: Any, done: Any, due: Any, *, target: TickTarget) -> list[Any]:
    if not wanted or int(_wrapped(int(done) - int(due))) < 0:
        return [due, jnp.bool_(False)]
    return [jnp.asarray(out) for out in target.call(np.asarray(done))]


@end_p.def_impl
def _end_impl(done: Any, due: Any, *, target: TickTarget) -> list[Any]:
    return list(target.call_at_end(np.asarray(done), np.asarray(due)))


@tick_p.def_effectful_abstract_eval
@call_p.def_effectful_abstract_eval
def _tick_type(*avals: Any, target: TickTarget) -> Any:
    del avals, target
    return _RESULTS, {_effect}


@end_p.def_effectful_abstract_eval
def _end_type(*avals: Any, target: TickTarget) -> Any:
    del avals, target
    return [], {_effect}


def _batch(primitive: Any, axis_data: Any, operands: Any, dims: Any, *, target: TickTarget) -> Any:
    del axis_data
    farthest = [x if dim is None else jnp.max(x, axis=dim) for x, dim in zip(operands, dims, strict=True)]
    outs = primitive.bind(*farthest, target=target)
    return outs, [None] * len(outs)


def _tick(wanted: Array, done: Array, due: Array, *, target: TickTarget) -> list[Array]:
    return jax.lax.cond(
        wanted & LoopClock(done, due).is_due(),
        lambda: call_p.bind(done, target=target),
        lambda: [due, jnp.bool_(False)],
    )


def _call(ctx: Any, *operands: Any, target: TickTarget) -> Any:
    return lowering.lower_to_host_call(ctx, target.call, operands, None, checked=True)


def _call_at_end(ctx: Any, *operands: Any, target: TickTarget) -> Any:
    return lowering.lower_to_host_call(ctx, target.call_at_end, operands, None, checked=False)


for _primitive in (tick_p, end_p):
    compat.define_batching(
        _primitive, lambda *args, _primitive=_primitive, **params: _batch(_primitive, *args, **params)
    )
    compat.define_jvp_binding_primals(_primitive)
lowering.define_lowering(tick_p, lowering.lower_fun(_tick, multiple_results=True))
lowering.define_lowering(call_p, _call)
lowering.define_lowering(end_p, _call_at_end)
