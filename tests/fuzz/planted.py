"""A nan planted in a random program: at one statement, in one iteration, one lane and one pass.

The planted operation is the square root of -1, under a scope of its own, so that a report can be held to name exactly it.
Whether it is reached at all, a record tells: ``lox.spool`` of the same program.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import lax

import lox
from tests.fuzz.build import Builder, bound
from tests.fuzz.compare import require
from tests.fuzz.generate import from_seed
from tests.fuzz.interpret import evaluate
from tests.fuzz.program import FORWARD, Arith, Block, Call, LogGrad, Program, Scan, Scope, Statement, While, blocks_of

Array = Any
LANES = 2
# What is recorded inside them does not get out.
_HIDING = ("spool", "tap", "nolog")
_SCOPE = "planted"


@dataclasses.dataclass(frozen=True)
class Plant:
    """Where: a statement of the program, the iterations of the loops around it, outermost first, a lane, a pass."""

    statement: Any
    iterations: tuple[int, ...]
    lane: int
    backward: bool


def plant_somewhere(program: Program, random: random.Random) -> Plant | None:
    places = [s for s in _in_sight(program.body) if isinstance(s, Arith) and s.op != "const"]
    if not places:
        return None
    iterations = tuple(random.randrange(3) for _ in range(8))
    # The backward plant is a custom_vjp, which cannot be differentiated forwards.
    backward = program.reversible and not program.has(*FORWARD) and random.random() < 0.5
    return Plant(random.choice(places), iterations, random.randrange(LANES), backward)


def _in_sight(block: Block) -> Iterator[Statement]:
    for statement in block.statements:
        yield statement
        if not (isinstance(statement, Call) and statement.how in _HIDING):
            for inner in blocks_of(statement):
                yield from _in_sight(inner)


class Planter(Builder):
    """Builds the program with the plant in it."""

    def __init__(self, plant: Plant, lane: Array) -> None:
        super().__init__([])
        self.plant = plant
        self.lane = lane
        self.counters: list[Array] = []
        self.loops: set[int] = set()
        self.depth = 0

    def on_scan(self, s: Scan, scope: Scope) -> None:
        self.loops.add(id(s.body))
        super().on_scan(s, scope)

    def on_while(self, s: While, scope: Scope) -> None:
        self.loops.add(id(s.body))
        super().on_while(s, scope)

    def run(self, body: Any, scope: Scope) -> Array:
        if id(body) not in self.loops:
            return super().run(body, scope)
        self.counters.append(scope.i[-1])
        try:
            return super().run(body, scope)
        finally:
            self.counters.pop()

    def on_log(self, s: Any, scope: Scope) -> None:
        """Only the plant logs."""

    def on_loggrad(self, s: LogGrad, scope: Scope) -> None:
        scope.f.append(bound(lax.add(scope.scalar(s.a), scope.active)))

    def on_arith(self, s: Arith, scope: Scope) -> None:
        super().on_arith(s, scope)
        if s is self.plant.statement:
            self.depth = len(self.counters)
            scope.f[-1] = self.planted(scope.f[-1])

    def planted(self, x: Array) -> Array:
        here = lax.eq(self.lane, np.int32(self.plant.lane))
        for counter, iteration in zip(self.counters, self.plant.iterations, strict=False):
            here = lax.bitwise_and(here, lax.eq(counter, np.int32(iteration)))
        return grow_backward(x, here) if self.plant.backward else grow(x, here)


def grow(x: Array, here: Array) -> Array:
    lox.log({"reached": here}, reduce="max")
    with jax.named_scope(_SCOPE):
        return lax.add(x, lax.sqrt(lax.select(here, np.float32(-1), np.float32(0))))


@jax.custom_vjp
def grow_backward(x: Array, here: Array) -> Array:
    return x


grow_backward.defvjp(lambda x, here: (x, here), lambda here, ct: (grow(ct, here), None))


def check(seed: int) -> str | None:
    """The planted nan is found, or there is none: what was checked, or None if the program has no place for one."""
    program = from_seed(seed)
    plant = plant_somewhere(program, random.Random(seed))
    if plant is None:
        return None
    depths: list[int] = []

    def f(lane: Array, x: Array, xs: Array, n: Array) -> Array:
        scope = Scope([x], [xs], [n], active=x)
        planter = Planter(plant, lane)
        total = planter.run(program.body, scope)
        depths.append(planter.depth)
        return total

    fun = jax.grad(f, argnums=1) if plant.backward else f
    lanes = np.arange(LANES, dtype=np.int32)
    xs = np.array([2.0, -1.0], np.float32), np.array([[1.0, -3.0], [4.0, 2.0]], np.float32)
    axes = (0, 0, 0, None)
    # Derivative rules of the program have marks of their own, which spool might not be able to count.
    both = lambda *args: (lox.spool(fun, "reached")(*args)[1], lox.find_nonfinite(fun)(*args)[1])  # noqa: E731
    logs, reports = evaluate(jax.vmap(both, in_axes=axes), lanes, *xs, np.int32(3))
    reached = np.asarray(logs["reached"]) if "reached" in logs else np.zeros(LANES, bool)
    for lane in range(LANES):
        _check_lane(reports[lane], bool(reached[lane].any()), plant, depths[-1], lane)
    return "backward" if plant.backward else "forward"


def _check_lane(report: Any, reached: bool, plant: Plant, depth: int, lane: int) -> None:
    require(bool(report.found) == reached, f"lane {lane}: reached {reached}, but the report says {report}")
    if not reached:
        return
    require(report.primitive == "sqrt", "another operation", report)
    require(report.scope.split("/")[-1] == _SCOPE, "another place", report)
    require(report.backward == plant.backward, "the other pass", report)
    iterations = tuple(report.loops.values())
    require(iterations == plant.iterations[:depth], "other iterations", report, plant.iterations[:depth])
