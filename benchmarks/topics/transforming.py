"""Trace, transformation and compile time, as log calls, equations and nesting grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks.harness import Figure, Samples, exact, in_turns

Make = Callable[[], Callable[[Any], Any]]


def log_calls(n: int) -> Make:
    def make() -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            for i in range(n):
                x = jnp.sin(x) * 1.01
                lox.log({f"k{i}": x})
            return x

        return f

    return make


def log_calls_by_hand(n: int) -> Make:
    def make() -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            logs = {}
            for i in range(n):
                x = jnp.sin(x) * 1.01
                logs[f"k{i}"] = x
            return x, logs

        return f

    return make


def equations(n: int) -> Make:
    """Much program, one mark."""

    def make() -> Callable[[Any], Any]:
        def f(x: Any) -> Any:
            for _ in range(n):
                x = jnp.sin(x) * 1.01
            lox.log({"x": x})
            return x

        return f

    return make


def nested(depth: int, by_hand: bool = False, operations: int = 0) -> Make:
    """Scans in scans, with a mark at each level, and nothing else or so many operations."""

    def level(d: int) -> Callable[[Any], Any]:
        inner = level(d - 1) if d else lambda x: (jnp.sin(x), {}) if by_hand else jnp.sin(x)

        def run(x: Any) -> Any:
            def body(c: Any, _: None) -> Any:
                if by_hand:
                    c, logs = inner(c)
                    return c, {**logs, f"level{d}": c}
                c = inner(c)
                for _ in range(operations):
                    c = jnp.tanh(c * 1.01)
                lox.log({f"level{d}": c})
                return c, None

            out, logs = jax.lax.scan(body, x, None, length=2)
            if by_hand:  # flattened, as spool returns them
                return out, {k: v.reshape(-1, *v.shape[2:]) if k != f"level{d}" else v for k, v in logs.items()}
            return out

        return run

    return lambda: level(depth - 1)


X = jnp.float32(1.0)


def figures(quick: bool) -> Iterator[Figure]:
    for case, make, target in (
        ("200 log calls", log_calls(200), 2.1),
        ("five nested scans", nested(5), None),  # with nothing in them there is nothing to compare with
        ("five nested scans of 20 operations each", nested(5, operations=10), 2.5),
    ):
        yield _trace(make).figure("make_jaxpr(spool(f))", "make_jaxpr(f)", topic="transform", case=case, target=target)
    if quick:
        return
    by_hand = in_turns(
        {"make_jaxpr(by hand)": _tracing(nested(5, by_hand=True)), "make_jaxpr(f)": _tracing(nested(5))}, wait=False
    )
    yield by_hand.figure("make_jaxpr(by hand)", "make_jaxpr(f)", topic="transform", case="five nested scans")
    for case, make in {"200 log calls": log_calls(200), "five nested scans": nested(5)}.items():
        samples = in_turns({"make_jaxpr(tap(f))": _tracing(make, _tap), "make_jaxpr(f)": _tracing(make)}, wait=False)
        yield samples.figure("make_jaxpr(tap(f))", "make_jaxpr(f)", topic="transform", case=case)
    yield from _growth("log calls", log_calls, (50, 100, 200, 400))
    yield from _growth("equations", equations, (100, 200, 400, 800))
    yield from _growth("nested scans", nested, (1, 2, 4, 8))
    for case, ours, theirs in (
        ("50 log calls", log_calls(50), log_calls_by_hand(50)),
        ("three nested scans", nested(3), nested(3, by_hand=True)),
    ):
        yield _compile(case, ours, theirs)


def _tap(f: Any) -> Any:
    return lox.tap(f, print)


def _tracing(make: Make, transform: Callable[[Any], Any] = lambda f: f) -> Callable[[], Any]:
    """A new function each time: nothing is found in a cache."""
    return lambda: jax.make_jaxpr(transform(make()))(X)


def _trace(make: Make) -> Samples:
    return in_turns(
        {"make_jaxpr(spool(f))": _tracing(make, lox.spool), "make_jaxpr(f)": _tracing(make)}, seconds=2, wait=False
    )


def _growth(what: str, program: Callable[[int], Make], sizes: tuple[int, ...]) -> Iterator[Figure]:
    """The cost of transforming, at each size, and how it grows from the smallest to the largest."""
    taken = []
    for size in sizes:
        samples = _trace(program(size))
        taken.append(samples.median("make_jaxpr(spool(f))"))
        yield samples.figure(
            "make_jaxpr(spool(f))", "make_jaxpr(f)", topic="transform", case=f"{size} {what}", axis=(what, size)
        )
    yield exact(
        taken[-1] / taken[-2],
        sizes[-1] / sizes[-2],
        topic="transform",
        what=f"make_jaxpr(spool(f)), {sizes[-2]} to {sizes[-1]} {what}",
        against="linear growth",
        case="time",
        target=1.15,
        unit="growth",
    )


def _compile(case: str, ours: Make, theirs: Make) -> Figure:
    def compiling(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: jax.jit(make()).lower(X).compile()

    samples = in_turns(
        {"lower and compile spool(f)": compiling(lambda: lox.spool(ours())), "hand-written": compiling(theirs)},
        seconds=4,
        wait=False,
    )
    return samples.figure("lower and compile spool(f)", "hand-written", topic="transform", case=case, target=1.1)
