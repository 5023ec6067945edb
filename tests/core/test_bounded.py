"""capacity, where and interval against plain Python lists: values, steps, counts and memory."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import assert_logs_equal


def count_up(n, x):
    """n records, n not static."""

    def body(i):
        lox.log({"v": x + i, "pair": (i, x * i)}, step=i, half=i // 2)
        return i + 1

    return jax.lax.while_loop(lambda i: i < n, body, 0)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 11])
def test_capacity_keeps_the_last_records_oldest_first(n):
    logs = jax.jit(lox.spool(count_up, capacity=4))(jnp.int32(n), jnp.float32(10))[1]
    kept = list(range(max(0, n - 4), n))
    padding = [0] * (4 - len(kept))
    assert logs["v"].tolist() == [10.0 + i for i in kept] + padding
    assert logs["pair"][0].tolist() == kept + padding
    assert logs.step["v"].tolist() == kept + padding
    assert logs.half["v"].tolist() == [i // 2 for i in kept] + padding
    assert int(logs.counts["v"]) == n
    trimmed = logs.trim()
    assert trimmed["v"].tolist() == [10.0 + i for i in kept]
    assert trimmed.step["pair"].tolist() == kept


def test_capacity_leaves_keys_with_static_counts_alone():
    def f(n, xs):
        lox.log({"once": xs[0]})
        jax.lax.map(lambda x: lox.log({"x": x})["x"], xs)
        return count_up(n, xs[0])

    logs = lox.spool(f, capacity=2)(jnp.int32(3), jnp.arange(5.0))[1]
    assert float(logs["once"]) == 0.0
    assert "once" not in logs.stacked
    assert logs["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert logs.counts["x"] == 5
    assert logs["v"].tolist() == [1.0, 2.0]


def test_a_key_inside_and_outside_a_dynamic_loop_is_one_sequence():
    def f(n):
        lox.log({"v": 100})
        jax.lax.while_loop(lambda i: i < n, lambda i: lox.log({"v": i})["v"] + 1, 0)
        lox.log({"v": 200})
        return n

    spooled = jax.jit(lox.spool(f, capacity=4))
    assert spooled(1)[1].trim()["v"].tolist() == [100, 0, 200]
    assert spooled(5)[1].trim()["v"].tolist() == [2, 3, 4, 200]
    assert int(spooled(5)[1].counts["v"]) == 7


def test_lanes_that_left_the_loop_record_nothing():
    ns = jnp.array([0, 2, 7])
    logs = jax.jit(jax.vmap(lox.spool(count_up, capacity=3), (0, None)))(ns, jnp.float32(0))[1]
    assert logs.counts["v"].tolist() == [0, 2, 7]
    assert logs["v"].tolist() == [[0, 0, 0], [0, 1, 0], [4, 5, 6]]
    reduced = jax.jit(jax.vmap(lox.spool(count_up, reduce=("sum", "count", "max")), (0, None)))(ns, jnp.float32(0))[1]
    assert reduced["v"]["sum"].tolist() == [0, 1, 21]
    assert reduced["v"]["count"].tolist() == [0, 2, 7]
    assert reduced["v"]["max"].tolist() == [-np.inf, 1, 6]


def test_a_lane_taken_out_can_be_trimmed():
    logs = jax.vmap(lox.spool(count_up, capacity=3), (0, None))(jnp.array([0, 2, 7]), jnp.float32(0))[1]
    lanes = [jax.tree.map(lambda leaf, i=i: leaf[i], logs).trim() for i in range(3)]
    assert [lane["v"].tolist() for lane in lanes] == [[], [0.0, 1.0], [4.0, 5.0, 6.0]]


# --- where -----------------------------------------------------------------------------------------------------------

MASKS = [[0, 0, 0, 0, 0], [1, 0, 0, 1, 1], [0, 1, 0, 0, 0], [1, 1, 1, 1, 1]]


def masked(mask):
    def step(i, keep):
        lox.log({"i": i, "square": i * i}, where=keep, step=i)
        return i + 1, None

    return jax.lax.scan(step, 0, mask)[0]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_where_compacts_the_rows(mask):
    mask = jnp.array(mask, bool)
    logs = jax.jit(lox.spool(masked))(mask)[1]
    kept = [i for i in range(5) if mask[i]]
    assert logs["i"].tolist() == kept + [0] * (5 - len(kept))
    assert logs.trim()["square"].tolist() == [i * i for i in kept]
    assert logs.trim().step["i"].tolist() == kept
    assert int(logs.counts["i"]) == len(kept)


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_where_is_honoured_by_reductions_capacity_and_interval(mask):
    mask = jnp.array(mask, bool)
    kept = [i for i in range(5) if mask[i]]
    reduced = jax.jit(lox.spool(masked, reduce=("sum", "count", "last")))(mask)[1]
    assert jax.tree.map(int, reduced["i"]) == {"sum": sum(kept), "count": len(kept), "last": kept[-1] if kept else 0}
    bounded = jax.jit(lox.spool(masked, capacity=2))(mask)[1]
    assert bounded["i"].shape == (2,)
    assert bounded.trim()["i"].tolist() == kept[-2:]
    assert int(bounded.counts["i"]) == len(kept)
    every = jax.jit(lox.spool(masked, interval=2))(mask)[1]
    assert every["i"].shape == (3,)
    assert every.trim()["i"].tolist() == kept[::2]


def test_where_differs_between_lanes_of_vmapped_spool():
    masks = jnp.array(MASKS, bool)
    logs = jax.vmap(lox.spool(masked))(masks)[1]
    for i, mask in enumerate(MASKS):
        lane = jax.tree.map(lambda leaf, i=i: leaf[i], logs).trim()
        assert lane["i"].tolist() == [j for j in range(5) if mask[j]]


def test_where_in_straight_code_and_gradients():
    def f(x):
        for i in range(3):
            lox.log({"v": x[i]}, where=x[i] > 0)
        return (x**2).sum()

    x = jnp.array([1.0, -1.0, 2.0])
    for logs in (jax.grad(lox.spool(f), has_aux=True)(x)[1], lox.spool(jax.grad(f))(x)[1]):
        assert logs.trim()["v"].tolist() == [1.0, 2.0]


def test_bounded_logs_in_sequence_are_compacted():
    a, b = jnp.array(MASKS[1], bool), jnp.array(MASKS[2], bool)
    first, second = lox.spool(masked)(a)[1], lox.spool(masked)(b)[1]
    both = first + second
    assert both.trim()["i"].tolist() == [0, 3, 4, 1]
    assert int(both.counts["i"]) == 4
    assert_logs_equal(both.trim(), lox.spool(lambda a, b: (masked(a), masked(b)))(a, b)[1].trim())


# --- interval --------------------------------------------------------------------------------------------------------


def nested(outer, inner):
    def f():
        def step(i, _):
            def inner_step(j, _):
                lox.log({"ij": i * 10 + j}, i=i, j=j)
                return j + 1, None

            jax.lax.scan(inner_step, 0, None, length=inner)
            lox.log({"i": i})
            return i + 1, None

        return jax.lax.scan(step, 0, None, length=outer)[0]

    return f


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 100])
def test_interval_keeps_every_nth_record_over_nested_loops(interval):
    logs = jax.jit(lox.spool(nested(4, 3), interval=interval))()[1]
    everything = [10 * i + j for i, j in itertools.product(range(4), range(3))]
    assert logs["ij"].tolist() == everything[::interval]
    assert logs.j["ij"].tolist() == [value % 10 for value in everything][::interval]
    assert logs["i"].tolist() == [0, 1, 2, 3][::interval]
    assert logs.counts["ij"] == len(everything[::interval])


def test_interval_in_dynamic_loops_counts_actual_records():
    spooled = jax.jit(lox.spool(count_up, interval=3, capacity=2))
    assert spooled(jnp.int32(8), jnp.float32(0))[1].trim()["v"].tolist() == [3.0, 6.0]
    assert spooled(jnp.int32(1), jnp.float32(0))[1].trim()["v"].tolist() == [0.0]
    reduced = jax.jit(lox.spool(count_up, interval=3, reduce="sum"))(jnp.int32(8), jnp.float32(0))[1]
    assert float(reduced["v"]) == 0 + 3 + 6


def test_a_single_record_is_unchanged_by_interval():
    logs = lox.spool(lambda x: lox.log({"x": x})["x"], interval=5)(1.0)[1]
    assert float(logs["x"]) == 1.0
    assert "x" not in logs.stacked


def test_a_row_that_is_left_alone_keeps_its_axis():
    assert lox.spool(nested(1, 4), interval=100)()[1]["ij"].tolist() == [0]
    assert lox.spool(lambda x: (lox.log({"a": x}), lox.log({"a": x + 1})), interval=2)(1.0)[1]["a"].tolist() == [1.0]


# --- memory ----------------------------------------------------------------------------------------------------------


def compiled_bytes(fun, *args):
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def vectors(length):
    def f(x):
        def step(c, _):
            c = jnp.sin(c) + 1
            lox.log({"c": c})
            return c, None

        return jax.lax.scan(step, x, None, length=length)[0]

    return f


@pytest.mark.compiled_as_by_users
def test_interval_stores_only_the_rows_it_keeps():
    x = jnp.ones(64)
    everything = compiled_bytes(lox.spool(vectors(10_000)), x)
    every_100th = compiled_bytes(lox.spool(vectors(10_000), interval=100), x)
    row = 64 * 4
    assert everything >= 10_000 * row
    assert 100 * row <= every_100th <= 100 * row * 2.2 + 4096


@pytest.mark.compiled_as_by_users
def test_capacity_bounds_the_memory_of_a_dynamic_loop():
    def f(n, x):
        return jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, lox.log({"c": s[1]})["c"] + 1), (0, x))[1]

    small, large = (
        compiled_bytes(lox.spool(f, capacity=capacity), jnp.int32(1), jnp.ones(64)) for capacity in (10, 1000)
    )
    assert small < 10 * 64 * 4 * 4 + 4096
    assert large < 1000 * 64 * 4 * 4 + 4096


# --- gradients -------------------------------------------------------------------------------------------------------


def test_gradient_norms_per_layer_in_one_line():
    def loss(params, x):
        for name, w in params.items():
            w = lox.log_grad(w, f"grad/{name}", step=3)
            x = jnp.tanh(w @ x)
        return (x**2).sum()

    params = {name: jnp.eye(3) * scale for name, scale in (("a", 0.5), ("b", 2.0))}
    gradient, logs = jax.jit(lox.spool(jax.grad(loss)))(params, jnp.arange(3.0))
    assert sorted(logs) == ["grad/a", "grad/b"]
    assert list(logs) == ["grad/b", "grad/a"]  # the backward pass reaches the last layer first
    for name in params:
        np.testing.assert_allclose(logs[f"grad/{name}"], gradient[name], rtol=1e-6)
    assert int(logs.step["grad/a"]) == 3


def test_log_grad_is_the_identity_and_records_nothing_where_nothing_is_differentiated():
    def f(x):
        return lox.log_grad({"a": x, "b": 2 * x}, "d")["b"]

    assert float(f(3.0)) == 6.0
    out, logs = lox.spool(f)(3.0)
    assert float(out) == 6.0
    assert logs == {}


def test_log_grad_with_where_reduce_and_lanes():
    def f(x):
        def step(c, v):
            return lox.log_grad(c, "dc", reduce=("sum", "count"), where=v > 0) * v, None

        return jax.lax.scan(step, 1.0, x)[0]

    x = jnp.array([2.0, -3.0, 4.0])
    logs = lox.spool(jax.grad(f))(x)[1]
    assert jax.tree.map(float, logs["dc"]) == {"sum": 4.0 + 2.0 * -3.0 * 4.0, "count": 2.0}
    lanes = jax.vmap(lambda x: lox.spool(jax.grad(f))(x)[1])(jnp.stack([x, -x]))
    assert lanes["dc"]["count"].tolist() == [2, 1]
    assert lanes["dc"]["sum"].tolist() == [-20.0, -12.0]


def test_more_records_than_can_be_counted_are_an_error_before_anything_runs():
    def fun(x):
        def inner(c, i):
            lox.log({"i": i})
            return c, None

        return jax.lax.scan(lambda c, _: jax.lax.scan(inner, c, jnp.arange(2**16)), x, None, length=2**15)[0]

    for options in ({"reduce": "mean"}, {"interval": 2**10}):
        with pytest.raises(
            lox.LoxError, match=r"'i' \(.*test_bounded.py:\d+\) has 2147483648 records, but one call can count"
        ):
            jax.eval_shape(lox.spool(fun, **options), jnp.float32(0))
    for name in ("interval", "capacity"):
        with pytest.raises(lox.LoxError, match=rf"{name} must be below 2\*\*31"):
            lox.spool(fun, **{name: 2**31})
