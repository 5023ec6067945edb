"""Reverse-mode differentiation of plain Python numbers, for the oracle.

Tapes nest: the backward pass of an inner tape is made of operations that an outer tape records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


class Box:
    """A number that a tape watches."""

    __slots__ = ("tape", "value")

    def __init__(self, value: Any, tape: Tape) -> None:
        self.value = value
        self.tape = tape


class Tape:
    def __init__(self, level: int) -> None:
        self.level = level
        # (result, [(operand, pullback)]) in the order of execution
        self.nodes: list[tuple[Box, list[tuple[Box, Callable[[Any], Any]]]]] = []

    def node(self, value: Any, parents: list[tuple[Box, Callable[[Any], Any]]]) -> Box:
        box = Box(value, self)
        self.nodes.append((box, parents))
        return box


def number(x: Any) -> float:
    """The plain number inside."""
    while isinstance(x, Box):
        x = x.value
    return x


def innermost(*args: Any) -> Tape | None:
    tapes = [x.tape for x in args if isinstance(x, Box)]
    return max(tapes, key=lambda tape: tape.level) if tapes else None


def below(x: Any, tape: Tape) -> Any:
    """``x`` without the box of this tape."""
    return x.value if isinstance(x, Box) and x.tape is tape else x


def _operation(plain: Callable[..., Any], pullbacks: Callable[..., list[Callable[[Any], Any]]]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        tape = innermost(*args)
        if tape is None:
            return plain(*args)
        inner = [below(x, tape) for x in args]
        rules = pullbacks(*inner)
        parents = [(x, rule) for x, rule in zip(args, rules, strict=True) if isinstance(x, Box) and x.tape is tape]
        return tape.node(apply(*inner), parents)

    return apply


add = _operation(lambda a, b: a + b, lambda a, b: [lambda ct: ct, lambda ct: ct])
sub = _operation(lambda a, b: a - b, lambda a, b: [lambda ct: ct, lambda ct: mul(ct, -1.0)])
mul = _operation(lambda a, b: a * b, lambda a, b: [lambda ct: mul(ct, b), lambda ct: mul(ct, a)])


def remainder(modulus: int) -> Callable[[Any], Any]:
    """The remainder with the sign of ``x``; its derivative is 1 everywhere."""
    return _operation(lambda x: math.fmod(x, modulus), lambda x: [lambda ct: ct])


def custom(x: Any, forward: Callable[[Any], Any], pullback: Callable[[Any], Any]) -> Any:
    """``forward(x)`` with a derivative rule of its own, for the innermost tape that watches ``x``."""
    tape = innermost(x)
    if tape is None:
        return forward(x)
    return tape.node(forward(below(x, tape)), [(x, pullback)])


class Differentiation:
    """Runs functions of one number with a tape."""

    def __init__(self) -> None:
        self.level = 0

    def __call__(self, function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
        """The value of ``function`` at ``x``, and its derivative."""
        self.level += 1
        tape = Tape(self.level)
        watched = Box(x, tape)
        y = function(watched)
        self.level -= 1
        if not (isinstance(y, Box) and y.tape is tape):
            return y, 0.0
        cotangents: dict[int, Any] = {id(y): 1.0}
        for result, parents in reversed(tape.nodes):
            cotangent = cotangents.get(id(result))
            if cotangent is None:
                continue
            for parent, pullback in parents:
                part = pullback(cotangent)
                known = cotangents.get(id(parent))
                cotangents[id(parent)] = part if known is None else add(known, part)
        return y.value, cotangents.get(id(watched), 0.0)
