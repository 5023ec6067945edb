"""``tap`` against the callbacks that JAX has, and what is built on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure, Samples, in_turns

LENGTH = 10_000
# Ten thousand debug callbacks take seconds: they are measured on fewer steps, and compared per step.
FEW = {1: 500, 8: 500, 64: 50}


def ignore(*logs: Any) -> None:
    del logs


def figures(quick: bool) -> Iterator[Figure]:
    for n in (8,) if quick else (1, 8, 64):
        yield from _scalars(n, quick)
    if not quick:
        yield from _interval()


def _scalars(n: int, quick: bool) -> Iterator[Figure]:
    step, x = programs.matvec(n)
    marked = programs.marked(step, LENGTH)
    taps = {"tap": {}, "tap(batch=128)": {"batch": 128}}
    programs_ = {name: jax.jit(lox.tap(marked, ignore, **options)) for name, options in taps.items()}
    programs_["no logging"] = jax.jit(programs.plain(step, LENGTH))
    samples = until_delivered(programs_, x, seconds=2, per=LENGTH)
    case = f"matvec, {n} scalars, T={LENGTH}"
    tap_target, batch_target = (20, 1.6) if n == 8 else (None, None)
    yield samples.figure("tap", "no logging", topic="tap", case=case, target=tap_target, axis=("scalars", n))
    yield samples.figure(
        "tap(batch=128)", "no logging", topic="tap", case=case, target=batch_target, axis=("scalars", n)
    )
    few = programs.marked(step, FEW[n])
    programs_ = {name: jax.jit(lox.tap(few, ignore, **options)) for name, options in taps.items()}
    programs_["jax.debug.callback"] = jax.jit(by_callback(step, FEW[n], jax.debug.callback))
    if not quick:
        programs_["io_callback"] = jax.jit(by_callback(step, FEW[n], _io_callback))
    samples = until_delivered(programs_, x, seconds=3, rounds=5, per=FEW[n])
    case = f"matvec, {n} scalars, T={FEW[n]}"
    target = (
        {"tap": 0.1, "tap(batch=128)": 0.01} if n == 8 else {"tap": 0.1 if n < 64 else None, "tap(batch=128)": None}
    )
    for against in list(programs_)[2:]:
        for what in taps:
            yield samples.figure(what, against, topic="tap", case=case, target=target[what], axis=("scalars", n))


def by_callback(step: programs.Step, length: int, callback: Callable[..., Any]) -> Callable[[Any], Any]:
    def body(x: Any, _: None) -> Any:
        x, values = step(x)
        callback(ignore, {f"k{i}": value for i, value in enumerate(values)})
        return x, None

    return lambda x: jax.lax.scan(body, x, None, length=length)[0]


def _io_callback(fun: Callable[..., Any], logs: Any) -> None:
    jax.experimental.io_callback(fun, None, logs)


def until_delivered(programs_: dict[str, Any], x: Any, seconds: float, rounds: int = 9, per: int = 1) -> Samples:
    """The programs in turns, each until all of its records have arrived; times are divided by ``per``."""

    def thunk(program: Any) -> Callable[[], Any]:
        def run() -> Any:
            out = jax.block_until_ready(program(x))
            jax.effects_barrier()
            return out

        return run

    return in_turns(
        {name: thunk(program) for name, program in programs_.items()},
        seconds=seconds,
        rounds=rounds,
        per=dict.fromkeys(programs_, per),
    )


def _interval() -> Iterator[Figure]:
    step, x = programs.matvec(8)
    marked = programs.marked(step, LENGTH)

    def every_hundredth(x: Any, i: Any) -> Any:
        x, values = step(x)
        logs = {f"k{k}": value for k, value in enumerate(values)}
        jax.lax.cond(i % 100 == 0, lambda: jax.debug.callback(ignore, logs), lambda: None)
        return x, None

    samples = until_delivered(
        {
            "tap(interval=100)": jax.jit(lox.tap(marked, ignore, interval=100)),
            "cond + debug.callback": jax.jit(lambda x: jax.lax.scan(every_hundredth, x, jnp.arange(LENGTH))[0]),
            "no logging": jax.jit(programs.plain(step, LENGTH)),
        },
        x,
        seconds=4,
    )
    for against in ("cond + debug.callback", "no logging"):
        yield samples.figure("tap(interval=100)", against, topic="tap", case=f"matvec, 8 scalars, T={LENGTH}")
