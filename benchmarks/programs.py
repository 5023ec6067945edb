"""The programs that are measured: a scan whose step does some work and yields n scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox

Array = Any
Step = Callable[[Array], tuple[Array, list[Array]]]

SIZE = 64
_WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5


def matvec(n: int) -> tuple[Step, Array]:
    """About a microsecond of work."""
    weights = jnp.asarray(_WEIGHTS)

    def step(x: Array) -> tuple[Array, list[Array]]:
        x = jnp.tanh(weights @ x)
        return x, [x[7 * i % SIZE] for i in range(n)]

    return step, jnp.ones(SIZE)


def trivial(n: int) -> tuple[Step, Array]:
    """A few nanoseconds of work."""

    def step(x: Array) -> tuple[Array, list[Array]]:
        x = x * 0.999 + 1.0
        return x, [x * (i + 1.0) for i in range(n)]

    return step, jnp.float32(0)


STEPS: dict[str, Callable[[int], tuple[Step, Array]]] = {"matvec": matvec, "trivial": trivial}


def plain(step: Step, length: int) -> Callable[[Array], Array]:
    """No logging."""

    def run(x: Array) -> Array:
        return jax.lax.scan(lambda c, _: (step(c)[0], None), x, None, length=length)[0]

    return run


def marked(step: Step, length: int, *, with_step: bool = False, **options: Any) -> Callable[[Array], Array]:
    """One ``lox.log`` call in each step."""

    def body(x: Array, i: Array) -> tuple[Array, None]:
        x, values = step(x)
        steps = {"step": i} if with_step else {}
        lox.log({f"k{n}": value for n, value in enumerate(values)}, **steps, **options)
        return x, None

    def run(x: Array) -> Array:
        xs = jnp.arange(length) if with_step else None
        return jax.lax.scan(body, x, xs, length=length)[0]

    return run


def stacked(step: Step, length: int, *, with_step: bool = False) -> Callable[[Array], Any]:
    """By hand: one scan output per value."""

    def body(x: Array, i: Array) -> tuple[Array, Any]:
        x, values = step(x)
        return x, (values, i)

    def run(x: Array) -> Any:
        return jax.lax.scan(body, x, jnp.arange(length) if with_step else None, length=length)

    return run


def running_mean(step: Step, length: int) -> Callable[[Array], Any]:
    """By hand: one carried mean per value, and what it lost by rounding: without that, it stalls in a long loop."""

    def body(carry: Any, _: None) -> tuple[Any, None]:
        x, count, means, lost = carry
        x, values = step(x)
        count = count + 1
        steps = [(value - mean) / count - rest for value, mean, rest in zip(values, means, lost, strict=True)]
        after = [mean + by for mean, by in zip(means, steps, strict=True)]
        lost = [(new - mean) - by for new, mean, by in zip(after, means, steps, strict=True)]
        return (x, count, after, lost), None

    def run(x: Array) -> Any:
        zeros = [jnp.float32(0)] * len(jax.eval_shape(step, x)[1])
        x, _, means, _ = jax.lax.scan(body, (x, jnp.float32(0), zeros, zeros), None, length=length)[0]
        return x, means

    return run


def ring(step: Step, length: int, capacity: int) -> Callable[[Array], Any]:
    """By hand: a loop with the last ``capacity`` values of each in a ring buffer."""

    def body(i: Array, carry: Any) -> Any:
        x, rings = carry
        x, values = step(x)
        place = i % capacity
        return x, [ring.at[place].set(value) for ring, value in zip(rings, values, strict=True)]

    def run(x: Array, limit: Array) -> Any:
        rings = [jnp.zeros(capacity)] * len(jax.eval_shape(step, x)[1])
        x, rings = jax.lax.fori_loop(0, jnp.minimum(limit, length), body, (x, rings))
        return x, [jnp.roll(ring, -(limit % capacity)) for ring in rings]

    return run


def dynamic(step: Step, length: int) -> Callable[[Array, Array], Any]:
    """The loop of ``ring``, with marks."""

    def body(i: Array, x: Array) -> Array:
        x, values = step(x)
        lox.log({f"k{n}": value for n, value in enumerate(values)})
        return x

    def run(x: Array, limit: Array) -> Any:
        return jax.lax.fori_loop(0, jnp.minimum(limit, length), body, x)

    return run
