"""Loops whose predicate differs between the lanes of a `vmap` that is inside the transformation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from tests.core.checks import assert_close, assert_steps_equal, tapped

pytestmark = pytest.mark.usefixtures("quick_compilation")

XS = jnp.array([0.5, 3.0, 1.5, 2.5])


def _going(state: Any) -> Any:
    return state[1] > 0


def count_down(x):
    def body(state):
        i, left = state
        lox.log({"left": left, "half": left / 2}, step=i)
        return i + 1, left - 1

    return lax.while_loop(_going, body, (0, x))[1]


def loop_in_a_loop(x):
    def body(state):
        i, left = state
        lox.log({"outer": left})
        inner = lax.while_loop(_going, inner_body, (i, left))[1]
        return i + 1, left - 1 + 0 * inner

    def inner_body(state):
        i, left = state
        lox.log({"inner": left}, step=i)
        return i + 1, left - 1.25

    return lax.while_loop(_going, body, (0, x))[1]


def scan_in_a_loop(x):
    def body(state):
        def step(carry, j):
            lox.log({"carry": carry}, step=j)
            return carry + 1, carry

        i, left = state
        _, ys = lax.scan(step, left, jnp.arange(3))
        return i + 1, left - 1 + 0 * ys.sum()

    return lax.while_loop(_going, body, (0, x))[1]


def loop_in_a_scan(x):
    return lax.scan(lambda c, d: (count_down(c + d), c), x, jnp.arange(3.0))[0]


def loop_in_a_jitted_function(x):
    return jax.jit(count_down)(x) + jax.jit(count_down)(x + 1)


def loop_in_a_custom_jvp(x):
    @jax.custom_jvp
    def twice(x):
        return 2 * count_down(x)

    twice.defjvp(lambda p, t: (twice(*p), 2 * t[0]))
    return twice(x)


def calls_in_a_loop(x):
    @jax.custom_jvp
    def less(left):
        lox.log({"less": left})
        return left - 1

    less.defjvp(lambda p, t: (less(*p), t[0]))

    @jax.checkpoint
    def still_less(left):
        lox.log({"still": left})
        return jax.jit(less)(left)

    return lax.while_loop(_going, lambda s: (s[0] + 1, still_less(s[1])), (0, x))[1]


def branch_in_a_loop(x):
    def step(carry, number):
        def body(state):
            i, left = state
            # The same in all lanes: it stays a branch.
            left = lax.cond(number > 0, lambda v: _logged("later", v), lambda v: _logged("first", v), left)
            return i + 1, left - 1

        return carry, lax.while_loop(_going, body, (0, x))[1]

    return lax.scan(step, 0.0, jnp.arange(3))[1].sum()


def _logged(name, v):
    lox.log({name: v})
    return v


def mark_in_the_condition(x):
    def going(state):
        lox.log({"asked": state[1]})
        return _going(state)

    return lax.while_loop(going, lambda s: (s[0] + 1, s[1] - 1), (0, x))[1]


def same_key_before_in_and_after(x):
    lox.log({"v": x}, step=-1)

    def body(state):
        i, left = state
        lox.log({"v": left}, step=i)
        return i + 1, left - 1

    out = lax.while_loop(_going, body, (0, x))[1]
    lox.log({"v": out}, step=100)
    return out


def where_is_the_same_in_all_lanes(x):
    def body(carry, i):
        def inner(state):
            j, left = state
            lox.log({"v": left}, where=i > 0)
            return j + 1, left - 1

        return carry, lax.while_loop(_going, inner, (0, x + 0 * carry))[1]

    return lax.scan(body, 0.0, jnp.arange(2))[1].sum()


def collectives(x):
    def body(state):
        i, left = state
        lox.log({"mean": lax.pmean(left, "lanes"), "lane": lax.axis_index("lanes")})
        return i + 1, left - 1

    return lax.while_loop(lambda s: s[0] < lax.axis_index("lanes"), body, (0, x))[1]


def keys_are_carried(x):
    def body(state):
        key, left = state
        key, used = jax.random.split(key)
        lox.log({"key": used})
        return key, left - jax.random.uniform(used)

    return lax.while_loop(_going, body, (jax.random.key(0), x))[1]


def nothing_to_select(x):
    return lax.while_loop(_going, lambda s: (s[0], s[1] - _logged("v", jnp.ones(2))[0]), (0, x))[1]


PROGRAMS = [
    count_down,
    loop_in_a_loop,
    scan_in_a_loop,
    loop_in_a_scan,
    loop_in_a_jitted_function,
    loop_in_a_custom_jvp,
    calls_in_a_loop,
    branch_in_a_loop,
    mark_in_the_condition,
    same_key_before_in_and_after,
    where_is_the_same_in_all_lanes,
    collectives,
    keys_are_carried,
    nothing_to_select,
]


def one_vmap(fun):
    return jax.vmap(fun, axis_name="lanes")


def two_vmaps(fun):
    """The predicate differs along both."""
    over_halves = jax.vmap(lambda x, d: fun(x + d), (None, 0), axis_name="others")
    return jax.vmap(lambda x: over_halves(x, jnp.array([0.0, 2.0, -9.0])), axis_name="lanes")


def outer_vmap_alike(fun):
    """The predicate is the same in all lanes of the outer one, which comes when those of the inner one are known."""
    return lambda xs: jax.vmap(jax.jit(jax.vmap(fun, axis_name="lanes")), in_axes=None, axis_size=2)(xs)


VMAPS = {one_vmap: 1, two_vmaps: 2, outer_vmap_alike: 2}
OPTIONS = [{"reduce": ("count", "first", "last")}, {"capacity": 2}]

every_program = pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)


def assert_law(fun: Any, vmaps: Any, **options: Any) -> lox.logdict:
    """`spool(vmap(f)) == vmap(spool(f))`, with the record axis in front."""
    out, outer = lox.spool(jax.jit(vmaps(fun)), **options)(XS)
    expected, inner = jax.jit(vmaps(lox.spool(fun, **options)))(XS)
    assert_close(out, expected)
    assert list(outer) == list(inner)
    assert outer.stacked == inner.stacked

    def moved(key, leaf):
        return jnp.moveaxis(leaf, VMAPS[vmaps], 0) if key in inner.stacked else leaf

    for key in inner:
        assert_close(outer[key], jax.tree.map(lambda leaf, key=key: moved(key, leaf), inner[key]), key)
        np.testing.assert_array_equal(*np.broadcast_arrays(outer.counts[key], inner.counts[key]), key)
    steps = {axis: {key: moved(key, leaf) for key, leaf in by_key.items()} for axis, by_key in inner.steps.items()}
    assert_steps_equal(outer.steps, steps)
    return outer


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@every_program
def test_spool_of_vmap_is_vmap_of_spool(fun, options):
    if fun is keys_are_carried and "reduce" in options:
        pytest.skip("random keys cannot be reduced")
    logs = assert_law(fun, one_vmap, **options)
    assert any(len(set(np.ravel(count).tolist())) > 1 for count in logs.counts.values()), "lanes differ"


def test_interval_counts_the_records_of_each_lane():
    logs = assert_law(count_down, one_vmap, capacity=9, interval=2)
    np.testing.assert_array_equal(logs.counts["left"], [1, 2, 1, 2])
    assert_law(count_down, one_vmap, reduce="mean", interval=2)


@pytest.mark.parametrize("vmaps", [vmaps for vmaps in VMAPS if vmaps is not one_vmap], ids=lambda vmaps: vmaps.__name__)
@pytest.mark.parametrize("fun", [count_down, loop_in_a_loop, scan_in_a_loop], ids=lambda f: f.__name__)
def test_lanes_of_nested_vmaps(fun, vmaps):
    assert_law(fun, vmaps, reduce=("count", "mean"))
    assert_law(fun, vmaps, capacity=3)


def test_an_inner_vmap_of_other_values_has_the_lanes_of_the_outer_one():
    """The predicate differs along the outer one alone."""

    def fun(x, offset):
        def body(left):
            lox.log({"v": left + offset})
            return left - 1

        return lax.while_loop(lambda left: left > 0, body, x)

    def both(transform):
        return jax.vmap(lambda x: jax.vmap(lambda o: transform(fun)(x, o))(jnp.arange(2.0)))

    _, outer = lox.spool(both(lambda f: f), capacity=2)(XS)
    _, inner = both(lambda f: lox.spool(f, capacity=2))(XS)
    assert_close(outer["v"], jnp.moveaxis(inner["v"], 2, 0))
    np.testing.assert_array_equal(outer.counts["v"], inner.counts["v"][:, 0])


def test_a_result_that_does_not_depend_on_the_outer_lanes_may_be_asked_for_without_them():
    def inner(xs):
        return jax.jit(jax.vmap(count_down))(xs)

    outer = jax.vmap(inner, in_axes=None, out_axes=None, axis_size=2)
    out, logs = lox.spool(outer, reduce="count")(XS)
    np.testing.assert_array_equal(out, jax.vmap(count_down)(XS))
    np.testing.assert_array_equal(logs["left"], [[1, 3, 2, 3]] * 2)


@every_program
def test_the_result_is_that_of_the_function(fun):
    expected = jax.jit(one_vmap(fun))(XS)
    assert_close(tapped(one_vmap(fun), XS)[0], expected)
    assert_close(lox.nolog(one_vmap(fun))(XS), expected)
    # With `argnames` that select nothing in the loop.
    assert_close(lox.spool(one_vmap(fun), argnames="no*key")(XS), (expected, lox.logdict()))


def own_rows(received: list[lox.logdict], key: str, lane: int) -> list[Any]:
    """The records that one lane made, out of calls for all lanes."""
    return [
        jax.tree.map(lambda leaf: leaf[lane], logs[key])
        for logs in received
        if key in logs and np.broadcast_to(logs.counts[key], len(XS))[lane]
    ]


@pytest.mark.every(3)
@every_program
def test_tap_calls_once_with_all_lanes_and_counts_says_which_made_the_record(fun):
    logs = lox.spool(one_vmap(fun), capacity=16)(XS)[1]
    for _, received in (tapped(one_vmap(fun), XS), tapped(jax.jit(one_vmap(fun)), XS)):
        assert all(np.any(count) for each in received for count in each.counts.values())
        for key in logs:
            for lane in range(len(XS)):
                rows = own_rows(received, key, lane)
                assert len(rows) == np.broadcast_to(logs.counts[key], len(XS))[lane]
                expected = logs[key][: len(rows), lane]
                if rows and not jnp.issubdtype(expected.dtype, jax.dtypes.prng_key):
                    assert_close(np.stack(rows), np.asarray(expected), key)


@pytest.mark.parametrize("fun", [count_down, loop_in_a_loop, same_key_before_in_and_after], ids=lambda f: f.__name__)
def test_batches_have_the_rows_that_each_lane_made_itself(fun):
    logs = lox.spool(one_vmap(fun), capacity=16)(XS)[1]
    received = tapped(jax.jit(one_vmap(fun)), XS, batch=2)[1]
    for key in logs:
        for lane in range(len(XS)):
            rows = []
            for each in received:
                number = int(np.broadcast_to(each.counts.get(key, 0), len(XS))[lane])
                rows += list(each[key][:number, lane]) if number else []
                assert number <= 2
            expected = np.asarray(logs[key])[: np.broadcast_to(logs.counts[key], len(XS))[lane], lane]
            np.testing.assert_array_equal(np.sort(rows), np.sort(expected), key)


def test_interval_of_a_tap_counts_the_calls_for_all_lanes():
    received = tapped(jax.vmap(count_down), XS, interval=2)[1]
    assert [logs.counts["left"].tolist() for logs in received] == [[1, 1, 1, 1], [0, 1, 0, 1]]
    assert [logs.step["left"].tolist() for logs in received] == [[0, 0, 0, 0], [1, 2, 2, 2]]


def test_a_tap_between_two_vmaps_is_called_for_the_outer_lanes_that_are_in_the_loop():
    received: list[lox.logdict] = []
    jax.vmap(lox.tap(jax.vmap(count_down), received.append))(jnp.array([[0.5, -1.0], [1.5, 0.5]]))
    jax.effects_barrier()
    assert [logs.counts["left"].tolist() for logs in received] == [[1, 0], [1, 1], [1, 0]]


@pytest.mark.parametrize("inner", ["tap", "spool"])
@pytest.mark.parametrize("order", ["vmap inside", "vmap outside"])
def test_marks_that_stay_in_the_program_keep_their_lanes(inner, order):
    transforms = {
        "tap": lambda f: lox.tap(f, lambda logs: None),
        "spool": lambda f: lambda x: lox.spool(f, keep_logs=True, reduce="count")(x)[0],
    }
    keep = transforms[inner]
    fun = keep(jax.vmap(count_down)) if order == "vmap inside" else jax.vmap(keep(count_down))
    for options in OPTIONS:
        logs = lox.spool(fun, **options)(XS)[1]
        expected = lox.spool(jax.vmap(count_down), **options)(XS)[1]
        assert_close(dict(logs), dict(expected))
        assert_close(logs.counts, expected.counts)
    # One more vmap, once the lanes of the marks are known.
    twice = lox.spool(jax.vmap(jax.jit(fun)), reduce="count")(jnp.stack([XS, XS + 1]))[1]
    np.testing.assert_array_equal(twice["left"], [[1, 3, 2, 3], [2, 4, 3, 4]])


def test_a_training_step_with_vmapped_rollouts():
    def rollout(horizon):
        def body(carry):
            i, total = carry
            lox.log({"reward": total})
            return i + 1, total + 1.0

        return lax.while_loop(lambda c: c[0] < horizon, body, (0, 0.0))[1]

    @jax.jit
    def train(horizons):
        returns = jax.vmap(rollout)(horizons)
        lox.log({"return": returns.mean()})
        return returns

    horizons = jnp.array([1, 2, 4])
    assert_close(lox.spool(train, argnames="return")(horizons)[1]["return"], np.float32(7 / 3))
    logs = lox.spool(train, reduce="mean")(horizons)[1]
    np.testing.assert_array_equal(logs["reward"], [0.0, 0.5, 1.5])
    np.testing.assert_array_equal(logs.counts["reward"], [1, 2, 4])
    assert logs.counts["return"] == 1


def test_a_batched_where_in_such_a_loop_is_an_error_that_says_what_to_write():
    def fun(x):
        def body(state):
            i, left = state
            lox.log({"left": left}, where=left > 1)
            return i + 1, left - 1

        return lax.while_loop(_going, body, (0, x))[1]

    with pytest.raises(lox.LoxError, match=r"test_lanes.py:\d+ differs between the lanes .* vmap\(spool\(f\)\)"):
        lox.spool(jax.vmap(fun), capacity=4)(XS)


def test_steps_that_have_lanes_in_one_place_only_are_an_error_that_names_both():
    def fun(xs):
        lox.log({"v": xs}, step=0)

        def one(x):
            lox.log({"v": x}, step=1)

        jax.vmap(one)(xs)

    with pytest.raises(lox.LoxError, match=r"shape of step 'step' \(\) at .*test_lanes.py:\d+ and \(4,\) at"):
        lox.spool(fun)(XS)
