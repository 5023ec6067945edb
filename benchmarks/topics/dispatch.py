"""Calling again and again: nothing is traced or compiled a second time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks.harness import Figure, in_turns


def _marked(x: Any) -> Any:
    y = jnp.tanh(x) * 2.0
    lox.log({"loss": jnp.sum(y), "norm": jnp.max(y)})
    return y - x


def _by_hand(x: Any) -> Any:
    y = jnp.tanh(x) * 2.0
    return y - x, {"loss": jnp.sum(y), "norm": jnp.max(y)}


def figures(quick: bool) -> Iterator[Figure]:
    del quick
    x = jnp.ones(8)
    inside, outside, by_hand = lox.spool(jax.jit(_marked)), jax.jit(lox.spool(_marked)), jax.jit(_by_hand)
    jitted = jax.jit(_marked)
    samples = in_turns(
        {
            "spool(jit(f))(x)": lambda: inside(x),
            "lox.spool(jit(f))(x), wrapped anew": lambda: lox.spool(jitted)(x),
            "jit(spool(f))(x)": lambda: outside(x),
            "hand-written, jitted": lambda: by_hand(x),
        },
        seconds=2,
    )
    for what in ("spool(jit(f))(x)", "lox.spool(jit(f))(x), wrapped anew"):
        yield samples.figure(what, "hand-written, jitted", topic="dispatch", case="repeated call", target=2.0)
    yield samples.figure("jit(spool(f))(x)", "hand-written, jitted", topic="dispatch", case="repeated call")
    eager = lox.spool(_marked)
    samples = in_turns(
        {"spool(f)(x)": lambda: eager(x), "f(x)": lambda: _marked(x), "hand-written": lambda: _by_hand(x)}, seconds=2
    )
    yield samples.figure("spool(f)(x)", "f(x)", topic="dispatch", case="eager", target=1.3)
    yield samples.figure("spool(f)(x)", "hand-written", topic="dispatch", case="eager")
    tapped = lox.tap(jax.jit(_marked), _ignore)
    debugged = jax.jit(_debugged)
    samples = in_turns({"tap(jit(f))(x)": lambda: tapped(x), "jit with debug.callback": lambda: debugged(x)}, seconds=1)
    yield samples.figure("tap(jit(f))(x)", "jit with debug.callback", topic="dispatch", case="repeated call")


def _ignore(logs: Any) -> None:
    del logs


def _debugged(x: Any) -> Any:
    y = jnp.tanh(x) * 2.0
    jax.debug.callback(_ignore, {"loss": jnp.sum(y), "norm": jnp.max(y)})
    return y - x
