"""tap: batches, intervals, lanes, errors, and that nothing is lost or delivered twice."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._host.delivery import Receiver
from tests.core.checks import collect, tapped

XS = jnp.arange(10.0)


def loop(xs):
    def step(i, x):
        lox.log({"x": x, "double": 2 * x}, step=i)
        return i + 1, x

    return jax.lax.scan(step, 0, xs)[1].sum()


def values(received, key):
    return [np.asarray(logs[key]).tolist() for logs in received if key in logs]


def counting_receiver():
    """A receiver that remembers its deliveries: one entry is one host call."""
    deliveries = []
    return deliveries, Receiver(deliveries.append)


def run(fun, *args):
    out = jax.block_until_ready(fun(*args))
    jax.effects_barrier()
    return out


# --- what a callback gets --------------------------------------------------------------------------------------------


def test_a_record_is_a_logdict_of_numpy_with_steps():
    _, received = tapped(loop, XS[:2])
    assert all(isinstance(logs, lox.logdict) for logs in received)
    assert [str(logs) for logs in received] == ["{'x': 0.0, 'double': 0.0}", "{'x': 1.0, 'double': 2.0}"]
    assert [int(logs.step["x"]) for logs in received] == [0, 1]


@pytest.mark.parametrize("options", [{}, {"batch": 2}], ids=["record", "batch"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_callback_gets_numpy_and_never_jax_arrays(wrap, options):
    def f(x):
        lox.log({"key": jax.random.key(0), "half": x.astype(jnp.bfloat16), "tree": {"flag": x > 0, "n": 3}}, step=x)
        return x

    received, callback = collect()
    run(wrap(lox.tap(f, callback, **options)), jnp.float32(1.5))
    (logs,) = received
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(logs))
    assert all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in jax.tree.leaves(dict(logs)))
    assert logs["half"].dtype == jnp.bfloat16
    assert logs["tree"]["flag"].dtype == bool
    assert logs["key"].dtype == np.uint32


def test_values_stay_what_they_are_after_the_callback_returned():
    """Buffers that XLA uses again must not change what a callback kept."""
    _, received = tapped(jax.jit(loop), XS)
    run(jax.jit(lambda xs: (xs * 100).sum()), XS)
    assert values(received, "x") == XS.tolist()


def test_prefix_argnames_and_tags_select():
    def f(x):
        lox.log({"loss": x, "acc": x}, tags="metric")
        lox.log({"hidden": x}, explicit=True, tags="debug")
        return x

    assert [list(logs) for logs in tapped(f, 1.0)[1]] == [["loss", "acc"]]
    assert [list(logs) for logs in tapped(f, 1.0, argnames="l*")[1]] == [["loss"]]
    assert [list(logs) for logs in tapped(f, 1.0, tags="debug")[1]] == [["hidden"]]
    assert [list(logs) for logs in tapped(f, 1.0, argnames="hidden", prefix="train/")[1]] == [["train/hidden"]]
    assert tapped(f, 1.0, argnames="hidden", tags="metric")[1] == []


def test_where_decides_on_the_device():
    def f(xs):
        return jax.lax.map(lambda x: lox.log({"x": x}, where=x % 2 == 0)["x"], xs)

    deliveries, receiver = counting_receiver()
    run(jax.jit(lox.tap(f, receiver)), XS)
    assert [float(d.logs["x"]) for d in deliveries] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_records_arrive_in_program_order():
    def f(xs):
        def step(c, x):
            lox.log({"a": x})
            lox.log({"b": x})
            return c, x

        lox.log({"start": 0})
        jax.lax.scan(step, 0.0, xs)
        lox.log({"end": 1})
        return xs

    _, received = tapped(jax.jit(f), XS[:3])
    assert [next(iter(logs)) for logs in received] == ["start", "a", "b", "a", "b", "a", "b", "end"]


# --- batch and interval ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3, 5, 10, 64])
def test_a_batch_gathers_records_and_the_last_call_brings_the_rest(n):
    deliveries, receiver = counting_receiver()
    run(jax.jit(lox.tap(loop, receiver, batch=n)), XS)
    assert len(deliveries) == -(-10 // n)
    chunks = [d.logs.trim() for d in deliveries]
    assert values(chunks, "x") == [XS[i : i + n].tolist() for i in range(0, 10, n)]
    assert [logs.step["double"].tolist() for logs in chunks] == [list(range(10))[i : i + n] for i in range(0, 10, n)]
    assert all(logs.stacked == {"x", "double"} for logs in chunks)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 11])
def test_skipped_records_cost_no_host_call(n):
    deliveries, receiver = counting_receiver()
    run(jax.jit(lox.tap(loop, receiver, interval=n)), XS)
    assert [float(d.logs["x"]) for d in deliveries] == XS.tolist()[::n]
    assert [int(d.logs.step["x"]) for d in deliveries] == list(range(10))[::n]


def test_interval_and_batch_together():
    _, received = tapped(jax.jit(loop), XS, interval=3, batch=3)
    assert values(received, "x") == [[0.0, 3.0, 6.0], [9.0]]


def test_interval_counts_the_records_of_a_key_over_all_its_sites():
    def f(xs):
        for x in xs[:3]:
            lox.log({"x": x})
        jax.lax.map(lambda x: lox.log({"x": x})["x"], xs[3:])
        return xs

    assert values(tapped(f, XS, interval=2)[1], "x") == XS.tolist()[::2]


def test_batches_of_several_sites_keep_the_order_of_each():
    def f(xs):
        def step(c, x):
            lox.log({"a": x})
            lox.log({"b": -x})
            jax.lax.cond(x > 4, lambda: lox.log({"big": x})["big"], lambda: x)
            return c, x

        jax.lax.scan(step, 0.0, xs)
        return jax.lax.while_loop(lambda v: v < 3, lambda v: lox.log({"w": v})["w"] + 1, 0)

    _, received = tapped(jax.jit(f), XS, batch=4)
    assert values(received, "a") == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0]]
    assert values(received, "b") == [[0.0, -1.0, -2.0, -3.0], [-4.0, -5.0, -6.0, -7.0], [-8.0, -9.0]]
    assert values(received, "big") == [[5.0, 6.0, 7.0, 8.0], [9.0]]
    assert values(received, "w") == [[0, 1, 2]]


def test_an_empty_batch_is_not_delivered():
    def f(x):
        return jax.lax.cond(x > 0, lambda x: lox.log({"x": x})["x"], lambda x: x, x)

    assert tapped(f, -1.0, batch=4)[1] == []


# --- lanes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 4, 64])
@pytest.mark.parametrize("options, calls", [({}, 10), ({"batch": 4}, 3), ({"interval": 5}, 2)], ids=str)
def test_all_lanes_come_in_one_host_call(lanes, options, calls):
    deliveries, receiver = counting_receiver()
    xs = jnp.arange(lanes * 10.0).reshape(lanes, 10)
    run(jax.jit(jax.vmap(lox.tap(loop, receiver, **options))), xs)
    assert len(deliveries) == calls
    assert all(d.lanes == (lanes,) and d.alive.all() for d in deliveries)


def test_a_callback_gets_lane_after_lane():
    received, callback = collect()
    run(jax.vmap(lox.tap(loop, callback)), jnp.arange(6.0).reshape(3, 2))
    assert values(received, "x") == [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]


def test_values_that_all_lanes_share_are_delivered_to_each():
    def f(x):
        lox.log({"x": x, "shared": 7})
        return x

    received, callback = collect()
    run(jax.vmap(lox.tap(f, callback)), XS[:3])
    assert [(float(logs["x"]), int(logs["shared"])) for logs in received] == [(0.0, 7), (1.0, 7), (2.0, 7)]


def test_nested_lanes_are_in_one_call_too():
    deliveries, receiver = counting_receiver()
    run(jax.jit(jax.vmap(jax.vmap(lox.tap(lambda x: lox.log({"x": x})["x"], receiver)))), XS.reshape(2, 5))
    (delivery,) = deliveries
    assert delivery.lanes == (2, 5)
    assert [float(logs["x"]) for _, logs in delivery.split()] == XS.tolist()


def test_tap_of_vmap_calls_once_with_the_lane_axis_in_the_values():
    _, received = tapped(jax.vmap(lambda x: lox.log({"x": x})["x"]), XS)
    assert values(received, "x") == [XS.tolist()]


def branch(x):
    return jax.lax.cond(x > 6, lambda x: lox.log({"x": x})["x"], lambda x: x, x)


def three_ways(x):
    ways = [lambda x: lox.log({"even": x})["even"], lambda x: lox.log({"odd": x})["odd"]]
    return jax.lax.switch((x % 2).astype(int), ways, x)


def halve(x):
    return jax.lax.while_loop(lambda v: v > 2, lambda v: lox.log({"v": v})["v"] / 2, x)


def nested(x):
    def body(v):
        return jax.lax.cond(v > 4, lambda v: lox.log({"v": v})["v"] - 1, lambda v: v - 1, v)

    return jax.lax.cond(x > 5, lambda x: jax.lax.while_loop(lambda v: v > 3, body, x), lambda x: x, x)


@pytest.mark.every(5)
@pytest.mark.parametrize("fun", [branch, three_ways, halve, nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"interval": 2}], ids=str)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_lanes_that_are_not_there_deliver_nothing(fun, options, wrap):
    received: list[list[lox.logdict]] = [[] for _ in XS]

    def handle(delivery):
        for number, logs in delivery.split():
            received[number].append(logs.trim())

    run(wrap(jax.vmap(lambda i, x: lox.tap(fun, Receiver(handle, i), **options)(x))), jnp.arange(10), XS)
    for i, x in enumerate(XS):
        alone = tapped(fun, x, **options)[1]
        assert [str(logs) for logs in received[i]] == [str(logs) for logs in alone], f"lane {i}"


def test_jax_debug_callback_gets_lanes_wrong_where_tap_gets_them_right():
    """Why tap is no wrapper around jax.debug.callback: if this one day fails, JAX has changed."""
    seen = []

    def with_debug_callback(x):
        def taken(x):
            jax.debug.callback(lambda v: seen.append(float(v)), x)
            return x

        return jax.lax.cond(x > 6, taken, lambda x: x, x)

    run(jax.jit(jax.vmap(with_debug_callback)), XS)
    received, callback = collect()
    run(jax.jit(jax.vmap(lox.tap(branch, callback))), XS)
    assert sorted(seen) == XS.tolist()
    assert values(received, "x") == [7.0, 8.0, 9.0]


# --- exactly once ----------------------------------------------------------------------------------------------------


def layer(c, x):
    c = jnp.sin(c * x + 1)
    lox.log({"c": c})
    return c, None


@pytest.mark.parametrize("policy", [None, jax.checkpoint_policies.everything_saveable], ids=["default", "everything"])
@pytest.mark.parametrize("inside", [True, False], ids=["grad(tap)", "tap(grad)"])
@pytest.mark.parametrize("options", [{}, {"batch": 4}], ids=str)
def test_each_record_comes_once_where_values_are_computed_again(policy, inside, options):
    def f(xs):
        return jax.lax.scan(jax.checkpoint(layer, policy=policy), 1.0, xs)[0]

    received, callback = collect()
    transform = jax.grad(lox.tap(f, callback, **options)) if inside else lox.tap(jax.grad(f), callback, **options)
    run(jax.jit(transform), XS)
    rows = sum(received, lox.logdict())
    np.testing.assert_allclose(rows["c"], lox.spool(f)(XS)[1]["c"], rtol=1e-6)


def test_tapped_twice_is_delivered_to_both():
    first, outer = collect()
    second, inner = collect()
    run(lox.tap(lox.tap(loop, inner), outer), XS[:2])
    assert values(first, "x") == values(second, "x") == [0.0, 1.0]


# --- nothing lost ----------------------------------------------------------------------------------------------------


def test_everything_has_arrived_when_the_barrier_returns():
    received, callback = collect()
    for _ in range(5):
        jax.jit(lox.tap(loop, callback, batch=3))(XS)
    jax.effects_barrier()
    assert len(sum(received, lox.logdict())["x"]) == 50


def test_ordered_taps_keep_their_order():
    received, callback = collect()
    run(jax.jit(lox.tap(loop, callback, ordered=True)), XS)
    assert values(received, "x") == XS.tolist()


def test_ordered_is_an_error_under_vmap():
    with pytest.raises(lox.LoxError, match=r"ordered=True.*vmap"):
        jax.vmap(lox.tap(loop, print, ordered=True))(XS.reshape(2, 5))


def test_ordered_is_an_error_on_several_devices():
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    with pytest.raises(lox.LoxError, match=r"ordered=True.*device"):
        run(jax.jit(lox.tap(lambda x: lox.log({"x": x})["x"], print, ordered=True)), jax.device_put(XS, sharding))


def test_records_of_100_mb_arrive_whole():
    def f(seed):
        big = jnp.arange(25 * 1024 * 1024, dtype=jnp.float32) + seed
        lox.log({"big": big})
        return big.sum()

    _, (logs,) = tapped(jax.jit(f), jnp.float32(3))
    assert logs["big"].nbytes == 100 * 1024 * 1024
    assert logs["big"][0] == 3
    np.testing.assert_array_equal(logs["big"], np.arange(25 * 1024 * 1024, dtype=np.float32) + np.float32(3))


# --- compiled once ---------------------------------------------------------------------------------------------------


def test_the_same_callback_does_not_trace_or_compile_again():
    traces = []

    @jax.jit
    def f(x):
        traces.append(None)
        lox.log({"x": x})
        return x + 1

    received, callback = collect()
    with jax.log_compiles(False):
        for _ in range(3):
            run(lox.tap(f, callback), jnp.float32(1))
    assert len(traces) == 1
    assert len(received) == 3
    with count_compilations() as compiled:
        run(lox.tap(f, callback), jnp.float32(1))
    assert compiled == []


def count_compilations():
    """A context whose value is a list of all compilations that happen in it."""
    import contextlib

    @contextlib.contextmanager
    def counting():
        events: list[str] = []

        def listen(event, duration, **_):
            if event == "/jax/core/compile/backend_compile_duration":
                events.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield events
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)

    return counting()


def test_two_callbacks_do_not_share():
    first, one = collect()
    second, other = collect()
    jitted = jax.jit(loop)
    for callback in (one, other, one):
        run(lox.tap(jitted, callback), XS[:2])
    assert len(first) == 4
    assert len(second) == 2


def test_equal_bound_methods_are_one_callback():
    class Recorder:
        def __init__(self):
            self.received = []

        def callback(self, logs):
            self.received.append(logs)

    traces = []

    def f(x):
        traces.append(None)
        lox.log({"x": x})
        return x

    recorder, other = Recorder(), Recorder()
    for each in (recorder, recorder, other):
        run(lox.tap(f, each.callback), jnp.float32(1))
    assert (len(recorder.received), len(other.received)) == (2, 1)
    assert len(traces) <= 2


def test_partial_callbacks_work():
    received = []
    run(lox.tap(loop, functools.partial(received.append)), XS[:2])
    assert len(received) == 2
