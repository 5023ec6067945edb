"""Many vmapped lanes: one host call for all of them, against one for each."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure
from benchmarks.topics.tapping import by_callback, ignore, until_delivered

# A vmapped debug callback on 1,024 lanes takes its time.
STEPS = {1: 10, 16: 10, 256: 4, 1024: 1}


def figures(quick: bool) -> Iterator[Figure]:
    for lanes in (256,) if quick else (1, 16, 256, 1024):
        yield from _lanes(lanes)


def _lanes(lanes: int) -> Iterator[Figure]:
    step, x = programs.matvec(8)
    steps = STEPS[lanes]
    xs = jnp.broadcast_to(x, (lanes, *x.shape))
    marked = programs.marked(step, steps)
    # All lanes in one call, as a Logger gets them; and a callback that is called for each lane.
    together = lox._host.delivery.Receiver(ignore)
    samples = until_delivered(
        {
            "tap, lanes together": jax.jit(jax.vmap(lox.tap(marked, together))),
            "tap, lane by lane": jax.jit(jax.vmap(lox.tap(marked, ignore))),
            "vmapped jax.debug.callback": jax.jit(jax.vmap(by_callback(step, steps, jax.debug.callback))),
            "no logging": jax.jit(jax.vmap(programs.plain(step, steps))),
        },
        xs,
        seconds=2,
        rounds=5,
        per=steps,
    )
    case = f"{lanes} lanes, 8 scalars"
    target = 200 if lanes == 256 else None
    against = "vmapped jax.debug.callback"
    yield samples.speedup(
        "tap, lanes together", against, topic="lanes", case=case, target=target, axis=("lanes", lanes)
    )
    yield samples.speedup("tap, lane by lane", against, topic="lanes", case=case, axis=("lanes", lanes))
    yield samples.figure("tap, lanes together", "no logging", topic="lanes", case=case, axis=("lanes", lanes))
