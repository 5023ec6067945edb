"""The programs of the fuzzer: a small language that is run twice, by JAX and by plain Python.

A program is a tree of frozen dataclasses whose ``repr`` can be pasted back as source. Its values are scalars ``f``
(float32, whole numbers below 16), vectors ``v`` of two of them, and counters ``i`` (int32, never negative). All
arithmetic is exact, so that both runs can be compared to the last bit.

Operands are numbers: ``a`` means "the a-th value of that type in scope, modulo how many there are". A program therefore
stays valid whatever statement is taken out of it, which is all that shrinking needs.

A block sees the values of the blocks around it (closures), except in functions with derivative rules of their own. Its
result is the sum of the scalars that it defined: every value is used, and every cotangent flows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

LANES = 2
BOUND = 16
DTYPES = ("float32", "float16", "bfloat16", "int32", "int8", "uint8", "bool", "complex64")


@dataclasses.dataclass(frozen=True)
class Key:
    """A key to log. Everything that must agree between its sites is part of its name."""

    form: str  # "f", "i", "v", "tree", "cast", "number"
    number: int = 0
    axes: tuple[str, ...] = ()
    reduce: Any = None

    def name(self, depth: int) -> str:
        """``depth``: how many vmaps are around it inside the transformation; they change the shape of a record."""
        how = (
            ""
            if self.reduce is None
            else ":" + (self.reduce if isinstance(self.reduce, str) else "+".join(self.reduce))
        )
        return f"{self.form}{self.number}/{''.join(axis[0] for axis in self.axes)}{how}@{depth}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A condition or a small number, from a scalar (``data``: it differs between lanes) or from a counter."""

    data: bool
    index: int


@dataclasses.dataclass(frozen=True)
class Arith:
    """A new scalar. ``op``: add, sub, mul, const (the number ``b``)."""

    op: str
    a: int
    b: int


@dataclasses.dataclass(frozen=True)
class Vector:
    """``op``: stack (two scalars), scale (a vector by a scalar), total (a new scalar)."""

    op: str
    a: int
    b: int


@dataclasses.dataclass(frozen=True)
class Counter:
    """A new counter. ``op``: add (modulo 5), const."""

    op: str
    a: int
    b: int


@dataclasses.dataclass(frozen=True)
class Log:
    keys: tuple[Key, ...]
    a: int = 0
    dtype: str = "float32"  # of "cast" keys
    where: Choice | None = None
    tags: tuple[str, ...] = ()
    explicit: bool = False
    prefix: str = ""
    site: int = 0  # which source line


@dataclasses.dataclass(frozen=True)
class LogGrad:
    key: Key
    a: int = 0
    where: Choice | None = None


@dataclasses.dataclass(frozen=True)
class Call:
    """One run of a block inside ``how``: see ``CALLS``."""

    how: str
    a: int
    body: Block
    options: tuple[tuple[str, Any], ...] = ()


CALLS = (
    "jit",
    "checkpoint",
    "checkpoint:everything_saveable",
    "checkpoint:dots_saveable",
    "custom_jvp",
    "custom_vjp",
    "grad",
    "value_and_grad",
    "vjp",
    "jvp",
    "linearize",
    "vmap",
    "spool",
    "tap",
    "nolog",
    "passive",  # on a value that is not differentiated
    "x64",  # with 64 bits: numbers of Python are wider there
)
# Options of calls. "jit": what a function was jitted with. "form": how a custom_jvp rule uses its tangents. "rule": the key
# that a derivative rule records under.
JIT_OPTIONS = ("inline", "keep_unused", "donated", "placed")
TANGENT_FORMS = ("plain", "zeros", "symbolic", "own", "marked", "linear")
# What is recorded of tangents, and by functions that a rule calls on tangents.
TANGENT = Key("f", 9)
TRANSFORMATIONS = ("spool", "tap", "nolog")
BACKWARD, FORWARD = ("grad", "value_and_grad", "vjp"), ("jvp", "linearize")


@dataclasses.dataclass(frozen=True)
class Scan:
    """A loop of ``length`` iterations. ``via``: scan, fori, map."""

    via: str
    length: int
    a: int
    body: Block
    reverse: bool = False
    unroll: int = 1


@dataclasses.dataclass(frozen=True)
class While:
    limit: Choice
    a: int
    body: Block
    test: Log | None = None  # logged by the condition


@dataclasses.dataclass(frozen=True)
class Branch:
    """cond with two bodies, switch with more."""

    choice: Choice
    a: int
    bodies: tuple[Block, ...]


def marks_rules(s: Any) -> bool:
    """Whether something is recorded by derivatives alone."""
    return isinstance(s, LogGrad) or (isinstance(s, Call) and "rule" in dict(s.options))


def marks_tangents(s: Any) -> bool:
    return isinstance(s, Call) and dict(s.options).get("form") in TANGENT_FORMS[4:]


def has_own_rule(s: Any) -> bool:
    return isinstance(s, Call) and dict(s.options).get("form") in TANGENT_FORMS[3:]


Statement = Arith | Vector | Counter | Log | LogGrad | Call | Scan | While | Branch


@dataclasses.dataclass(frozen=True)
class Block:
    statements: tuple[Statement, ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """``lane_safe``: no branch and no ``where`` depends on data, so that ``spool(vmap(f))`` can know the lanes. Lengths of loops
    may: their predicate stays in the program."""

    body: Block
    lane_safe: bool = False

    def statements(self) -> Iterator[Statement]:
        yield from walk(self.body)

    def has(self, *kinds: Any) -> bool:
        """Whether a statement of one of these types, or a call of one of these names, is in it."""
        return any(
            (isinstance(kind, str) and isinstance(s, Call) and s.how.split(":")[0] == kind)
            or (not isinstance(kind, str) and isinstance(s, kind))
            for s in self.statements()
            for kind in kinds
        )

    @property
    def reversible(self) -> bool:
        """Whether it can be differentiated backwards: no while loop on values that are differentiated."""
        return not any(isinstance(statement, While) for statement in walk(self.body, passive=False))


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    if isinstance(statement, Branch):
        return statement.bodies
    return (statement.body,) if isinstance(statement, (Call, Scan, While)) else ()


def walk(block: Block, passive: bool = True) -> Iterator[Statement]:
    """All statements; without ``passive`` not those on values that are not differentiated."""
    for statement in block.statements:
        yield statement
        if passive or getattr(statement, "how", "") != "passive":
            for inner in blocks_of(statement):
                yield from walk(inner, passive)


@dataclasses.dataclass
class Scope:
    """The values in sight. ``own`` is where the block's own scalars begin."""

    f: list[Any]
    v: list[Any]
    i: list[Any]
    # What is differentiated, if anything is: added to the operands of rules, so that they are active.
    active: Any
    depth: int = 0
    own: int = 0

    def inner(self, *scalars: Any, **changed: Any) -> Scope:
        scope = Scope([*self.f, *scalars], list(self.v), list(self.i), self.active, self.depth, len(self.f))
        return dataclasses.replace(scope, **changed)

    def scalar(self, index: int) -> Any:
        return self.f[index % len(self.f)]

    def vector(self, index: int) -> Any:
        return self.v[index % len(self.v)]

    def counter(self, index: int) -> Any:
        return self.i[index % len(self.i)]


class Walker:
    """Runs a block, statement by statement: each kind of run is a subclass."""

    def run(self, block: Block, scope: Scope) -> Any:
        for statement in block.statements:
            getattr(self, "on_" + type(statement).__name__.lower())(statement, scope)
        return self.total(scope.f[scope.own :])

    def total(self, scalars: list[Any]) -> Any:
        raise NotImplementedError
