"""A tap that itself stands in a branch or a loop: under `vmap`, each lane delivers what it would deliver alone."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox

XS = jnp.array([1.0, -1.0, 2.0, 0.5])


def leave(x):
    lox.log({"x": x})
    return x


def branch(tapped, x):
    return lax.cond(x > 0, tapped, lambda x: x, x)


def one_of_three(tapped, x):
    return lax.switch(jnp.int32(x > 0) + jnp.int32(x > 1), [lambda x: x, tapped, lambda x: 2 * x], x)


def loop(tapped, x):
    return lax.while_loop(lambda c: c < 2, lambda c: tapped(c) + 1, x)


def condition_of_a_loop(tapped, x):
    return lax.while_loop(lambda c: tapped(c) < 2, lambda c: c + 1, x)


def branch_in_a_scan(tapped, x):
    return lax.scan(lambda c, _: (branch(tapped, c) + 1, None), x, None, length=3)[0]


def scan_in_a_branch(tapped, x):
    return branch(lambda x: lax.scan(lambda c, _: (tapped(c) + 1, None), x, None, length=2)[0], x)


def branch_in_a_loop_that_all_lanes_are_in(tapped, x):
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, branch(tapped, c[1]) + 1), (0, x))[1]


def branch_in_a_loop_in_a_branch(tapped, x):
    return branch(
        lambda x: lax.while_loop(lambda c: c < 3, lambda c: lax.cond(c > 1, tapped, lambda c: c, c) + 1, x), x
    )


def jitted_in_a_branch(tapped, x):
    return branch(jax.jit(tapped), x)


def gradient(tapped, x):
    return jax.grad(lambda x: branch(tapped, x) ** 2)(x)


def gradient_of_checkpoint(tapped, x):
    return jax.grad(jax.checkpoint(lambda x: branch(lambda x: jnp.sin(tapped(x)), x) ** 2))(x)


def same_for_all(tapped, x):
    return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, tapped(c[1]) + 1), (0, x))[1]


def two_taps(tapped, x):
    return branch(lambda x: tapped(tapped(x) + 1), x)


PROGRAMS = [
    branch, one_of_three, loop, condition_of_a_loop, branch_in_a_scan, scan_in_a_branch, branch_in_a_loop_in_a_branch,
    branch_in_a_loop_that_all_lanes_are_in, jitted_in_a_branch, gradient, gradient_of_checkpoint, same_for_all, two_taps,
]  # fmt: skip


def lanes_of(transform, xs, **options):
    """What each lane delivers. A lane is told by a number that it sends along."""
    got = {}

    def record(logs):
        for lane, x in zip(jnp.ravel(logs["lane"]).tolist(), jnp.ravel(logs["x"]).tolist(), strict=True):
            got.setdefault(int(lane), []).append(round(x, 5))

    def tapped(lane):
        def both(x):
            lox.log({"x": x, "lane": lane})
            return x

        return lox.tap(both, record, **options)

    out = transform(tapped, jnp.arange(len(xs)), xs)
    jax.effects_barrier()
    return out, got


@pytest.mark.every(3)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_lane_delivers_what_it_delivers_alone(program, jitted):
    def alone(tapped, lanes, xs):
        return jnp.stack([program(tapped(lane), x) for lane, x in zip(lanes, xs, strict=True)])

    def together(tapped, lanes, xs):
        mapped = jax.vmap(lambda lane, x: program(tapped(lane), x))
        return (jax.jit(mapped) if jitted else mapped)(lanes, xs)

    out, expected = lanes_of(alone, XS)
    mapped_out, got = lanes_of(together, XS)
    assert jnp.allclose(mapped_out, out)
    assert got == expected


def test_lanes_of_lanes():
    def alone(tapped, lanes, xs):
        return [[branch(tapped(lane), x + y) for y in (0.0, -1.5)] for lane, x in zip(lanes, xs, strict=True)]

    def together(tapped, lanes, xs):
        inner = jax.vmap(lambda lane, x, y: branch(tapped(lane), x + y), in_axes=(None, None, 0))
        return jax.vmap(inner, in_axes=(0, 0, None))(lanes, xs, jnp.array([0.0, -1.5]))

    assert lanes_of(together, XS)[1] == lanes_of(alone, XS)[1]


def test_the_axis_of_a_vmap_keeps_its_name():
    def together(tapped, lanes, xs):
        def f(lane, x):
            return lax.cond(lax.psum(x, "lanes") + x > 4, tapped(lane), lambda x: x - lax.pmean(x, "lanes"), x)

        return jax.vmap(f, axis_name="lanes")(lanes, xs)

    assert lanes_of(together, XS)[1] == {2: [2.0]}  # the sum is 2.5


def test_what_is_the_same_in_all_lanes_stays_so():
    def f(x):
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, lox.tap(leave, lambda logs: None)(c[1])), (0, x))

    count, _ = jax.vmap(f, out_axes=(None, 0))(XS)  # an error if the count were batched
    assert int(count) == 2


def test_batches_in_a_branch():
    def together(tapped, lanes, xs):
        return jax.vmap(lambda lane, x: scan_in_a_branch(tapped(lane), x))(lanes, xs)

    assert lanes_of(together, XS, batch=2)[1] == lanes_of(together, XS)[1]


def test_a_function_with_a_derivative_rule_in_a_branch():
    def together(tapped, lanes, xs):
        @jax.custom_vjp
        def double(x, lane):
            return 2 * tapped(lane)(x)

        double.defvjp(lambda x, lane: (double(x, lane), ()), lambda _, ct: (2 * ct, None))
        return jax.vmap(lambda lane, x: jax.grad(lambda x: branch(lambda x: double(x, lane), x))(x))(lanes, xs)

    out, got = lanes_of(together, XS)
    assert out.tolist() == [2.0, 1.0, 2.0, 2.0]
    assert got == {0: [1.0], 2: [2.0], 3: [0.5]}
