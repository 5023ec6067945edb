"""For each backport a program that is wrong without it: ``WITNESSES[name]() -> (found, expected)``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax.interpreters import batching, mlir

import lox


def _records(fun: Callable[..., Any], *args: Any) -> int:
    """How many records of the key "k" a program has; a second one would be a record too many."""
    logs = jax.eval_shape(lox.spool(fun), *args)[1]
    return int(logs["k"].shape[0]) if "k" in logs.stacked else len(logs)  # one record has no axis


def _loop(inside: Callable[[Any, Any], Any], length: int = 3) -> Callable[[Any, Any], Any]:
    """``inside(c, a)`` in a scan, where ``a`` is the same in every iteration."""
    return lambda x, a: lax.scan(lambda c, _: (jnp.sin(c) * inside(c, a), None), x, None, length=length)[0]


def _log(a: Any) -> Any:
    lox.log({"k": a})
    return a


def scan() -> tuple[Any, Any]:
    return _records(jax.grad(_loop(lambda c, a: _log(a))), 1.0, 2.0), 3


def scan_in_checkpoint() -> tuple[Any, Any]:
    return _records(jax.grad(jax.checkpoint(_loop(lambda c, a: _log(a)))), 1.0, 2.0), 3


def _steps(x: Any) -> Any:
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(_log(c[1]))), (0, x))[1]


def _counted(fun: Callable[[Any], Any]) -> int:
    return int(lox.spool(fun, reduce="count")(1.0)[1]["k"])


def while_loop() -> tuple[Any, Any]:
    return _counted(lambda x: jax.linearize(_steps, x)[1](1.0)), 3


def while_in_checkpoint() -> tuple[Any, Any]:
    def f(x: Any) -> Any:
        return jnp.sin(x) * lax.stop_gradient(_steps(jnp.cos(x)))

    return _counted(jax.grad(jax.checkpoint(f))), 3


@contextlib.contextmanager
def _remat3() -> Iterator[None]:
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", before)


def checkpoint() -> tuple[Any, Any]:
    with _remat3():
        return _records(jax.grad(jax.checkpoint(lambda x: jnp.sin(_log(jnp.cos(x))))), 1.0), 1


@jax.custom_jvp
def _sine(x: Any) -> Any:
    return jnp.sin(x)


@_sine.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return jnp.sin(_log(primals[0])), jnp.cos(primals[0]) * tangents[0]


def rules_in_checkpoint() -> tuple[Any, Any]:
    with _remat3():
        return _records(jax.grad(jax.checkpoint(_sine)), 1.0), 1


def rules_in_linearized_checkpoint() -> tuple[Any, Any]:
    with _remat3():
        return _records(lambda x: jax.linearize(jax.checkpoint(_sine), x)[1](1.0), 1.0), 1


def _delivered(program: Callable[[Any, Any], Any]) -> list[float]:
    received: list[float] = []
    tapped = lox.tap(_log, lambda logs: received.append(float(logs["k"])))
    jax.vmap(lambda x: program(tapped, x))(jnp.array([1.0, -1.0]))
    jax.effects_barrier()
    return sorted(received)


def lanes_of_cond() -> tuple[Any, Any]:
    return _delivered(lambda tapped, x: lax.cond(x > 0, tapped, lambda x: x, x)), [1.0]


def lanes_of_while() -> tuple[Any, Any]:
    return _delivered(lambda tapped, x: lax.while_loop(lambda c: c < 1, lambda c: tapped(c) + 1, x)), [-1.0, 0.0]


# A condition that is asked of all lanes at once, as equinox has it: its result has no lanes.
_unvmap_any_p = jax.extend.core.Primitive("unvmap_any")
_unvmap_any_p.def_impl(lambda x: x)
_unvmap_any_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(_unvmap_any_p, lambda ctx, x: [x])
batching.primitive_batchers[_unvmap_any_p] = lambda args, dims: (_unvmap_any_p.bind(jnp.any(args[0], dims[0])), None)


def lanes_of_scan() -> tuple[Any, Any]:
    def step(tapped: Any, c: Any) -> Any:
        going = c < 1
        return lax.cond(_unvmap_any_p.bind(going), lambda c: jnp.where(going, tapped(c) + 1, c), lambda c: c, c)

    def bounded(tapped: Any, x: Any) -> Any:
        return lax.scan(lambda c, _: (step(tapped, c), None), x, None, length=4)[0]

    return _delivered(bounded), [-1.0, 0.0]


WITNESSES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "scan": scan,
    "scan in checkpoint": scan_in_checkpoint,
    "while": while_loop,
    "while in checkpoint": while_in_checkpoint,
    "checkpoint": checkpoint,
    "rules in checkpoint": rules_in_checkpoint,
    "rules in linearized checkpoint": rules_in_linearized_checkpoint,
    "lanes of cond": lanes_of_cond,
    "lanes of while": lanes_of_while,
    "lanes of scan": lanes_of_scan,
}
