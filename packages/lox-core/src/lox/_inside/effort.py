"""A rough estimate, from its equations alone, of how long a piece of a program takes.

It decides two things: whether a loop should report its progress, and how many iterations come between two reports. Both
tolerate errors: being wrong by a factor of ten costs a percent, or makes a bar move less often.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lox._jax import compat
from lox._jax.scans import Scan, is_scan


@dataclasses.dataclass(frozen=True)
class Speed:
    """Seconds for each equation, each byte of a result and each multiplication, and between two looks."""

    equation: float
    byte: float
    product: float
    between_looks: float


# A look checks whether a report is due: a comparison and a branch. On a CPU these make a loop body 3 us slower, because XLA
# then looks for parts that could run in parallel. On an accelerator the host may have to decide, which takes 20 us.
_CPU = Speed(equation=2e-9, byte=5e-11, product=5e-11, between_looks=1e-3)
_ACCELERATOR = Speed(equation=5e-7, byte=1e-12, product=1e-14, between_looks=5e-3)
# An outermost loop that takes less than this in all is not worth a host call.
_SHORT = 2e-5
# The assumed number of iterations of a loop that runs until a condition is false.
_DYNAMIC = 100
# However short its steps, an outermost loop has at least about this many looks. It runs once, so they take a millisecond in
# all. A loop inside it runs often, so this does not hold for it.
_PLACES = 300
# How many numbers are tried to find one that divides the length.
_TRIED = 1000
# Primitives whose time cannot be estimated.
_OPAQUE = frozenset(["pure_callback", "io_callback", "debug_callback", "pallas_call", "custom_call", "ffi_call"])


class Effort:
    def __init__(self, platform: str) -> None:
        self._speed = _CPU if platform == "cpu" else _ACCELERATOR
        self._bodies: dict[int, tuple[float, Any]] = {}

    def of_body(self, jaxpr: Any) -> float:
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._bodies:  # the body is kept alive, so that its id is not reused
            self._bodies[id(body)] = sum(map(self.of_equation, body.eqns)), body
        return self._bodies[id(body)][0]

    def of_equation(self, eqn: Any) -> float:
        name, params = eqn.primitive.name, eqn.params
        if name in _OPAQUE:
            return self._speed.between_looks
        inner = [self.of_body(jaxpr) for jaxpr in compat.all_jaxprs_in_params(params)]
        if is_scan(eqn):
            length = Scan.of(eqn).length
            return sum(inner) * (length if isinstance(length, int) else _DYNAMIC)
        if name == "while":
            return max(sum(inner) * _DYNAMIC, self._speed.equation)
        if inner:
            return max(inner) if name == "cond" else sum(inner)
        size = sum(_bytes(var.aval) for var in eqn.outvars) * self._speed.byte
        return self._speed.equation + size + _products(eqn) * self._speed.product

    def is_worth_following(self, eqn: Any, outermost: bool) -> bool:
        """Whether a loop takes, or may take, long enough. An outermost loop without a length may always."""
        if outermost:
            return eqn.primitive.name == "while" or self.of_equation(eqn) >= _SHORT
        return self.of_equation(eqn) >= self._speed.between_looks

    def chunk(self, loop: Scan, outermost: bool) -> int:
        """How many iterations of a scan come between two looks."""
        length, step = loop.length, self.of_body(loop.jaxpr) or self._speed.equation
        if not isinstance(length, int):
            return 1
        wanted = min(math.ceil(self._speed.between_looks / step), length)
        return _near_divisor(length, min(wanted, math.ceil(length / _PLACES)) if outermost else wanted)


def _near_divisor(length: int, wanted: int) -> int:
    """A number near ``wanted`` that divides ``length``; ``wanted`` itself if there is none."""
    if wanted == 1:
        return 1
    above = range(wanted, min(2 * wanted, wanted + _TRIED, length - 1) + 1)
    below = range(wanted, max(wanted // 2, wanted - _TRIED, 1), -1)
    return next((n for n in (*above, *below) if length % n == 0), wanted)


def _bytes(aval: Any) -> int:
    return int(getattr(aval, "size", 0)) * getattr(getattr(aval, "dtype", None), "itemsize", 4)


def _products(eqn: Any) -> int:
    """How many products a contraction sums up."""
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return int(eqn.outvars[0].aval.size) * math.prod(shape[axis] for axis in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel = eqn.invars[1].aval
        return int(eqn.outvars[0].aval.size) * int(kernel.size) // max(kernel.shape[0], 1)
    return 0
