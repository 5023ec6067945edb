"""The loop over equations with a map of the program, and the same with the counters of the surrounding loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import LogTypeError
from lox._inside.regions import Node, Region, root
from lox._interpret import table
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.program import Traced
from lox._interpret.survey import Survey
from lox._jax import compat
from lox._marks.mark import marks_are_wanted
from lox._marks.primitives import watch_p

Array = Any


def check_traceable(fun: Any, caller: str) -> None:
    if isinstance(fun, (jax.stages.Compiled, jax.stages.Lowered)):
        raise LogTypeError(
            f"{caller}: this program is already compiled, so nothing can be added to it. Pass the function that it was "
            "compiled from"
        )


class Visit:
    """One evaluation of a region."""

    def __init__(self, region: Region) -> None:
        self.region = region


class Explorer(Collector):
    """Evaluates a program and knows where each equation is in it. Marks stay in the program.

    ``Frame.place`` is the node whose bodies are entered next.
    """

    # The stores that are carried through every equation that is entered.
    carried: frozenset[int] = frozenset()

    def __init__(self, traced: Traced) -> None:
        super().__init__(Survey(lambda mark, key: False), keep=True)
        self.root = root(traced.jaxpr)
        self._stores: frozenset[int] = self.carried

    # --- for subclasses ------------------------------------------------------------------------------------------

    def enters(self, node: Node) -> bool:
        """Whether the equation is taken apart; otherwise it is bound as it is."""
        raise NotImplementedError

    def start(self, region: Region, frame: Frame) -> Visit:
        del frame
        return Visit(region)

    def entering(self, visit: Any, node: Node, frame: Frame) -> None:
        """An equation is about to be taken apart."""

    def evaluated(self, visit: Any, eqn: Any, invals: list[Array], outs: Sequence[Array], frame: Frame) -> None:
        """An equation was evaluated, as it is or taken apart."""

    def finish(self, visit: Any, outs: list[Array], frame: Frame) -> None:
        """A region was evaluated."""

    # --- evaluation ----------------------------------------------------------------------------------------------

    def explore(self, jaxpr: Any, args: Sequence[Array], state: dict[int, Any]) -> tuple[list[Array], Frame]:
        frame = Frame(Context(state, place=self.root), nested=False)
        return self.run(jaxpr, args, frame), frame

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        region = frame.place.region(jaxpr)
        with _restoring(frame):
            if region.linear:
                frame.visit = None
                return super().run(jaxpr, args, frame)
            frame.visit = self.start(region, frame)
            outs = super().run(jaxpr, args, frame)
            self.finish(frame.visit, outs, frame)
        return outs

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        visit = frame.visit
        if eqn.primitive is watch_p and not marks_are_wanted():
            return invals[: len(eqn.outvars)]
        if visit is None or visit.region.computes_tangents(eqn):
            return compat.bind_eqn(eqn, invals)
        node = visit.region.nodes.get(id(eqn))
        if node is None or not self.enters(node):
            outs = compat.bind_eqn(eqn, invals)
        else:
            self.entering(visit, node, frame)
            outs = self.take_apart(node, eqn, invals, frame)
        self.evaluated(visit, eqn, invals, outs, frame)
        return outs

    def take_apart(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        return self.rebuild(node, eqn, invals, frame, self.carried)

    def rebuild(
        self, node: Node, eqn: Any, invals: list[Array], frame: Frame, stores: frozenset[int]
    ) -> Sequence[Array]:
        """Evaluate the equation by the rule for its primitive, with these stores carried through its bodies."""
        with _restoring(frame):
            frame.place = node
            self._stores = stores
            return table.find(eqn).run(self, frame, eqn, invals)

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        """The stores of the equation that is being taken apart: its rule asks before it evaluates what is inside."""
        del jaxpr, folds
        return self._stores


class CountingExplorer(Explorer):
    """Keeps the counters of the surrounding loops in ``Frame.env``.

    A scan gets its counter as an input. A while loop carries its counter as a store, whose number is its depth.
    """

    wants_index = True

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        region = frame.place.region(jaxpr)
        depth, around = len(region.loops) - 1, frame.env
        if frame.place.loop is not None and not region.linear:
            frame.env = (*around, frame.state[depth] if frame.index is None else frame.index)
        outs = super().run(jaxpr, args, frame)
        frame.env = around
        if region.iterates and depth in frame.state:
            frame.state[depth] = frame.state[depth] + 1
        return outs

    def take_apart(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        if node.loop is None or node.loop.length is not None:
            return super().take_apart(node, eqn, invals, frame)
        depth = len(node.around)
        frame.state[depth] = jnp.int32(0)
        outs = self.rebuild(node, eqn, invals, frame, self.carried | {depth})
        del frame.state[depth]
        return outs


@contextlib.contextmanager
def _restoring(frame: Frame) -> Iterator[None]:
    """Restores the frame after a body that is evaluated in it, such as that of a closed call."""
    before = frame.place, frame.env, frame.visit
    try:
        yield
    finally:
        frame.place, frame.env, frame.visit = before
