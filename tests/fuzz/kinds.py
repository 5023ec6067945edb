"""What random programs are made of: the kinds of things in a program, so that one can see that all of them occur."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.fuzz.program import (
    CALLS,
    JIT_OPTIONS,
    TANGENT_FORMS,
    TRANSFORMATIONS,
    Block,
    Branch,
    Call,
    Log,
    LogGrad,
    Program,
    Scan,
    Statement,
    While,
    blocks_of,
)

LOOPS = ("scan", "reversed scan", "unrolled scan", "fori", "map", "while", "while of lanes", "mark in a condition")
OTHERS = ("cond", "switch", "log", "where", "explicit", "log_grad", "mark in a rule", "keep_logs")

# Each of them, and each of these transformations inside each other, at any distance; and what is left out by none.
ALL = (
    *(f"call {how}" for how in CALLS),
    *(f"jit: {options}" for options in JIT_OPTIONS),
    *(f"tangents: {form}" for form in TANGENT_FORMS),
    *(f"{inner} in {outer}" for inner in TRANSFORMATIONS for outer in TRANSFORMATIONS),
    "spool in vmap in spool",
    "spool in grad",
    *LOOPS,
    *OTHERS,
)


def kinds_of(program: Program) -> Counter[str]:
    found = Counter(_kinds(program.body, (), program.lane_safe))
    return Counter({kind: found[kind] for kind in ALL if kind in found})


def _kinds(block: Block, around: tuple[str, ...], lane_safe: bool) -> Iterator[str]:
    for statement in block.statements:
        own = list(_own_kinds(statement, lane_safe))
        yield from own
        name = _name(statement)
        for place, outer in enumerate(around):
            yield f"{name} in {outer}"
            yield from (f"{name} in {middle} in {outer}" for middle in set(around[place + 1 :]))
        for body in blocks_of(statement):
            yield from _kinds(body, (*around, name), lane_safe)


def _name(statement: Statement) -> str:
    return statement.how.partition(":")[0] if isinstance(statement, Call) else type(statement).__name__.lower()


def _own_kinds(s: Statement, lane_safe: bool) -> Iterator[str]:
    if isinstance(s, Call):
        options = dict(s.options)
        yield f"call {s.how}"
        yield from (f"{label}: {options[name]}" for name, label in _OPTIONS.items() if name in options)
        yield from ["mark in a rule"] * ("rule" in options) + ["keep_logs"] * ("keep_logs" in options)
    if isinstance(s, Scan):
        yield s.via
        yield from ["reversed scan"] * s.reverse + ["unrolled scan"] * (s.unroll > 1)
    if isinstance(s, While):
        yield "while"
        yield from ["while of lanes"] * (lane_safe and s.limit.data) + ["mark in a condition"] * (s.test is not None)
    if isinstance(s, Branch):
        yield "cond" if len(s.bodies) == 2 else "switch"
    if isinstance(s, Log):
        yield "log"
        yield from ["where"] * (s.where is not None) + ["explicit"] * s.explicit
    if isinstance(s, LogGrad):
        yield "log_grad"


_OPTIONS = {"jit": "jit", "form": "tangents"}
