"""Functions with a rule of their own for vmap. JAX differentiates them only where they have a rule for that as well."""

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.core.programs._program import Corpus

corpus = Corpus()


def _with_rule(function, rule):
    """The function, with ``rule(*batched_args) -> batched_out`` for vmap; arguments without lanes are broadcast."""
    function = jax.custom_batching.custom_vmap(function)

    @function.def_vmap
    def vmap_rule(axis_size, in_batched, *args):
        spread = [a if b else jnp.broadcast_to(a, (axis_size, *a.shape)) for a, b in zip(args, in_batched, strict=True)]
        return rule(*spread), True

    return function


def _squares(x):
    lox.log({"x": x})
    return (x**2).sum(axis=-1)


@corpus(lambda x: {"x": x}, differentiable=False)
def custom_vmap_whose_rule_records_the_same(x):
    return _with_rule(_squares, _squares)(x) + 1


@corpus(lambda x: {"x": x}, differentiable=False, batched_control=True)
def custom_vmap_whose_rule_records_nothing(x):
    return _with_rule(_squares, lambda xs: (xs**2).sum(axis=-1))(x)


@corpus(lambda x: {"x": [x[0], 2 * x[0]], "same": np.float32(3)}, differentiable=False, batched_control=True)
def custom_vmap_with_a_value_that_all_lanes_share(x):
    def function(x):
        lox.log({"x": x[..., 0], "same": 3.0})
        lox.log({"x": 2 * x[..., 0]})
        return x.sum(axis=-1)

    return _with_rule(function, function)(x)


def _times(x):
    def step(total, i):
        lox.log({"total": total}, i=i)
        return total + i * x[..., 0], None

    return jax.lax.scan(step, x[..., 1], jnp.arange(3))[0]


@corpus(
    lambda x: {"total": [x[1], x[1], x[1] + x[0]]},
    steps=lambda x: {"i": {"total": [0, 1, 2]}},
    differentiable=False,
    batched_control=True,
)
def custom_vmap_of_a_scan(x):
    return _with_rule(_times, _times)(x)


@corpus(lambda x: {"x": [v for v in x if v > 0]}, bounded=True, differentiable=False, batched_control=True)
def custom_vmap_in_a_scan_that_records_where(x):
    def function(v):
        lox.log({"x": v}, where=v > 0)
        return 2 * v

    function = _with_rule(function, lambda vs: 2 * vs)
    return jax.lax.scan(lambda total, v: (total + function(v), None), 0.0, x)[0]


@corpus(lambda x: {"v": list(x)}, steps=lambda x: {"at": {"v": list(x)}}, differentiable=False)
def custom_vmap_whose_rule_is_the_vmapped_function(x):
    def function(v):
        lox.log({"v": v}, at=v)
        return 2 * v

    function = _with_rule(function, jax.vmap(function))
    return jax.lax.scan(lambda total, v: (total + function(v), None), 0.0, x)[0]


@corpus(lambda x: {"x": [x[:1]] if x[0] > 0 else []}, dynamic=True, differentiable=False, batched_control=True)
def custom_vmap_in_a_branch(x):
    function = _with_rule(_squares, _squares)
    return jax.lax.cond(x[0] > 0, lambda x: function(x[:1]), lambda x: x[1], x).sum()


@corpus(lambda x: {"v": list(x)}, differentiable=False, batched_control=True)
def sequential_vmap(x):
    @jax.custom_batching.sequential_vmap
    def function(v):
        lox.log({"v": v})
        return 3 * v

    return jax.lax.scan(lambda total, v: (total + function(v), None), 0.0, x)[0]


@corpus(lambda x: {"v": list(x)[: 1 + (x[0] > 0)]}, dynamic=True, differentiable=False, batched_control=True)
def sequential_vmap_of_a_while_loop(x):
    @jax.custom_batching.sequential_vmap
    def function(x):
        def body(state):
            i, total = state
            lox.log({"v": x[i]})
            return i + 1, total + x[i]

        return jax.lax.while_loop(lambda state: state[0] < 1 + (x[0] > 0), body, (0, 0.0))[1]

    return function(x)


@corpus(lambda x: {"x": x}, batched_control=True)
def custom_vjp_of_a_custom_vmap(x):
    inner = _with_rule(_squares, lambda xs: (xs**2).sum(axis=-1))

    @jax.custom_vjp
    def function(x):
        return inner(x)

    function.defvjp(lambda x: (inner(x), x), lambda x, ct: (2 * ct * x,))
    return function(x)
