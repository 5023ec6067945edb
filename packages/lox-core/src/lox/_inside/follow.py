"""Programs that report their progress: the engine of ``lox.loggers.progress``.

Outermost loops and those directly inside them report. A scan with short steps becomes a scan over chunks, each a scan with
the original body, and reports between chunks. So the body costs what it did, and the program can be mapped,
differentiated and spooled as before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from lox._inside import ticks
from lox._inside.effort import Effort
from lox._inside.explorer import Explorer, Visit, check_traceable
from lox._inside.regions import Node, Region
from lox._inside.ticks import FollowedLoop, Listener, LoopClock
from lox._interpret import program
from lox._interpret.arguments import take_self
from lox._interpret.chunks import scan_in_chunks
from lox._interpret.collect import Context, Frame
from lox._jax import compat, hi_primitives, sharding
from lox._jax.scans import Scan, is_scan
from lox._types import Array

L = TypeVar("L", bound=Listener)

# The numbers of the stores: the clock of an outermost loop, and that of a loop inside it.
OUTER, INNER = -1, -2


def follow(fun: Callable[..., Any], make: Callable[[], L], label: Any) -> tuple[Callable[..., Any], L]:
    """Returns the same function, whose loops report their progress to a listener, and the listener.

    Args:
      make: makes the listener. A function that is wrapped again keeps the one it has.
      label: equal for equal listeners.
    """
    check_traceable(fun, "lox.loggers.progress")
    label = ("loggers.progress", label)
    listener = program.lookup(
        program.programs.programs_of(take_self(fun)[0]), ("listener", label), lambda: (make(), True)
    )
    followed = program.transform(
        fun,
        label,
        functools.partial(_interpreter, listener),
        lambda out, _: out,
        context=contextlib.nullcontext,  # marks are left to the transformations outside
    )
    return followed, listener


def _interpreter(listener: Listener, traced: program.Traced) -> Callable[[list[Array], list[Array]], Any]:
    follower = Follower(traced, listener)
    listener.expect(list(follower.loops.values()))

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        del operands
        return follower.explore(traced.jaxpr, arrays, {})[0], ()

    return interpret


class Follower(Explorer):
    """Rebuilds the loops that report. ``Frame.env`` is whether the loops here should do so now."""

    def __init__(self, traced: program.Traced, listener: Listener) -> None:
        super().__init__(traced)
        self._listener = listener
        self._effort = Effort(sharding.platform_of(sharding.mesh_of(traced.inputs())))
        self.loops: dict[Node, FollowedLoop] = {}
        for region in self.root.regions():
            self._choose(region, None)
        self._entered: dict[Node, bool] = {}

    def _choose(self, region: Region, around: FollowedLoop | None) -> None:
        """Choose the loops that report: the outermost ones worth it (at least the longest), and those directly inside them."""
        outermost = list(_outermost(region))
        worth = [node for node in outermost if self._effort.is_worth_following(node.eqn, around is None)]
        if not worth and outermost and around is None:
            worth = [max(outermost, key=lambda node: self._effort.of_equation(node.eqn))]
        for node in worth:
            assert node.loop is not None
            self.loops[node] = FollowedLoop(node.loop.path, node.loop.length, around.path if around else None)
            if around is None:
                for inner in node.regions():
                    self._choose(inner, self.loops[node])

    def enters(self, node: Node) -> bool:
        if node not in self._entered:
            inside = [self.enters(inner) for region in node.regions() for inner in region.nodes.values()]
            self._entered[node] = node in self.loops or any(inside)
        return self._entered[node]

    def explore(self, jaxpr: Any, args: Sequence[Array], state: dict[int, Any]) -> tuple[list[Array], Frame]:
        frame = Frame(Context(state, env=jnp.bool_(True), place=self.root), nested=False)
        return self.run(jaxpr, args, frame), frame

    def start(self, region: Region, frame: Frame) -> Visit:
        loop = self.loops.get(frame.place) if region.iterates else None
        if loop is not None and _clock_of(loop) in frame.state:
            clock, frame.env = ticks.tick(self._listener, loop, frame.env, frame.state[_clock_of(loop)])
            frame.state[_clock_of(loop)] = clock.after(1)
        return super().start(region, frame)

    def take_apart(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        if node not in self.loops:
            return super().take_apart(node, eqn, invals, frame)
        outs, clock = self._follow(node, eqn, invals, frame)
        if self.loops[node].inside is None:
            ticks.end(self._listener, self.loops[node], clock)
        return outs

    def _follow(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> tuple[Sequence[Array], LoopClock]:
        if is_scan(eqn) and not any(map(sharding.is_split, invals)):
            loop = Scan.of(eqn)
            size = self._effort.chunk(loop, self.loops[node].inside is None)
            if size > 1:
                return self._scan_of_chunks(node, loop, invals, frame, size)
        if eqn.primitive.name == "while" and _has_plain_condition(eqn):
            return self._while_of_whiles(node, eqn, invals, frame)
        number = _clock_of(self.loops[node])
        frame.state[number] = ticks.start()
        outs = self.rebuild(node, eqn, invals, frame, frozenset([number]))
        return outs, frame.state.pop(number)

    def _body(self, node: Node, jaxpr: Any, args: list[Array], frame: Frame, inside: Array) -> list[Array]:
        return self.body(jaxpr, args, Frame(frame.context(frozenset(), env=inside, place=node)))

    def _scan_of_chunks(self, node: Node, loop: Scan, invals: list[Array], frame: Frame, size: int) -> Any:
        consts, init, xs = loop.split(invals)
        length, reverse, num_carry = loop.length, loop.reverse, loop.num_carry
        wanted = frame.env

        def scan(carried: list[Array], xs: list[Array], length: int, inside: Array) -> Any:
            def step(carried: list[Array], x: list[Array]) -> Any:
                outs = self._body(node, loop.jaxpr, loop.arguments(consts, carried, x), frame, inside)
                return outs[:num_carry], outs[num_carry:]

            return hi_primitives.scan(step, carried, xs, length=length, reverse=reverse, unroll=loop.unroll)

        def chunk(carry: Any, xs: list[Array]) -> Any:
            clock, inside = ticks.tick(self._listener, self.loops[node], wanted, carry[1])
            carried, ys = scan(carry[0], xs, size, inside)
            return (carried, clock.after(size)), ys

        def last(carry: Any, xs: list[Array]) -> Any:
            carried, ys = scan(carry[0], xs, length % size, jnp.bool_(False))
            return (carried, carry[1].after(length % size)), ys

        (carried, clock), ys = scan_in_chunks(
            chunk, last, (init, ticks.start()), xs, length=length, size=size, reverse=reverse
        )
        return [*carried, *ys], clock

    def _while_of_whiles(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> Any:
        params = eqn.params
        cond, body = params["cond_jaxpr"], params["body_jaxpr"]
        cond_consts, others = invals[: params["cond_nconsts"]], invals[params["cond_nconsts"] :]
        body_consts, init = others[: params["body_nconsts"]], others[params["body_nconsts"] :]
        wanted = frame.env

        def goes_on(carried: list[Array]) -> Array:
            return self._body(node, cond, [*cond_consts, *carried], frame, jnp.bool_(False))[0]

        def chunk(carry: Any) -> Any:
            clock, inside = ticks.tick(self._listener, self.loops[node], wanted, carry[1])

            def step(carry: Any) -> Any:
                carried = self._body(node, body, [*body_consts, *carry[0]], frame, inside)
                return carried, carry[1].after(1)

            carry = carry[0], clock.until_due(wanted)
            return jax.lax.while_loop(lambda carry: ~carry[1].is_due() & goes_on(carry[0]), step, carry)

        return jax.lax.while_loop(lambda carry: goes_on(carry[0]), chunk, (init, ticks.start()))


def _clock_of(loop: FollowedLoop) -> int:
    return OUTER if loop.inside is None else INNER


def _outermost(region: Region) -> Iterator[Node]:
    """The loops of a region that are in no other loop."""
    for node in region.nodes.values():
        if node.loop is None:
            for inner in node.regions():
                yield from _outermost(inner)
        elif not _is_unrolled(node.eqn):
            yield node


def _is_unrolled(eqn: Any) -> bool:
    return is_scan(eqn) and Scan.of(eqn).unroll == Scan.of(eqn).length


def _has_plain_condition(eqn: Any) -> bool:
    """Whether the condition of a while loop is the same for all lanes and may be computed twice."""
    cond, _ = compat.open_jaxpr(eqn.params["cond_jaxpr"])
    return not cond.effects and not cond.outvars[0].aval.shape and not sharding.manual_axes_here()
