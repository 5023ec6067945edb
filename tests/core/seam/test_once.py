"""Each mark once, however a program is differentiated. Nothing is compiled: the shapes of the logs tell how many there are.

This is the law of ``test_laws`` that JAX breaks most easily, for the whole corpus in seconds.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lox
from tests.corpus import PROGRAMS, Program, X

ARGUMENT = jnp.asarray(X)


def shapes(fun: Any, program: Program) -> dict[str, Any]:
    """The types of what a program logs, but for the marks of backward rules."""
    logs = jax.eval_shape(lox.spool(fun, **program.options), ARGUMENT)[1]
    backward = program.backward(X) if program.backward else {}
    return {key: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), logs[key]) for key in logs if key not in backward}


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.differentiable], ids=repr)
def test_differentiation_neither_drops_nor_repeats_a_mark(program):
    expected = shapes(program.fun, program)
    assert shapes(jax.grad(program.fun), program) == expected
    assert shapes(jax.grad(jax.jit(program.fun)), program) == expected
    if program.name == "custom_linear_solve":
        return  # what its tangents are solved by has marks too: see test_laws
    assert shapes(jax.grad(jax.checkpoint(program.fun)), program) == expected
    if "custom_vjp" not in program.name:
        ones = jnp.ones_like(ARGUMENT)
        assert shapes(lambda x: jax.linearize(program.fun, x)[1](ones), program) == expected
        assert shapes(lambda x: jax.jvp(jax.grad(program.fun), (x,), (ones,)), program) == expected
