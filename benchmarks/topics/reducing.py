"""``reduce``, ``capacity`` and ``interval`` against accumulators and buffers written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure, exact, in_turns, memory

LENGTH = 10_000


def figures(quick: bool) -> Iterator[Figure]:
    for kind, n, target in (("matvec", 1, 1.1), ("matvec", 8, 0.5), ("trivial", 1, 1.1), ("trivial", 8, 1.1)):
        yield from _mean(kind, n, target, quick)
    for n in (1, 8):
        yield _capacity(n)
        yield _interval(n)
    if not quick:
        yield from _memory()


def _mean(kind: str, n: int, target: float, quick: bool) -> Iterator[Figure]:
    step, x = programs.STEPS[kind](n)
    ours = jax.jit(lox.spool(programs.marked(step, LENGTH), reduce="mean"))
    by_hand = jax.jit(programs.running_mean(step, LENGTH))
    after = jax.jit(_stack_then_reduce(programs.stacked(step, LENGTH)))
    case = f"{kind}, {n} scalars, T={LENGTH}"
    thunks = {"spool(reduce='mean')": lambda: ours(x), "running mean": lambda: by_hand(x)}
    if not quick:
        thunks["stack, then reduce"] = lambda: after(x)
    samples = in_turns(thunks, seconds=1.5)
    yield samples.figure("spool(reduce='mean')", "running mean", topic="reduce", case=case, target=target)
    if not quick:
        yield samples.figure("spool(reduce='mean')", "stack, then reduce", topic="reduce", case=case)


def _stack_then_reduce(run: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Any) -> Any:
        out, (values, _) = run(x)
        return out, [jnp.mean(value) for value in values]

    return reduced


def _capacity(n: int) -> Figure:
    step, x = programs.matvec(n)
    limit = jnp.int32(LENGTH)
    ours = jax.jit(lox.spool(programs.dynamic(step, LENGTH), capacity=128))
    by_hand = jax.jit(programs.ring(step, LENGTH, 128))
    samples = in_turns(
        {"spool(capacity=128)": lambda: ours(x, limit), "ring buffer": lambda: by_hand(x, limit)}, seconds=1.5
    )
    return samples.figure(
        "spool(capacity=128)", "ring buffer", topic="reduce", case=f"matvec, {n} scalars, {LENGTH} steps", target=1.1
    )


def _interval(n: int) -> Figure:
    step, x = programs.matvec(n)
    ours = jax.jit(lox.spool(programs.marked(step, LENGTH), interval=100))
    by_hand = jax.jit(_stack_then_thin(programs.stacked(step, LENGTH)))
    samples = in_turns({"spool(interval=100)": lambda: ours(x), "stack, then [::100]": lambda: by_hand(x)}, seconds=1.5)
    return samples.figure(
        "spool(interval=100)", "stack, then [::100]", topic="reduce", case=f"matvec, {n} scalars, T={LENGTH}"
    )


def _stack_then_thin(run: Callable[..., Any]) -> Callable[..., Any]:
    def thinned(x: Any) -> Any:
        out, (values, _) = run(x)
        return out, [value[::100] for value in values]

    return thinned


def _memory() -> Iterator[Figure]:
    for n in (1, 8):
        for length in (1_000, 100_000, 1_000_000):
            step, x = programs.matvec(n)
            ours = memory(lox.spool(programs.marked(step, length), reduce="mean"), x)
            by_hand = memory(programs.running_mean(step, length), x)
            stack = memory(_stack_then_reduce(programs.stacked(step, length)), x)
            case = f"matvec, {n} scalars, T={length}"
            common = {"topic": "reduce", "what": "spool(reduce='mean')", "case": case}
            yield exact(ours - by_hand, 1024, against="a KB more than a running mean", target=1.0, **common)
            yield exact(ours, stack, against="stack, then reduce", axis=("T", length), **common)
