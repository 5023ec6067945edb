"""``oryx.core.harvest`` against scan outputs written by hand, under a JAX that oryx can be imported with.

Run by ``topics/peers.py`` in an environment of its own, without lox; prints the times as JSON.
"""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
from oryx.core.interpreters import harvest

LENGTH, ROUNDS, SIZE = 10_000, 15, 64
WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5


def step(x, n):
    x = jnp.tanh(jnp.asarray(WEIGHTS) @ x)
    return x, [x[7 * i % SIZE] for i in range(n)]


def harvested(n):
    def body(x, _):
        x, values = step(x, n)
        for i, value in enumerate(values):
            harvest.sow(value, tag="metrics", name=f"k{i}", mode="append")
        return x, None

    reaped = harvest.harvest(lambda x: jax.lax.scan(body, x, None, length=LENGTH)[0], tag="metrics")
    return jax.jit(lambda x: reaped({}, x))


def by_hand(n):
    return jax.jit(lambda x: jax.lax.scan(lambda c, _: step(c, n), x, None, length=LENGTH))


def timed(fun, x):
    start = time.perf_counter()
    jax.block_until_ready(fun(x))
    return time.perf_counter() - start


def main():
    x, found = jnp.ones(SIZE), {}
    for n in (1, 8):
        programs = {"harvest": harvested(n), "scan outputs": by_hand(n)}
        times = {name: [] for name in programs}
        for fun in programs.values():
            timed(fun, x)
        for _ in range(ROUNDS):
            for name, fun in programs.items():
                times[name].append(timed(fun, x))
        found[f"matvec, {n} scalars, T={LENGTH}"] = times
    print(json.dumps(found))


if __name__ == "__main__":
    main()
