"""Runs of the corpus that several laws look at, each compiled and run once."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

import lox
from lox._host.delivery import Receiver
from tests.core.checks import tapped
from tests.corpus import LANES, Program, X

ARGUMENT = jnp.asarray(X)


def spooled(program: Program, fun: Any = None, **options: Any) -> Any:
    return lox.spool(fun or program.fun, **program.options, **options)


def lane(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)


@functools.cache
def plain(program: Program) -> Any:
    return jax.jit(program.fun)(ARGUMENT)


@functools.cache
def spool(program: Program) -> tuple[Any, lox.logdict]:
    """The one eager run: what all others are compared with."""
    return spooled(program)(ARGUMENT)


@functools.cache
def jit_of_spool(program: Program) -> tuple[Any, lox.logdict]:
    return jax.jit(spooled(program))(ARGUMENT)


@functools.cache
def tap_of_jit(program: Program) -> tuple[Any, list[lox.logdict]]:
    return tapped(jax.jit(program.fun), ARGUMENT)


@functools.cache
def vmap_of_spool(program: Program) -> tuple[Any, lox.logdict]:
    return jax.jit(jax.vmap(spooled(program)))(LANES)


@functools.cache
def vmap_of_tap(program: Program) -> tuple[Any, list[list[lox.logdict]]]:
    """The output, and what each lane delivered."""
    received: list[list[lox.logdict]] = [[] for _ in LANES]

    def handle(delivery: Any) -> None:
        for number, logs in delivery.split():
            received[number].append(logs)

    def one_lane(number: Any, x: Any) -> Any:
        return lox.tap(program.fun, Receiver(handle, number))(x)

    out = jax.jit(jax.vmap(one_lane))(jnp.arange(len(LANES)), LANES)
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out, received


@functools.cache
def grad(program: Program) -> Any:
    return jax.jit(jax.grad(program.fun))(ARGUMENT)


@functools.cache
def grad_of_spool(program: Program) -> tuple[Any, lox.logdict]:
    return jax.jit(jax.grad(spooled(program), has_aux=True))(ARGUMENT)


@functools.cache
def spool_of_grad(program: Program) -> tuple[Any, lox.logdict]:
    return spooled(program, jax.jit(jax.grad(program.fun)))(ARGUMENT)


@functools.cache
def grad_of_tap(program: Program) -> tuple[Any, list[lox.logdict]]:
    received: list[lox.logdict] = []
    out = jax.jit(jax.grad(lox.tap(program.fun, received.append)))(ARGUMENT)
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out, received


@functools.cache
def tap_of_grad(program: Program) -> tuple[Any, list[lox.logdict]]:
    return tapped(jax.jit(jax.grad(program.fun)), ARGUMENT)
