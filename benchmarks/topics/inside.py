"""``find_nonfinite`` of a transformer's training step, and ``probe`` against marks at the same places."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify

import lox
import lox.loggers
from benchmarks.harness import Figure, in_turns

LAYERS, WIDTH, LENGTH, BATCH, WORDS, HEADS = 4, 128, 64, 8, 256, 4


def figures(quick: bool) -> Iterator[Figure]:
    del quick
    yield from _find_nonfinite()
    yield _probe()
    yield from _progress()


def _find_nonfinite() -> Iterator[Figure]:
    step, arguments = _training_step()
    plain, ours = jax.jit(step), jax.jit(lox.find_nonfinite(step))
    checked = jax.jit(checkify.checkify(step, errors=checkify.nan_checks))
    samples = in_turns(
        {
            "find_nonfinite": lambda: ours(*arguments),
            "plain step": lambda: plain(*arguments),
            "checkify, nan_checks": lambda: checked(*arguments),
        },
        seconds=6.0,
    )
    case = f"transformer, {LAYERS} layers of {WIDTH}, training step"
    yield samples.figure("find_nonfinite", "plain step", topic="inside", case=case, target=1.5)
    yield samples.figure("find_nonfinite", "checkify, nan_checks", topic="inside", case=case, target=0.5)


def _probe() -> Figure:
    def run(mark: bool) -> Any:
        def body(x: Any, i: Any) -> Any:
            x = checkpoint_name(jnp.tanh(matrix @ x), "x")
            if mark:
                lox.log({"x": x}, step=i)
            return x, None

        return lambda x: jax.lax.scan(body, x, jnp.arange(10_000))[0]

    matrix = jax.random.normal(jax.random.key(0), (64, 64)) / 8
    x = jnp.ones(64)
    ours, marked = jax.jit(lox.spool(lox.probe(run(False), names="x"))), jax.jit(lox.spool(run(True)))
    samples = in_turns({"spool(probe(f))": lambda: ours(x), "spool(f)": lambda: marked(x)}, seconds=1.5)
    return samples.figure(
        "spool(probe(f))", "spool(f)", topic="inside", case="a vector of 64, T=10000, the same mark", target=1.05
    )


def _progress() -> Iterator[Figure]:
    """A bar for programs of about a second, with steps of a microsecond, and of a millisecond that is a loop itself."""
    matrix = jax.random.normal(jax.random.key(0), (100, 100)) / 10

    def short(x: Any, i: Any) -> Any:
        return jnp.tanh(matrix @ x + i), x[0]

    def long(x: Any, i: Any) -> Any:
        return jax.lax.scan(short, x, jnp.linspace(i, 1.0, 1_500))[0], x[0]

    for step, length, case in ((short, 1_500_000, "steps of 1 us"), (long, 1_000, "steps of 1 ms")):

        def run(x: Any, step: Any = step, length: int = length) -> Any:
            return jax.lax.scan(step, x, jnp.linspace(0.0, 1.0, length))

        x = jnp.ones(100)
        plain, shown = jax.jit(run), lox.loggers.progress(jax.jit(run), file=io.StringIO(), live=True)
        thunks = {"progress(f)": functools.partial(shown, x), "f": functools.partial(plain, x)}
        samples = in_turns(thunks, seconds=30.0)
        yield samples.figure("progress(f)", "f", topic="inside", case=f"a bar, {case}, T={length}", target=1.01)


def _training_step() -> tuple[Any, Any]:
    def step(parameters: Any, momentum: Any, tokens: Any) -> Any:
        loss, gradients = jax.value_and_grad(_loss)(parameters, tokens)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - 1e-3 * m, parameters, momentum), momentum, loss

    shapes = {
        "words": (WORDS, WIDTH),
        "blocks": {
            "qkv": (LAYERS, WIDTH, 3 * WIDTH),
            "out": (LAYERS, WIDTH, WIDTH),
            "up": (LAYERS, WIDTH, 4 * WIDTH),
            "down": (LAYERS, 4 * WIDTH, WIDTH),
            "scale": (LAYERS, 2, WIDTH),
        },
    }
    key = jax.random.key(0)
    parameters = jax.tree.map(
        lambda shape: 0.05 * jax.random.normal(key, shape), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )
    tokens = jax.random.randint(key, (BATCH, LENGTH), 0, WORDS)
    return step, (parameters, jax.tree.map(jnp.zeros_like, parameters), tokens)


def _loss(parameters: Any, tokens: Any) -> Any:
    x, _ = jax.lax.scan(_block, parameters["words"][tokens], parameters["blocks"])
    logits = jax.nn.log_softmax((x @ parameters["words"].T)[:, :-1])
    return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()


def _block(x: Any, p: Any) -> Any:
    q, k, v = (part.reshape(BATCH, LENGTH, HEADS, -1) for part in jnp.split(_norm(x) * p["scale"][0] @ p["qkv"], 3, -1))
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * (WIDTH // HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
    x = x + jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(_norm(x) * p["scale"][1] @ p["up"]) @ p["down"], None


def _norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
