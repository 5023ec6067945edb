"""How many host calls a tapped program makes, and with how many operands: records of one place leave the device together."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._host.delivery import Receiver
from lox._storage import packing
from tests.core.checks import tapped

XS = jnp.arange(6.0)


def host_calls(fun, *args):
    """For each host call in the lowered program, the number of its operands."""
    text = jax.jit(fun).lower(*args).as_text()
    return [found.count("%") for found in re.findall(r"custom_call @xla_ffi_python_cpu_callback\(([^)]*)\)", text)]


def conditions(fun, *args):
    return jax.jit(fun).lower(*args).as_text().count("stablehlo.case")


def ignore(logs):
    del logs


def names(received):
    return [next(iter(logs)) for logs in received]


def in_a_scan(*marks):
    def f(xs):
        def body(carry, x):
            for mark in marks:
                mark(x)
            return carry + x, x

        return jax.lax.scan(body, 0.0, xs)

    return f


def a(x):
    lox.log({"a": x})


def b(x):
    lox.log({"b": x.astype(int), "c": {"d": x > 2, "e": jnp.stack([x, -x])}}, step=x)


def even(x):
    lox.log({"even": x}, where=x % 2 == 0)


def large(x):
    lox.log({"large": jnp.full(100, x)})


def _names(marks):
    return "-".join(mark.__name__ for mark in marks)


@pytest.mark.parametrize("marks", [(a, b), (a, b, a, b), (a, even), (even, a, b)], ids=_names)
def test_what_one_iteration_logs_is_one_call_of_one_operand(marks):
    fun = in_a_scan(*marks)
    assert host_calls(lox.tap(fun, ignore), XS) == [1]
    # A record that may not be there costs no condition in the program if another one certainly is.
    assert conditions(lox.tap(fun, ignore), XS) == 0
    expected = [mark(np.float32(0)) or mark.__name__ for mark in marks]
    by_hand = [name for x in range(6) for name in expected if name != "even" or x % 2 == 0]
    assert names(tapped(jax.jit(fun), XS)[1]) == by_hand


def test_records_keep_their_values_and_steps():
    _, received = tapped(jax.jit(in_a_scan(a, b, even)), XS[:3])
    assert [str(logs) for logs in (received[0], received[2])] == ["{'a': 0.0}", "{'even': 0.0}"]
    assert [(int(logs["b"]), bool(logs["c"]["d"])) for logs in received if "b" in logs] == [
        (i, False) for i in range(3)
    ]
    assert [float(logs.step["b"]) for logs in received if "b" in logs] == [0.0, 1.0, 2.0]
    assert [logs["c"]["e"].tolist() for logs in received if "c" in logs] == [[x, -x] for x in (0.0, 1.0, 2.0)]


def test_records_that_may_all_be_missing_are_one_call_in_one_condition():
    def odd(x):
        lox.log({"odd": x}, where=x % 2 == 1)

    def third(x):
        lox.log({"third": x}, where=x % 3 == 0)

    fun = in_a_scan(odd, third)
    assert host_calls(lox.tap(fun, ignore), XS) == [1]
    assert conditions(lox.tap(fun, ignore), XS) == 1
    received = tapped(jax.jit(fun), XS)[1]
    assert [dict(logs) for logs in received] == [{"third": 0}, {"odd": 1}, {"odd": 3}, {"third": 3}, {"odd": 5}]


@pytest.mark.parametrize("interval", [1, 2, 4])
def test_an_interval_of_several_marks_is_one_call(interval):
    fun = in_a_scan(a, b)
    assert host_calls(lox.tap(fun, ignore, interval=interval), XS) == [1]
    received = tapped(jax.jit(fun), XS, interval=interval)[1]
    assert names(received) == ["a", "b"] * -(-6 // interval)
    assert [float(logs["a"]) for logs in received if "a" in logs] == XS.tolist()[::interval]


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint], ids=["jit", "checkpoint"])
def test_a_function_that_is_called_between_makes_its_own_call(wrap):
    fun = in_a_scan(a, wrap(b), a)
    assert len(host_calls(lox.tap(fun, ignore), XS)) == 3
    assert names(tapped(fun, XS)[1]) == ["a", "b", "a"] * 6


def test_what_is_logged_before_a_loop_does_not_wait_for_its_end():
    def f(xs):
        lox.log({"start": xs[0]})
        total = jax.lax.fori_loop(0, 1000, lambda i, x: jnp.sin(x), xs.sum())
        lox.log({"end": total})
        lox.log({"last": total})

    assert len(host_calls(lox.tap(f, ignore), XS)) == 2
    assert names(tapped(jax.jit(f), XS)[1]) == ["start", "end", "last"]


def test_large_values_do_not_wait():
    fun = in_a_scan(a, a, large, a)
    assert len(host_calls(lox.tap(fun, ignore), XS)) == 3
    assert names(tapped(jax.jit(fun), XS)[1]) == ["a", "a", "large", "a"] * 6


def test_very_many_marks_are_a_few_calls():
    fun = in_a_scan(*[a] * 200)
    assert len(host_calls(lox.tap(fun, ignore), XS)) == 4
    assert names(tapped(jax.jit(fun), XS[:2])[1]) == ["a"] * 400


def test_branches_make_their_own_calls():
    def either(x):
        jax.lax.cond(x > 2, lambda: (a(x), a(-x), 0.0)[2], lambda: (b(x), 0.0)[1])

    fun = in_a_scan(a, either, b)
    assert len(host_calls(lox.tap(fun, ignore), XS)) == 4
    received = names(tapped(jax.jit(fun), XS)[1])
    assert received == ["a", "b", "b"] * 3 + ["a", "a", "a", "b"] * 3


def test_lanes_keep_their_own_conditions():
    received = [[], [], []]

    def handle(delivery):
        for lane, logs in delivery.split():
            received[lane].append(dict(logs))

    def one(lane, xs):
        return lox.tap(in_a_scan(a, even), Receiver(handle, lane))(xs)

    jax.jit(jax.vmap(one))(jnp.arange(3), jnp.arange(6.0).reshape(3, 2))
    jax.effects_barrier()
    assert received[0] == [{"a": 0}, {"even": 0}, {"a": 1}]
    assert received[1] == [{"a": 2}, {"even": 2}, {"a": 3}]
    assert received[2] == [{"a": 4}, {"even": 4}, {"a": 5}]


def test_lanes_that_have_left_a_loop_deliver_nothing():
    def f(x):
        def body(x):
            lox.log({"x": x})
            lox.log({"half": x / 2}, where=x > 4)
            return x / 2

        return jax.lax.while_loop(lambda x: x > 2, body, x)

    received = {0: [], 1: [], 2: []}

    def handle(delivery):
        for lane, logs in delivery.split():
            received[int(lane)] += logs.items()

    jax.jit(jax.vmap(lambda i, x: lox.tap(f, Receiver(handle, i))(x)))(jnp.arange(3), jnp.array([1.0, 4.0, 8.0]))
    jax.effects_barrier()
    assert received == {0: [], 1: [("x", 4)], 2: [("x", 8), ("half", 4), ("x", 4)]}


def test_a_rule_for_lanes_makes_its_records_in_order():
    @jax.custom_batching.custom_vmap
    def both(x):
        lox.log({"first": x})
        lox.log({"second": x})
        return x

    @both.def_vmap
    def _(size, batched, x):
        del size, batched
        lox.log({"first": x})
        lox.log({"second": x})
        return x, True

    received = []
    jax.jit(jax.vmap(lox.tap(lambda x: jax.lax.fori_loop(0, 20, lambda i, x: both(x), x), received.append)))(XS[:2])
    jax.effects_barrier()
    assert names(received) == ["first", "first", "second", "second"] * 20


def test_an_ordered_tap_is_one_call_too():
    fun = in_a_scan(a, b)
    assert len(host_calls(lox.tap(fun, ignore, ordered=True), XS)) == 1
    assert names(tapped(jax.jit(fun), XS, ordered=True)[1]) == ["a", "b"] * 6


def test_gradients_are_marked_in_the_calls_of_the_backward_pass():
    def f(xs):
        def body(carry, x):
            x = lox.log_grad(x, "dx")
            lox.log({"x": x})
            lox.log({"carry": carry})
            return carry + x * x, None

        return jax.lax.scan(body, 0.0, xs)[0]

    received = tapped(jax.jit(jax.grad(f)), XS)[1]
    assert names(received) == ["x", "carry"] * 6 + ["dx"] * 6
    received = []
    jax.jit(jax.grad(lox.tap(f, received.append)))(XS)
    jax.effects_barrier()
    assert [name for name in names(received) if name != "dx"] == ["x", "carry"] * 6


def test_a_transposed_call_keeps_the_records_that_are_not_transposed():
    received = []

    def f(x, scale):
        lox.log({"x": x})
        lox.log({"scale": scale})
        return x * scale

    (out,) = jax.jit(lambda ct: jax.linear_transpose(lambda x: lox.tap(f, received.append)(x, 3.0), 1.0)(ct))(2.0)
    jax.effects_barrier()
    assert out == 6.0
    assert [dict(logs) for logs in received] == [{"scale": 3.0}]


def test_a_wide_value_is_one_of_the_words():
    with jax.enable_x64(True):

        def wide(x):
            lox.log({"wide": x.astype(jnp.float64) + 1e-12})

        fun = in_a_scan(a, wide)
        assert host_calls(lox.tap(fun, ignore), XS) == [1]
        received = tapped(jax.jit(fun), XS)[1]
    assert [float(logs["wide"]) for logs in received if "wide" in logs] == [x + 1e-12 for x in range(6)]


# --- batches and intervals, where the loop says beforehand when there is something to send ------------------------------

LONG = jnp.arange(10.0)


GPU = {"batches": packing._ELSEWHERE.batches, "intervals": packing._ELSEWHERE.intervals}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Loops are cut into chunks, as for devices that wait for the host at each condition."""
    monkeypatch.setitem(packing._PACKING, "cpu", dataclasses.replace(packing._PACKING["cpu"], **GPU))


def stepping(x):
    lox.log({"x": x, "double": 2 * x}, step=x)


def in_a_function(x):
    jax.jit(stepping)(x)


def reverse_scan(xs):
    return jax.lax.scan(lambda carry, x: (carry + x, (stepping(x), x)[1]), 0.0, xs, reverse=True)


LOOPS = {
    "scan": in_a_scan(stepping),
    "two marks": in_a_scan(a, stepping),
    "a function": in_a_scan(in_a_function),
    "reverse": reverse_scan,
    "map": lambda xs: jax.lax.map(lambda x: (stepping(x), x)[1], xs),
    "fori_loop": lambda xs: jax.lax.fori_loop(0, 10, lambda i, c: (stepping(xs[i]), c + xs[i])[1], 0.0),
}


@pytest.mark.every(5)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"batch": n} for n in (1, 3, 5, 10, 64)] + [{"batch": 2, "interval": 3}], ids=str)
@pytest.mark.parametrize("fun", LOOPS.values(), ids=LOOPS)
def test_a_batch_is_sent_between_chunks_of_the_loop(fun, options):
    marks = 2 if fun is LOOPS["two marks"] else 1
    assert conditions(lox.tap(fun, ignore, **options), LONG) == 0
    out, received = tapped(jax.jit(fun), LONG, **options)
    jax.tree.map(np.testing.assert_array_equal, out, jax.jit(fun)(LONG))
    order = LONG[::-1] if fun is reverse_scan else LONG
    kept, size = order[:: options.get("interval", 1)].tolist(), options["batch"]
    batches = [logs for logs in received if "x" in logs]
    assert [logs["x"].tolist() for logs in batches] == [kept[i : i + size] for i in range(0, len(kept), size)]
    assert all(logs.step["double"].tolist() == logs["x"].tolist() for logs in batches)
    if marks == 2:
        assert np.concatenate([logs["a"] for logs in received if "a" in logs]).tolist() == kept


@pytest.mark.every(5, 2)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("interval", [1, 2, 3, 5, 10, 64])
@pytest.mark.parametrize("fun", LOOPS.values(), ids=LOOPS)
def test_a_record_that_is_due_is_sent_after_a_chunk_of_the_loop(fun, interval):
    assert conditions(lox.tap(fun, ignore, interval=interval), LONG) == 0
    out, received = tapped(jax.jit(fun), LONG, interval=interval)
    jax.tree.map(np.testing.assert_array_equal, out, jax.jit(fun)(LONG))
    kept = (LONG[::-1] if fun is reverse_scan else LONG)[::interval].tolist()
    assert names(received) == (["a", "x"] if fun is LOOPS["two marks"] else ["x"]) * len(kept)
    found = [logs for logs in received if "x" in logs]
    assert [float(logs["x"]) for logs in found] == kept
    assert [float(logs.step["double"]) for logs in found] == kept
    assert all(logs.counts == {"x": 1, "double": 1} for logs in found)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("ordered", [False, True])
def test_records_of_a_chunk_and_those_around_the_loop_are_in_program_order(ordered):
    def wide(x):
        lox.log({"wide": jnp.full(100, x)})

    def f(xs):
        a(xs[0])
        out = in_a_scan(stepping, b, wide, in_a_function_of_its_own)(xs)
        even(xs[0])
        jax.lax.map(lambda x: lox.log({"z": x}), xs)
        return out

    def in_a_function_of_its_own(x):
        jax.jit(lambda x: lox.log({"inner": x}))(x)

    each = ["x", "b", "wide", "inner"]
    # Only the two marks outside the loops ask whether they are due.
    assert conditions(lox.tap(f, ignore, interval=4, ordered=ordered), LONG) == 2
    received = tapped(jax.jit(f), LONG, interval=4, ordered=ordered)[1]
    assert names(received) == ["a", *each * 3, "even", *["z"] * 3]
    assert [logs["wide"][7] for logs in received if "wide" in logs] == [0, 4, 8]
    assert [float(logs["z"]) for logs in received if "z" in logs] == [0, 4, 8]


def _step(carry, x):
    lox.log({"x": x})
    return carry + x, None


SHARED_BODIES = {
    "an empty loop": lambda xs: jax.lax.scan(_step, jax.lax.scan(_step, 0.0, xs[:0])[0], xs)[0],
    "a short loop": lambda xs: jax.lax.scan(_step, jax.lax.scan(_step, 0.0, xs[:3])[0], xs)[0],
    "in another loop": lambda xs: jax.lax.scan(
        lambda carry, x: jax.lax.scan(_step, carry, x[None]), jax.lax.scan(_step, 0.0, xs)[0], 10 * xs
    )[0],
    "in two loops": lambda xs: [
        jax.lax.scan(lambda carry, x: jax.lax.scan(_step, carry, jnp.stack([x, -x])), 0.0, xs[:n])[0] for n in (2, 3)
    ],
}


@pytest.mark.every(3)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "options", [{"interval": 2}, {"interval": 4}, {"batch": 2}, {"batch": 3, "interval": 2}], ids=str
)
@pytest.mark.parametrize("fun", SHARED_BODIES.values(), ids=SHARED_BODIES)
def test_loops_of_one_function_are_cut_each_by_its_own_length(fun, options):
    """JAX shares their body."""
    rows = lox.spool(fun, interval=options.get("interval"))(LONG)[1]["x"]
    received = tapped(fun, LONG, **options)[1]
    assert np.concatenate([np.atleast_1d(logs["x"]) for logs in received]).tolist() == rows.tolist()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_key_of_two_loops_is_in_program_order_in_both():
    def f(xs):
        jax.lax.map(lambda x: lox.log({"b": x}), xs)
        jax.lax.map(lambda x: (lox.log({"a": x}), lox.log({"b": -x})), xs)

    assert conditions(lox.tap(f, ignore, interval=5), LONG) == 0
    received = tapped(jax.jit(f), LONG, interval=5)[1]
    found = [(name, float(logs[name])) for name, logs in zip(names(received), received, strict=True)]
    assert found == [("b", 0), ("b", 5), ("a", 0), ("b", 0), ("a", 5), ("b", -5)]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("both", [False, True], ids=["one key", "two keys in one of them"])
def test_a_loop_sends_only_what_its_own_calls_have_recorded(both):
    def f(xs):
        jax.lax.map(lambda x: lox.log({"a": x, "b": -x} if both else {"b": -x}), xs)
        jax.lax.map(lambda x: lox.log({"b": x}), xs)

    rows = LONG.tolist()
    batches = [logs["b"].tolist() for logs in tapped(jax.jit(f), LONG, batch=5)[1]]
    # Batches of different calls are in no order.
    assert sorted(batches) == sorted([[-x for x in rows[:5]], [-x for x in rows[5:]], rows[:5], rows[5:]])
    # With an interval, a key that another call records too is delivered by itself, in the same host call.
    assert conditions(lox.tap(f, ignore, interval=5), LONG) == 0
    assert len(host_calls(lox.tap(f, ignore, interval=5), LONG)) == 2
    received = tapped(jax.jit(f), LONG, interval=5)[1]
    assert [float(logs["b"]) for logs in received if "b" in logs] == [0, -5, 0, 5]
    assert names(received) == (["a", "b"] if both else ["b"]) * 2 + ["b"] * 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_call_that_is_not_selected_does_not_part_those_around_it():
    fun = in_a_scan(a, even, stepping)
    assert host_calls(lox.tap(fun, ignore, argnames=("a", "x"), interval=5), LONG) == [1]
    received = tapped(jax.jit(fun), LONG, argnames=("a", "x"), interval=5)[1]
    assert names(received) == ["a", "x", "a", "x"]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"batch": 2}, {"interval": 2}], ids=str)
def test_a_rule_may_run_instead_of_a_function_in_a_loop_of_chunks(options):
    @jax.custom_vjp
    def g(x):
        lox.log({"function": x})
        return jnp.sin(x)

    g.defvjp(lambda x: (lox.log({"forward": x}), jnp.sin(x), jnp.cos(x))[1:], lambda cos, ct: (cos * ct,))

    def f(x):
        return jax.lax.scan(lambda c, _: (g(c), None), x, None, length=4)[0]

    for transformed in (f, jax.grad(f)):
        every, some = tapped(jax.jit(transformed), 1.0)[1], tapped(jax.jit(transformed), 1.0, **options)[1]
        (key,) = {name for logs in every for name in logs}
        values = [float(logs[key]) for logs in every]
        if "batch" in options:
            assert [logs[key].tolist() for logs in some] == [values[:2], values[2:]]
        else:
            assert [float(logs[key]) for logs in some] == values[::2]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_a_chunk_sends_is_one_call_of_one_operand():
    assert host_calls(lox.tap(in_a_scan(a, stepping), ignore, interval=5), LONG) == [1]


def epochs(xs):
    return jax.lax.map(in_a_scan(stepping), xs + jnp.arange(3.0)[:, None])


NESTED = {
    "in a scan": epochs,
    "in a while loop": lambda xs: jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, in_a_scan(stepping)(c[1])[1]), (0, xs)
    ),
    "in a branch": lambda xs: jax.lax.cond(xs[0] < 1, in_a_scan(stepping), lambda xs: (xs[0], xs), xs),
    "called twice": lambda xs: (in_a_scan(stepping)(xs), in_a_scan(stepping)(xs[:5])),
}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"interval": 5}, {"batch": 5}], ids=str)
@pytest.mark.parametrize("name", NESTED)
def test_a_loop_of_whole_chunks_asks_nothing_wherever_it_is(name, options):
    fun = NESTED[name]
    assert conditions(lox.tap(fun, ignore, **options), LONG) == (name == "in a branch")
    single = [float(logs["x"]) for logs in tapped(jax.jit(fun), LONG)[1]]
    received = tapped(jax.jit(fun), LONG, **options)[1]
    if "batch" in options:
        assert [logs["x"].tolist() for logs in received] == [single[i : i + 5] for i in range(0, len(single), 5)]
    else:
        assert [float(logs["x"]) for logs in received] == single[::5]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_loop_in_a_loop_is_sent_by_one_of_them():
    def f(xs):
        return jax.lax.map(lambda x: in_a_scan(stepping)(x[None])[0], xs)

    for options in ({"batch": 1}, {"batch": 4}, {"interval": 2}):
        received = tapped(jax.jit(f), LONG[3:4], **options)[1]
        assert [float(np.squeeze(logs["x"])) for logs in received] == [3.0]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_records_of_all_types_reach_the_end_of_a_chunk():
    def odd(x):
        lox.log({"bool": x > 2, "narrow": x.astype(jnp.bfloat16), "key": jax.random.key(x.astype(int))})
        lox.log(
            {"vector": jnp.full(3, x, jnp.int8), "complex": x + 1j, "matrix": jnp.full((9, 9), x), "one": 1}, step=x
        )
        with jax.enable_x64(True):
            lox.log({"wide": x.astype(jnp.float64) + 1e-12})

    fun = in_a_scan(odd)
    every, some = tapped(jax.jit(fun), LONG)[1], tapped(jax.jit(fun), LONG, interval=4)[1]
    expected = [logs for i in (0, 4, 8) for logs in every[3 * i : 3 * i + 3]]
    assert [logs.steps for logs in some] == [logs.steps for logs in expected]
    for found, wanted in zip(some, expected, strict=True):
        assert found.keys() == wanted.keys()
        for key in found:
            assert found[key].dtype == wanted[key].dtype
            np.testing.assert_array_equal(found[key], wanted[key])


def sometimes(x):
    jax.lax.cond(x % 3 == 0, lambda: (stepping(x), 0)[1], lambda: 0)


def in_lanes(xs):
    def body(c, x):
        lox.log({"x": jnp.stack([x, -x])})
        jax.vmap(lambda x: lox.log({"own": x}))(jnp.stack([x, 2 * x]))
        return c, None

    return jax.lax.scan(body, 0.0, xs)[0]


def with_its_own_records(xs):
    def body(c, x):
        a(x)
        in_a_scan(stepping)(xs + x)
        even(x)
        return c + x, None

    return jax.lax.scan(body, 0.0, xs)[0]


# Loops in which the number of records before an iteration is not known, and some that are in such loops.
UNSTEADY = {
    "where": in_a_scan(even),
    "some of two": in_a_scan(a, even),
    "twice": in_a_scan(a, a),
    "more than n times": in_a_scan(a, a, a, a, a),
    "in a branch of the body": in_a_scan(a, sometimes),
    "in lanes": in_lanes,
    "in a loop": lambda xs: jax.lax.map(lambda x: in_a_scan(stepping)(xs + x)[0], xs),
    "in a short loop": lambda xs: jax.lax.map(lambda x: in_a_scan(stepping)(xs[:3] + x)[0], xs),
    "with records of its own": with_its_own_records,
    "recorded before": lambda xs: (stepping(xs[0]), in_a_scan(stepping)(xs), stepping(xs[1])),
    "two lengths": lambda xs: (in_a_scan(stepping)(xs[:8]), in_a_scan(stepping)(xs[:7])),
    "called twice": lambda xs: (in_a_scan(stepping)(xs), in_a_scan(stepping)(xs)),
    "unrolled": lambda xs: jax.lax.scan(lambda c, x: (c, stepping(x)), 0.0, xs, unroll=2)[0],
    "unrolled as a whole": lambda xs: jax.lax.scan(lambda c, x: (c, stepping(x)), 0.0, xs, unroll=10)[0],
}


def conditions_that_are_left(name, n):
    """With an interval, and with batches."""
    if name == "in a branch of the body":  # its own, also in the iterations that are left after whole chunks
        return [1 + (n == 4)] * 2
    if name == "more than n times" and n < 5:  # a buffer is full more than once in an iteration
        return [0, 6]
    # Outside of the loop, records ask whether they are due or fill their buffer, and the program whether there is a rest.
    return [2, 3] if name == "recorded before" else [0, 0]


@pytest.mark.every(3)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("n", [2, 4, 5, 64])
@pytest.mark.parametrize("name", UNSTEADY)
def test_no_loop_asks_whatever_it_records(name, n):
    fun = UNSTEADY[name]
    asked = [conditions(lox.tap(fun, ignore, **options), LONG) for options in ({"interval": n}, {"batch": n})]
    assert asked == conditions_that_are_left(name, n)
    single, together, some = (
        tapped(jax.jit(fun), LONG, **options)[1] for options in ({}, {"batch": n}, {"interval": n})
    )
    for key in {key for logs in single for key in logs}:
        every = [logs[key].tolist() for logs in single if key in logs]
        assert np.concatenate([logs[key] for logs in together if key in logs]).tolist() == every
        assert all(len(logs[key]) <= n for logs in together if key in logs)
        assert [logs[key].tolist() for logs in some if key in logs] == every[::n]
    in_order = {key: iter(range(10**6)) for logs in single for key in logs}
    due = [key for logs in single for key in logs if next(in_order[key]) % n == 0]
    assert [key for logs in some for key in logs] == due


@pytest.mark.usefixtures("as_on_a_gpu")
def test_records_of_one_loop_that_are_due_at_different_times_are_in_program_order():
    fun = in_a_scan(a, even, stepping)
    received = tapped(jax.jit(fun), LONG, interval=2)[1]
    found = [(name, float(logs[name])) for name, logs in zip(names(received), received, strict=True)]
    each = [[("a", x), ("x", x)] if x % 4 else [("a", x), ("even", x), ("x", x)] for x in range(0, 10, 2)]
    assert found == [record for records in each for record in records]


def test_on_a_cpu_only_batches_of_small_steps_are_sent_between_chunks():
    """A last chunk that is shorter is compiled by itself, and a record that is due is not kept back."""

    def large(x):
        stepping(x)
        for _ in range(100):
            x = jnp.sin(x)

    assert conditions(lox.tap(in_a_scan(stepping), ignore, batch=4), LONG) == 0
    assert conditions(lox.tap(in_a_scan(even), ignore, batch=4), LONG) == 2
    assert conditions(lox.tap(in_a_scan(large), ignore, batch=4), LONG) == 2
    assert conditions(lox.tap(in_a_scan(stepping), ignore, interval=4), LONG) == 1


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_loop_that_returns_much_is_not_copied_for_the_rest_of_a_batch():
    def f(xs):
        return jax.lax.scan(lambda c, x: (c, (stepping(x), jnp.full(2**20, x))[1]), 0.0, xs)[1]

    for n in (4, 5, 64):
        assert [conditions(lox.tap(f, ignore, **options), LONG) for options in ({"interval": n}, {"batch": n})] == [
            0,
            0,
        ]
    # Chunks of two iterations, because four do not divide ten.
    assert [len(logs["x"]) for logs in tapped(jax.jit(f), LONG, batch=4)[1]] == [2] * 5
    # Seven are no whole chunks of any size.
    assert conditions(lox.tap(f, ignore, interval=4), LONG[:7]) == 1
    assert conditions(lox.tap(f, ignore, batch=4), LONG[:7]) == 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_batches_between_chunks_have_lanes_and_derivatives():
    fun = LOOPS["two marks"]
    lanes = jnp.stack([LONG, -LONG])
    received = {0: [], 1: []}

    def handle(delivery):
        for lane, logs in delivery.split():
            received[int(lane)] += [logs.trim()["x"].tolist()] if "x" in logs else []

    jax.jit(jax.vmap(lambda i, xs: lox.tap(fun, Receiver(handle, i), batch=4)(xs)))(jnp.arange(2), lanes)
    jax.effects_barrier()
    for lane, xs in enumerate(lanes.tolist()):
        assert received[lane] == [xs[:4], xs[4:8], xs[8:]]

    def loss(xs):
        return jax.lax.scan(lambda c, x: (c * 0.5 + x**2, (stepping(x), c)[1]), 1.0, xs)[1].sum()

    received = []
    gradient = jax.jit(jax.grad(lox.tap(loss, received.append, batch=4)))(LONG)
    jax.effects_barrier()
    np.testing.assert_allclose(gradient, jax.grad(loss)(LONG), rtol=1e-6)
    assert [logs["x"].tolist() for logs in received] == [LONG[:4].tolist(), LONG[4:8].tolist(), LONG[8:].tolist()]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_records_after_chunks_have_lanes_and_derivatives():
    fun = LOOPS["two marks"]
    received = {0: [], 1: []}

    def handle(delivery):
        for lane, logs in delivery.split():
            received[int(lane)] += [float(logs["x"])] if "x" in logs else []

    def one(lane, xs):
        tap = lox.tap(fun, Receiver(handle, lane), interval=4)
        return jax.lax.cond(lane < 1, tap, lambda xs: (0.0, xs), xs)

    jax.jit(jax.vmap(one))(jnp.arange(2), jnp.stack([LONG, -LONG]))
    jax.effects_barrier()
    assert received == {0: [0, 4, 8], 1: []}

    def loss(xs):
        return jax.lax.scan(lambda c, x: (c * 0.5 + x**2, (stepping(x), c)[1]), 1.0, xs)[1].sum()

    for transformed in (
        lambda tap: jax.grad(tap(loss)),
        lambda tap: tap(jax.grad(loss)),
        lambda tap: jax.grad(jax.checkpoint(tap(loss))),
    ):
        found = []
        gradient = jax.jit(transformed(lambda f, found=found: lox.tap(f, found.append, interval=4)))(LONG)
        jax.effects_barrier()
        np.testing.assert_allclose(gradient, jax.grad(loss)(LONG), rtol=1e-6)
        assert [float(logs["x"]) for logs in found] == [0, 4, 8]


# --- found by a hostile reader ---------------------------------------------------------------------------------------


def report(**values):
    """One line that logs other keys each time."""
    lox.log(values)


def from_one_line(xs):
    def body(c, x):
        report(loss=x, a=c)
        report(loss=-x, b=c)
        report(loss=10 * x, c=c)
        return c + x, None

    return jax.lax.scan(body, 0.0, xs)[0]


def from_one_line_in_a_branch(xs):
    def body(c, x):
        report(loss=x, a=c)
        jax.lax.cond(x % 2 == 0, lambda: report(loss=-x, b=x), lambda: None)
        return c, None

    return jax.lax.scan(body, 0.0, xs)[0]


def from_one_line_in_a_loop(xs):
    def body(c, x):
        report(loss=x, a=c)
        return jax.lax.fori_loop(0, 3, lambda i, c: (report(loss=10 * x + i, b=i), c)[1], c), None

    return jax.lax.scan(body, 0.0, xs)[0]


def from_one_line_until(xs):
    def body(c, x):
        report(loss=x, a=c)
        return jax.lax.while_loop(lambda i: i < x, lambda i: (report(loss=100 * x + i, b=i), i + 1)[1], 0.0), None

    return jax.lax.scan(body, 0.0, xs)[0]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"batch": 2}, {"batch": 4}, {"interval": 2}, {"interval": 2, "batch": 2}], ids=str)
@pytest.mark.parametrize(
    "fun", [from_one_line, from_one_line_in_a_branch, from_one_line_in_a_loop, from_one_line_until]
)
def test_calls_from_one_line_do_not_take_each_others_place(fun, options):
    everything = tapped(jax.jit(fun), LONG, argnames="loss")[1]
    expected = [float(logs["loss"]) for logs in everything][:: options.get("interval", 1)]
    received = tapped(jax.jit(fun), LONG, argnames="loss", **options)[1]
    assert [logs.counts["loss"] for logs in received] == [np.size(logs["loss"]) for logs in received]
    found = np.concatenate([np.ravel(logs["loss"]) for logs in received]).tolist()
    assert sorted(found) == sorted(expected)
    assert "batch" in options or found == expected  # each call has its own batches


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_key_that_is_also_recorded_in_a_loop_of_unknown_length_has_batches():
    def fun(xs):
        def body(c, x):
            lox.log({"x": c})
            return jax.lax.while_loop(lambda c: c < x, lambda c: (lox.log({"x": c}), c + 1)[1], c), None

        return jax.lax.scan(body, 0.0, xs)[0]

    every = [float(logs["x"]) for logs in tapped(jax.jit(fun), LONG)[1]]
    received = tapped(jax.jit(fun), LONG, interval=2, batch=2)[1]
    assert sorted(np.concatenate([logs["x"] for logs in received]).tolist()) == sorted(every[::2])


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("options", [{"interval": 3}, {"batch": 3}], ids=str)
def test_a_loop_may_return_what_only_an_export_knows_the_size_of(options):
    (size,) = jax.export.symbolic_shape("b")
    given = jax.ShapeDtypeStruct((size,), jnp.float32)

    def fun(x):
        return jax.lax.scan(lambda c, i: (lox.log({"sum": c.sum()}), (c + i, c))[1], x, jnp.arange(10.0))

    expected = jax.eval_shape(fun, given)
    assert jax.eval_shape(jax.jit(lox.tap(fun, ignore, **options)), given) == expected


@pytest.mark.compiled_as_by_users
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("interval", [3, 4, 5])
def test_iterations_that_are_left_change_no_bit(interval):
    def fun(xs):
        return jax.lax.scan(lambda c, x: (c, (lox.log({"x": x}), jnp.sin(x))[1]), 0.0, xs)[1].sum()

    xs = jnp.arange(11.0)
    assert jax.jit(lox.tap(fun, ignore, interval=interval))(xs) == jax.jit(fun)(xs)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("interval", [2, 3])
def test_iterations_that_are_left_see_the_types_of_the_first(interval):
    """The carry is a Python number, and after an iteration a float32."""

    def fun(x):
        return jax.lax.scan(lambda c, i: (lox.log({"i": i}), (c + i, c))[1], x, jnp.arange(4.0))[1].sum()

    for transform in (jax.grad, lambda f: f):
        expected, found = (jax.jit(transform(f))(1.0) for f in (fun, lox.tap(fun, ignore, interval=interval)))
        assert found.weak_type == expected.weak_type


@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"batch": 2}], ids=str)
def test_no_lanes_at_all(options):
    fun = lambda x: jax.lax.scan(lambda c, i: (lox.log({"c": c, "i": i}), (c + i, None))[1], x, jnp.arange(3.0))[0]  # noqa: E731
    received = []
    assert jax.jit(jax.vmap(lox.tap(fun, received.append, **options)))(jnp.zeros(0)).shape == (0,)
    jax.effects_barrier()
    assert received == []
