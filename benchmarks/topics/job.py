"""A realistic job: PPO from 64 seeds at once, logged to TensorBoard while it runs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
import lox.loggers
from benchmarks import ppo
from benchmarks.harness import Figure, in_turns

SEEDS, UPDATES = 64, 2


def marked(training: ppo.Training) -> ppo.Training:
    def body(training: ppo.Training, i: Any) -> Any:
        training, metrics = ppo.update(training)
        lox.log(metrics, step=i)
        return training, None

    return jax.lax.scan(body, training, jnp.arange(UPDATES))[0]


def unlogged(training: ppo.Training) -> ppo.Training:
    return jax.lax.scan(lambda t, _: (ppo.update(t)[0], None), training, None, length=UPDATES)[0]


def outputs(training: ppo.Training) -> Any:
    return jax.lax.scan(lambda t, _: ppo.update(t), training, None, length=UPDATES)


def with_debug_callback(write: Callable[..., None]) -> Callable[..., Any]:
    def run(seed: Any, training: ppo.Training) -> Any:
        def body(training: ppo.Training, i: Any) -> Any:
            training, metrics = ppo.update(training)
            jax.debug.callback(write, seed, i, metrics)
            return training, None

        return jax.lax.scan(body, training, jnp.arange(UPDATES))[0]

    return run


def figures(quick: bool) -> Iterator[Figure]:
    if quick:
        return
    from tensorboardX import SummaryWriter

    with tempfile.TemporaryDirectory() as folder:
        by_hand = [SummaryWriter(f"{folder}/hand/{seed}") for seed in range(SEEDS)]

        def write(seed: Any, step: Any, metrics: dict[str, Any]) -> None:
            for name, value in metrics.items():
                by_hand[int(seed)].add_scalar(name, float(value), int(step))

        with lox.loggers.create("tensorboard", logdir=f"{folder}/lox") as logger:
            variants = _variants(logger, write)
            slow = {name: variants[name] for name in ("debug.callback", "no logging")}
            del variants["debug.callback"]
            samples, beside = in_turns(variants, seconds=60), in_turns(slow, seconds=5, rounds=3)
    case = f"PPO, {SEEDS} seeds, {UPDATES} updates, 9 scalars"
    updates = samples.median("no logging") / UPDATES
    note = f"{updates * 1e3:.0f} ms an update"
    target = {"live to TensorBoard (tap)": 1.03, "TensorBoard at the end (spool)": 1.03}
    for what in ("live to TensorBoard (tap)", "TensorBoard at the end (spool)", "scan outputs", "debug.callback"):
        yield (beside if what == "debug.callback" else samples).figure(
            what, "no logging", topic="job", case=case, target=target.get(what), note=note
        )


def _variants(logger: Any, write: Callable[..., None]) -> dict[str, Callable[[], Any]]:
    keys = jax.random.split(jax.random.key(0), SEEDS)
    start, states, seeds = jax.jit(jax.vmap(ppo.init))(keys), jax.vmap(logger.init)(keys), jnp.arange(SEEDS)
    tapped = jax.jit(jax.vmap(lambda state, t: logger.tap(marked, state)(t)))
    spooled = jax.jit(jax.vmap(lambda state, t: logger.spool(marked, state)(t)))
    called = jax.jit(jax.vmap(with_debug_callback(write)))
    plain, stacked = jax.jit(jax.vmap(unlogged)), jax.jit(jax.vmap(outputs))

    def delivered(fun: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            out = jax.block_until_ready(fun())
            jax.effects_barrier()
            return out

        return run

    return {
        "no logging": delivered(lambda: plain(start)),
        "scan outputs": delivered(lambda: stacked(start)),
        "live to TensorBoard (tap)": delivered(lambda: tapped(states, start)),
        "TensorBoard at the end (spool)": delivered(lambda: spooled(states, start)),
        "debug.callback": delivered(lambda: called(seeds, start)),
    }
