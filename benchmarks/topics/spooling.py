"""``spool`` against a scan with one hand-written output for each value."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure, exact, in_turns, memory

QUICK = [("matvec", 1, 10_000), ("matvec", 8, 10_000), ("trivial", 1, 10_000), ("trivial", 8, 10_000)]
FULL = [
    (kind, n, length) for kind in ("matvec", "trivial") for length in (1_000, 10_000, 100_000) for n in (1, 8, 64)
] + [("matvec", 8, 1_000_000), ("trivial", 8, 1_000_000)]


def figures(quick: bool) -> Iterator[Figure]:
    for kind, n, length in QUICK if quick else FULL:
        yield from _against_hand_written(kind, n, length)
    for kind in ("matvec", "trivial"):
        yield _with_steps(kind, 8, 10_000)
    if not quick:
        yield from _large_records()


def _against_hand_written(kind: str, n: int, length: int) -> Iterator[Figure]:
    step, x = programs.STEPS[kind](n)
    spooled, by_hand = lox.spool(programs.marked(step, length)), programs.stacked(step, length)
    ours, theirs, bare = jax.jit(spooled), jax.jit(by_hand), jax.jit(programs.plain(step, length))
    samples = in_turns(
        {"spool": lambda: ours(x), "scan outputs": lambda: theirs(x), "no logging": lambda: bare(x)}, seconds=1.5
    )
    case = f"{kind}, {n} scalars, T={length}"
    target = None if length < 10_000 else 0.4 if (kind, n) == ("matvec", 8) else 1.05
    yield samples.figure("spool", "scan outputs", topic="spool", case=case, target=target, axis=("scalars", n))
    yield exact(
        memory(spooled, x),
        memory(by_hand, x),
        topic="spool",
        what="spool",
        against="scan outputs",
        case=case,
        target=2.1,
    )


def _with_steps(kind: str, n: int, length: int) -> Figure:
    step, x = programs.STEPS[kind](n)
    with_step = jax.jit(lox.spool(programs.marked(step, length, with_step=True)))
    without = jax.jit(lox.spool(programs.marked(step, length)))
    samples = in_turns({"spool with step=": lambda: with_step(x), "spool": lambda: without(x)}, seconds=1.5)
    return samples.figure(
        "spool with step=", "spool", topic="spool", case=f"{kind}, {n} scalars, T={length}", target=1.1
    )


def _large_records() -> Iterator[Figure]:
    """Records of 64 x 64 numbers, which are not worth packing."""
    step, x = programs.matvec(1)
    length = 1000

    def wide(x: programs.Array) -> tuple[programs.Array, list[programs.Array]]:
        x, _ = step(x)
        return x, [jnp.outer(x, x), x]

    spooled, by_hand = lox.spool(programs.marked(wide, length)), programs.stacked(wide, length)
    ours, theirs = jax.jit(spooled), jax.jit(by_hand)
    samples = in_turns({"spool": lambda: ours(x), "scan outputs": lambda: theirs(x)}, seconds=1.5)
    case = f"matvec, records of 64x64 and 64 numbers, T={length}"
    yield samples.figure("spool", "scan outputs", topic="spool", case=case, target=1.05)
    yield exact(
        memory(spooled, x),
        memory(by_hand, x),
        topic="spool",
        what="spool",
        against="scan outputs",
        case=case,
        target=1.1,
    )
