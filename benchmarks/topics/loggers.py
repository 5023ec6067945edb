"""A logger around a function: what the training loop pays."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
import lox.loggers
from benchmarks import programs
from benchmarks.harness import Figure, Samples, in_turns

LANES = 256


def figures(quick: bool) -> Iterator[Figure]:
    yield _training_step()
    if not quick:
        yield _lanes()
        yield _call_during_a_long_step("jit", jax.jit)
        yield _call_during_a_long_step("no jit", lambda step: step)


def _training_step() -> Figure:
    """A step of about ten milliseconds that logs eight scalars."""
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32) / 512**0.5)

    def step(x: Any) -> Any:
        for _ in range(10):
            x = jnp.tanh(weights @ x)
        lox.log({f"k{i}": x[i, i] for i in range(8)}, step=0)
        return x

    x = jnp.ones((512, 256))
    with tempfile.TemporaryDirectory() as folder, lox.loggers.SaveLogger(folder) as logger:
        logged = logger.spool(jax.jit(step), logger.init(jax.random.key(0)))
        plain = jax.jit(step)
        samples = in_turns({"logger.spool": lambda: logged(x), "no logging": lambda: plain(x)}, seconds=4)
    took = samples.median("no logging") * 1e3
    return samples.figure(
        "logger.spool",
        "no logging",
        topic="logger",
        case="training step, SaveLogger",
        target=1.05,
        note=f"step of {took:.0f} ms",
    )


def _lanes() -> Figure:
    """One run for each of 256 lanes, against one callback by hand for all of them."""
    step, x = programs.matvec(8)
    xs = jnp.broadcast_to(x, (LANES, *x.shape))
    kept: list[list[Any]] = [[] for _ in range(LANES)]

    def marked(x: Any) -> Any:
        x, values = step(x)
        lox.log({f"k{i}": value for i, value in enumerate(values)})
        return x

    def by_hand(xs: Any) -> Any:
        xs, values = jax.vmap(step)(xs)
        jax.debug.callback(keep, {f"k{i}": value for i, value in enumerate(values)})
        return xs

    def keep(logs: dict[str, Any]) -> None:
        columns = {key: np.asarray(value) for key, value in logs.items()}
        for lane in range(LANES):
            kept[lane].append({key: column[lane] for key, column in columns.items()})

    def delivered(fun: Any, flush: Any) -> Any:
        def run() -> Any:
            out = jax.block_until_ready(fun(xs))
            jax.effects_barrier()
            flush()
            return out

        return run

    with lox.loggers.create("memory") as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), LANES))
        ours = jax.jit(jax.vmap(lambda state, x: logger.tap(marked, state)(x)))
        samples = in_turns(
            {
                "memory logger": delivered(lambda xs: ours(states, xs), logger.flush),
                "one debug.callback": delivered(jax.jit(by_hand), lambda: None),
            },
            seconds=3,
        )
    return samples.figure(
        "memory logger", "one debug.callback", topic="logger", case=f"{LANES} runs at once", target=1.5
    )


def _call_during_a_long_step(case: str, wrap: Any) -> Figure:
    """Until the call returns, not until the device is done: a loop that prepares the next batch wants it back at once."""
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32) / 512**0.5)

    @jax.jit
    def multiplied(x: Any, products: Any) -> Any:
        return jax.lax.fori_loop(0, products, lambda _, x: jnp.tanh(weights @ x), x)

    def step(x: Any, products: Any) -> Any:
        x = multiplied(x, products)
        lox.log({f"k{i}": x[i, i] for i in range(8)}, step=0)
        return x

    def took(fun: Any, *args: Any) -> tuple[float, float]:
        """Seconds until the call returned, and until its result was there."""
        begun = time.perf_counter()
        out = fun(*args)
        returned = time.perf_counter() - begun
        jax.block_until_ready(out)
        return returned, time.perf_counter() - begun

    step, x = wrap(step), jnp.ones((512, 256))
    with lox.loggers.create("memory") as logger:
        calls = {
            "logger.spool": logger.spool(step, logger.init(jax.random.key(0))),
            "lox.spool": lox.spool(step),
        }
        for call in calls.values():
            took(call, x, 100)
        _, hundred = took(calls["lox.spool"], x, 100)
        second = int(100 / hundred)
        rounds = [{name: took(call, x, second)[0] for name, call in calls.items()} for _ in range(9)]
    samples = Samples({name: [each[name] for each in rounds] for name in calls})
    return samples.figure(
        "logger.spool", "lox.spool", topic="logger", case=f"until the call returns, step of 1 s, {case}", target=1.2
    )
