"""Lanes: several records in one call."""

import jax
import jax.numpy as jnp

import lox
from tests.core.programs._program import Corpus

corpus = Corpus()


@corpus(
    lambda x: {"v": list(x), "twice": [{"w": 2 * v} for v in x]},
    steps=lambda x: {"epoch": {"v": [4, 4, 4], "twice": [4, 4, 4]}, "lane": {"v": [0, 1, 2], "twice": [0, 1, 2]}},
)
def lanes(x):
    lox.log({"v": x, "twice": {"w": 2 * x}}, lanes=True, epoch=4, lane=jnp.arange(3))
    return x.sum()


@corpus(lambda x: {"v": [i * v for i in range(3) for v in x]})
def lanes_in_a_scan(x):
    def body(total, i):
        lox.log({"v": i * x}, lanes=True)
        return total + x.sum(), None

    return jax.lax.scan(body, 0.0, jnp.arange(3.0))[0]


@corpus(lambda x: {"v": [v for v in x if v > 0]}, bounded=True, batched_control=True)
def lanes_with_a_condition_each(x):
    lox.log({"v": x}, where=x > 0, lanes=True)
    return x.sum()


@corpus(
    lambda x: {"v": [i + v for i in range(4) for v in x if v + i > 1]},
    steps=lambda x: {"step": {"v": [i for i in range(4) for v in x if v + i > 1]}},
    bounded=True,
    batched_control=True,
)
def lanes_with_a_condition_each_in_a_scan(x):
    def body(total, i):
        lox.log({"v": x + i}, where=x + i > 1, lanes=True, step=i)
        return total + x.sum(), None

    return jax.lax.scan(body, 0.0, jnp.arange(4))[0]
