"""Spooling adds no communication: the compiled program has the collectives of one that returns the values by hand."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lox
from lox.loggers import Histogram
from tests.devices.meshes import mesh, on_each, put

pytestmark = pytest.mark.compiled_as_by_users

LINE = mesh(d=8)
COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"


def collectives(fun, *args):
    """Which collectives the compiled program has, and on how much data."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    return Counter(re.findall(rf"= (\(.*?\)|\S+) ({COLLECTIVES})(?:-start)?\(", text))


def data():
    return jnp.ones(16), put(jnp.ones((3, 32, 16)), LINE, P(None, "d"))


def loss_of(w, x):
    return jnp.mean((x @ w) ** 2)


def logged(w, xs):
    def step(w, x):
        loss, gradient = jax.value_and_grad(loss_of)(w, x)
        lox.log({"loss": loss, "errors": x @ w, "norm": jnp.linalg.norm(gradient)})
        return w - 0.1 * gradient, None

    return jax.lax.scan(step, w, xs)[0]


def by_hand(w, xs):
    def step(w, x):
        loss, gradient = jax.value_and_grad(loss_of)(w, x)
        return w - 0.1 * gradient, (loss, x @ w, jnp.linalg.norm(gradient))

    return jax.lax.scan(step, w, xs)


def reduced_by_hand(w, xs):
    def step(carry, x):
        w, loss_sum, largest = carry
        loss, gradient = jax.value_and_grad(loss_of)(w, x)
        return (w - 0.1 * gradient, loss_sum + loss, jnp.maximum(largest, x @ w)), None

    return jax.lax.scan(step, (w, 0.0, jnp.full(32, -jnp.inf)), xs)[0]


def test_rows_under_jit():
    expected = collectives(by_hand, *data())
    assert expected  # the gradient is a sum over the devices
    assert collectives(lox.spool(logged), *data()) == expected


def test_reductions_under_jit():
    expected = collectives(reduced_by_hand, *data())
    assert collectives(lox.spool(logged, argnames=("loss", "errors"), reduce="max"), *data()) == expected


def test_in_shard_map():
    def local(record):
        @on_each(LINE, (P(), P(None, "d")), (P(), P("d")))
        def run(w, xs):
            def step(w, x):
                gradient = jax.lax.pmean(jax.grad(loss_of)(w, x), "d")
                own = loss_of(w, x)
                record({"own": own})
                return w - 0.1 * gradient, own

            w, own = jax.lax.scan(step, w, xs)
            return w, own[None]

        return run

    expected = collectives(local(lambda record: None), *data())
    assert expected
    assert collectives(lox.spool(local(lox.log)), *data()) == expected
    assert collectives(lox.spool(local(lox.log), reduce="mean"), *data()) == expected


def test_a_tap_of_what_every_device_has_communicates_nothing():
    """The loss is replicated: the one device that calls the host has it."""

    def losses_by_hand(w, xs):
        w, (losses, _, _) = by_hand(w, xs)
        return w, losses

    assert collectives(lox.tap(logged, print, argnames="loss"), *data()) == collectives(losses_by_hand, *data())


def test_the_reader_of_collectives_sees_a_gather():
    def gathered(w, xs):
        return jax.lax.with_sharding_constraint(xs, jax.sharding.NamedSharding(LINE, P()))

    assert [kind for _, kind in collectives(gathered, *data())] == ["all-gather"]


def test_a_histogram_of_a_split_array_is_counted_where_it_lies():
    """Each of four devices counts its part, and the counts are added up: the values stay where they are."""
    four = mesh(a=2, b=2)
    for spec in (P("a", "b"), P(("a", "b")), P(None, "b"), P("b", "a")):
        x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=NamedSharding(four, spec))

        def histogram(x):
            lox.log({"h": Histogram(x, 20, (-3, 3))})
            return x

        found = collectives(lox.spool(histogram), x)
        assert {name for _, name in found} == {"all-reduce"}, (spec, found)
        assert all(shape.startswith("s32[24]") for shape, _ in found), (spec, found)
