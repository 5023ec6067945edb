"""lox.nolog with a selection: only those marks are gone, wherever they are and however the program is differentiated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import lox
from tests.corpus import PROGRAMS, X

ARGUMENT = X


@jax.custom_vjp
def square(x):
    lox.log({"a": x, "b": x}, tags="function")
    return x * x


def square_forward(x):
    lox.log({"a": x, "b": x}, tags="rule")
    return x * x, x


def square_backward(x, cotangent):
    lox.log({"back/a": cotangent, "back/b": cotangent})
    return (2 * x * cotangent,)


square.defvjp(square_forward, square_backward)


@jax.custom_jvp
def cube(x):
    lox.log({"a": x, "b": x})
    return x**3


@cube.defjvp
def cube_jvp(primals, tangents):
    lox.log({"a": primals[0], "b": primals[0]})
    return primals[0] ** 3, 3 * primals[0] ** 2 * tangents[0]


def watched(x):
    lox.log({"a": x, "debug/x": x})
    return lox.log_grad(lox.log_grad(x, "back/a"), "back/b") ** 2


def looped(x):
    def step(carry, i):
        lox.log({"a": carry}, step=i)
        lox.log({"b": carry}, step=i, tags="loop")
        return carry * 0.5, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


FUNCTIONS = [square, cube, watched, looped]


@pytest.mark.every(3)
@pytest.mark.parametrize("fun", FUNCTIONS, ids=["custom_vjp", "custom_jvp", "log_grad", "scan"])
@pytest.mark.parametrize(
    "around", [lambda f: f, jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jax.jit]
)
@pytest.mark.parametrize("names", ["a", ["a", "*/a"], "debug/*", "*"])
def test_what_is_left_is_what_spool_would_not_select(fun, around, names):
    value, logs = lox.spool(around(lox.nolog(fun, names)))(2.0)
    expected, everything = lox.spool(around(fun))(2.0)
    _, taken = lox.spool(around(fun), argnames=names)(2.0)
    assert value == expected
    assert logs.keys() == everything.keys() - taken.keys()
    for key in logs:
        assert jnp.array_equal(logs[key], everything[key]), key


@pytest.mark.parametrize("fun", FUNCTIONS, ids=["custom_vjp", "custom_jvp", "log_grad", "scan"])
def test_the_gradient_of_a_spool_outside_has_what_is_left(fun):
    gradient, logs = jax.grad(lox.spool(lox.nolog(fun, "a")), has_aux=True)(2.0)
    expected, everything = jax.grad(lox.spool(fun), has_aux=True)(2.0)
    assert gradient == expected
    assert logs.keys() == everything.keys() - {"a"}


def test_tags_select_too():
    assert list(lox.spool(lox.nolog(square, tags="function"))(2.0)[1]) == []
    assert list(lox.spool(lox.nolog(square, tags="other"))(2.0)[1]) == ["a", "b"]
    assert list(lox.spool(lox.nolog(looped, tags=["loop"]))(2.0)[1]) == ["a"]
    assert list(lox.spool(lox.nolog(square, "a", tags="other"))(2.0)[1]) == ["a", "b"]


def test_two_of_them_take_out_both():
    assert not lox.spool(lox.nolog(lox.nolog(square, "a"), "b"))(2.0)[1]
    assert list(lox.spool(lambda x: lox.nolog(square, "a")(x) + square(x))(2.0)[1]) == ["b", "a"]


def test_a_jitted_function_keeps_its_marks_for_others():
    fun = jax.jit(looped)
    for _ in range(2):
        assert list(lox.spool(lox.nolog(fun, "a"))(2.0)[1]) == ["b"]
        assert list(lox.spool(fun)(2.0)[1]) == ["a", "b"]
        assert lox.nolog(fun, "a")(2.0) == fun(2.0)


def test_a_where_that_differs_between_lanes_can_be_taken_out():
    def fun(x):
        lox.log({"a": x}, where=x > 0)
        lox.log({"b": x})
        return x

    xs = jnp.array([-1.0, 1.0])
    assert list(lox.spool(lox.nolog(jax.vmap(fun), "a"))(xs)[1]) == ["b"]


@pytest.mark.parametrize("program", PROGRAMS[::5], ids=lambda program: program.name)
def test_taking_out_every_key_leaves_nothing_of_any_program(program):
    out, logs = jax.eval_shape(lox.spool(lox.nolog(program.fun, "*")), ARGUMENT)
    assert logs == {}
    assert jax.tree.structure(out) == jax.tree.structure(jax.eval_shape(program.fun, ARGUMENT))


def test_marks_that_a_selective_spool_leaves_are_recorded_once_by_a_spool_outside():
    def outer(x):
        return lox.spool(square, argnames="none")(x)[0]

    with pytest.warns(UserWarning, match="no such key"):
        logs = lox.spool(jax.grad(outer))(2.0)[1]
    assert {key: int(count) for key, count in logs.counts.items()} == {"a": 1, "b": 1, "back/a": 1, "back/b": 1}
