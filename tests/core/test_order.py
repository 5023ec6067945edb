"""Program order where calls are numbered instead of waiting for each other: programs built as for a TPU."""

import collections
import contextlib
import gc
import os
import random
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import lox
from lox._host import order
from lox._host.delivery import Receiver
from lox._host.order import Event, Kind
from lox._host.targets import PerRecord
from lox._host.tokens import Token
from lox._storage import packing
from tests.core.checks import assert_close
from tests.corpus import LANES, PROGRAMS, X
from tests.loggers.recording import wait_until

XS = jnp.arange(6.0)


@contextlib.contextmanager
def built_for(platform):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(packing._PACKING, "cpu", packing.packing_on(platform, may_be_split=False))
        yield


def host_calls(fun, *args):
    """What the host calls of a lowered program return."""
    text = jax.jit(fun).lower(*args).as_text()
    return re.findall(r"custom_call @xla_ffi_\w*python_cpu_callback\([^)]*\).*-> (.*)", text)


class Shuffled(order.Sequence):
    """A host on which what a program says overtakes what it said before, as threads do. Only beginnings stay in order: they
    come from one place."""

    def __init__(self):
        super().__init__(patience=600)
        self._late, self._rng = [], random.Random(0)

    def receive(self, event):
        with self._lock:
            self._late.append(event)
            if self._rng.random() < 0.5:
                self.catch_up(self._rng.randint(0, 3))

    def catch_up(self, number=None):
        while self._late and number != 0:
            event = self._rng.choice(self._late)
            if event.kind is Kind.BEGIN:
                event = next(each for each in self._late if each.kind is Kind.BEGIN)
            self._late.remove(event)
            super().receive(event)
            number = None if number is None else number - 1


@contextlib.contextmanager
def shuffling_host():
    hosts = collections.defaultdict(Shuffled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "sequence_for", lambda receiver: hosts[receiver])
        yield
        jax.effects_barrier()
        for host in hosts.values():
            host.catch_up()
            assert host.is_idle  # each execution that began has ended


def received_by(platform, transform, fun, *args, **options):
    """The result of a tapped program, and the records of each lane in the order in which they are handed on."""
    records = collections.defaultdict(list)

    def receive(delivery):
        for lane, (_, logs) in zip(np.argwhere(delivery.alive).tolist(), delivery.split(), strict=True):
            records[tuple(lane)].append((dict(logs.trim()), logs.trim().steps))

    with built_for(platform), shuffling_host():
        out = jax.jit(transform(lox.tap(lambda x: fun(x), Receiver(receive), **options)))(*args)
        jax.block_until_ready(out)
    return out, dict(records)


def numbers_of(records):
    return [(name, float(value)) for values, _ in records[()] for name, value in values.items()]


# --- programs ----------------------------------------------------------------------------------------------------------


def places(xs):
    """Three places: before a loop, in it, and in a loop inside it."""
    lox.log({"start": xs[0]})

    def body(carry, x):
        lox.log({"outer": x}, step=x)
        jax.lax.fori_loop(0, 2, lambda i, _: (lox.log({"inner": x}, i=i), 0)[1], 0)
        return carry + x, None

    return jax.lax.scan(body, 0.0, xs)[0]


def uneven_branches(x):
    """The branches call a different number of times, and a call follows them."""

    def often(x):
        for i in range(3):
            lox.log({"often": x + i})
            x = jax.lax.fori_loop(0, 1, lambda _, x: x + 0, x)
        return x

    def seldom(x):
        lox.log({"seldom": x})
        return jax.lax.cond(x > 3, lambda x: (lox.log({"deep": x}), x)[1], lambda x: x, x)

    def body(x, _):
        x = jax.lax.cond(x % 2 < 1, often, seldom, x)
        lox.log({"after": x})
        return x + 1, None

    return jax.lax.scan(body, x, None, length=4)[0]


def on_mesh(body, devices=4):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("d",))
    return jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))


def on_each_device(x):
    """A loop of two places in a shard_map."""

    def body(x, i):
        lox.log({"before": x[0]}, i=i)
        x = jax.lax.fori_loop(0, 2, lambda _, x: x + 1, x)
        lox.log({"after": x[0]}, i=i)
        return x, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


WAYS = {
    "places": (lambda f: f, places, {}),
    "lanes": (jax.vmap, uneven_branches, {}),
    "interval": (lambda f: f, places, {"interval": 2}),
    "batch": (lambda f: f, places, {"batch": 4}),
    "shard_map inside": (lambda f: f, lambda xs: on_mesh(on_each_device)(xs[:4]), {}),
    "shard_map outside": (lambda f: lambda xs: on_mesh(f)(xs[:4]), on_each_device, {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits_for_the_host(way):
    transform, fun, options = WAYS[way]
    with built_for("tpu"):
        tapped = lambda xs: transform(lox.tap(fun, print, **options))(xs)  # noqa: E731
        assert set(host_calls(tapped, XS)) == {"()"}


def test_a_single_place_is_a_single_call():
    inside = lambda xs: jax.lax.map(lambda x: lox.log({"x": x}), xs)  # noqa: E731
    with built_for("tpu"):
        assert host_calls(lox.tap(inside, print), XS) == ["()"]


def test_records_of_several_places_arrive_in_program_order():
    out, records = received_by("tpu", lambda f: f, places, XS)
    assert float(out) == 15.0
    in_order = [("outer", x) if i < 0 else ("inner", x) for x in range(6) for i in (-1, 0, 1)]
    assert numbers_of(records) == [("start", 0), *in_order]


def test_the_calls_of_a_lane_stay_in_order_when_lanes_take_different_branches():
    (out, expected), (same, found) = (received_by(p, jax.vmap, uneven_branches, XS) for p in ("cpu", "tpu"))
    assert len(expected) == len(XS)
    assert {lane: [list(values) for values, _ in rows] for lane, rows in found.items()} == {
        lane: [list(values) for values, _ in rows] for lane, rows in expected.items()
    }
    assert_close((same, found), (out, expected))


def test_the_last_rows_of_a_buffer_arrive_last():
    def f(xs):
        return jax.lax.scan(lambda c, x: (c + x, lox.log({"x": x}) and None), 0.0, xs)[0]

    _, records = received_by("tpu", lambda f: f, f, jnp.arange(11.0), batch=4)
    assert [values["x"].tolist() for values, _ in records[()]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("way", ["shard_map inside", "shard_map outside"])
def test_each_device_of_a_shard_map_counts_its_own_calls(way):
    transform, fun, _ = WAYS[way]
    found = collections.defaultdict(list)

    def keep(logs):
        ((name, value),) = logs.items()
        for place, each in enumerate(np.ravel(value)):
            device = place if way == "shard_map inside" else int(each) // 10
            found[device].append((int(np.ravel(logs.i[name])[0]), name, float(each)))

    with built_for("tpu"), shuffling_host():
        jax.block_until_ready(jax.jit(lambda x: transform(lox.tap(fun, keep))(x))(10.0 * jnp.arange(4.0)))
    assert {device: [record[:2] for record in records] for device, records in found.items()} == {
        device: [(i, name) for i in range(3) for name in ("before", "after")] for device in range(4)
    }


def test_the_executions_of_a_program_on_several_devices_stay_apart():
    """Its devices do not agree on a number, so calls of one place are taken in the order in which they arrive."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    xs = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("d")))
    records = []

    def f(xs, run):
        lox.log({"start": run})
        for _ in range(2):
            xs = jax.lax.fori_loop(0, 3, lambda i, x: (lox.log({"in loop": run + i}), x + 1)[1], xs)
        lox.log({"sum": run + 10})
        return xs.sum()

    with built_for("tpu"):
        tapped = jax.jit(lox.tap(f, lambda logs: records.append((next(iter(logs)), int(*logs.values())))))
        assert set(host_calls(lox.tap(f, print), xs, 0)) == {"()"}
        for run in range(0, 500, 100):
            tapped(xs, run)
        jax.effects_barrier()
    assert records == [
        (name, run + n)
        for run in range(0, 500, 100)
        for name, n in [("start", 0), *[("in loop", i) for _ in range(2) for i in range(3)], ("sum", 10)]
    ]


def test_outside_jit_loops_are_compiled_and_calls_around_them_are_not():
    records = {"cpu": [], "tpu": []}
    for platform, found in records.items():
        tapped = lox.tap(lambda xs: places(xs), lambda logs, found=found: found.append(str(logs)))
        with built_for(platform), shuffling_host():
            for _ in range(2):
                jax.block_until_ready(tapped(XS))
    assert records["cpu"] == records["tpu"]
    assert len(records["tpu"]) == 2 * 19


def test_a_traced_program_can_be_run_when_the_tap_is_gone():
    found = []
    with built_for("tpu"):
        traced = jax.make_jaxpr(lox.tap(lambda xs: places(xs), lambda logs: found.append(next(iter(logs)))))(XS)
        jax.clear_caches()
        gc.collect()
        jaxpr_as_fun(traced)(XS)  # as a JAX transformation of somebody else would
        jax.effects_barrier()
    assert found == ["start", *["outer", "inner", "inner"] * 6]


def test_outside_jit_the_rows_of_a_mark_stay_in_order():
    found = collections.defaultdict(list)
    tapped = lox.tap(places, lambda logs: [found[name].extend(rows.tolist()) for name, rows in logs.items()], batch=4)
    with built_for("tpu"), shuffling_host():
        jax.block_until_ready(tapped(XS))
    assert found == {"start": [0], "outer": [*range(6)], "inner": [x for x in range(6) for _ in range(2)]}


def test_executions_at_the_same_time_keep_their_own_order():
    records: dict[float, list[float]] = {}

    def f(run, xs):
        lox.log({"run": run, "n": -1.0})

        def body(n, x):
            lox.log({"run": run, "n": n})
            jax.lax.cond(x % 2 == 0, lambda: (lox.log({"run": run, "n": n + 0.5}), None)[1], lambda: None)
            return n + 1, None

        return jax.lax.scan(body, 0.0, xs)[0]

    def keep(logs):
        records.setdefault(float(logs["run"]), []).append(float(logs["n"]))

    with built_for("tpu"):
        tapped = jax.jit(lox.tap(f, keep)).lower(0.0, XS).compile()
    threads = [threading.Thread(target=lambda i=i: [tapped(float(10 * i + j), XS) for j in range(5)]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jax.effects_barrier()
    expected = [-1.0, *(n for x in range(6) for n in ([x, x + 0.5] if x % 2 == 0 else [x]))]
    assert len(records) == 20
    assert all(found == expected for found in records.values())


TRANSFORMS = {
    "jit": (lambda f: f, X),
    "vmap": (jax.vmap, LANES),
    "grad": (jax.grad, X),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), LANES),
    "grad of checkpoint": (lambda f: jax.grad(jax.checkpoint(f)), X),
    "scan": (lambda f: lambda xs: jax.lax.map(f, xs), LANES),
    "grad of scan": (lambda f: jax.grad(lambda xs: jax.lax.map(f, xs).sum()), LANES),
    "branch": (lambda f: lambda x: jax.lax.cond(x[0] < 100, f, lambda x: x[0], x), X),
    "branch in lanes": (lambda f: jax.vmap(lambda x: jax.lax.cond(x[0] < LANES[1][0], f, lambda x: x[0], x)), LANES),
}


# For each change, a program is transformed in one way; at night, in all.
PAIRS = [
    pytest.param(program, name, id=f"{program.name}-{name}")
    for i, program in enumerate(PROGRAMS)
    for j, name in enumerate(TRANSFORMS)
    if os.environ.get("LOX_TEST_EVERY") == "1" or i % len(TRANSFORMS) == j
]


@pytest.mark.every(2)
@pytest.mark.parametrize(("program", "name"), PAIRS)
def test_numbered_calls_bring_what_waiting_calls_bring_in_the_same_order(program, name):
    if "grad" in name and not program.differentiable:
        pytest.skip("it cannot be differentiated")
    transform, args = TRANSFORMS[name]
    (out, expected), (same, found) = (
        received_by(platform, transform, program.fun, jnp.asarray(args)) for platform in ("cpu", "tpu")
    )
    assert {lane: [list(values) for values, _ in rows] for lane, rows in found.items()} == {
        lane: [list(values) for values, _ in rows] for lane, rows in expected.items()
    }
    assert_close((same, found), (out, expected))


REVERSED = {
    "grad": (jax.grad, 2.0),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f)), XS),
    "grad of scan": (lambda f: jax.grad(lambda xs: jax.lax.map(f, xs).sum()), XS),
}


@pytest.mark.parametrize("name", REVERSED)
@pytest.mark.parametrize("compiled", [True, False])
def test_an_execution_ends_also_if_reverse_mode_leaves_out_its_last_calls(name, compiled):
    """A call with a tangent in it is not made, and so nobody knows how many there would have been."""
    transform, args = REVERSED[name]
    found = []

    def tangents(x, t):
        lox.log({"first": x})
        t = jax.lax.fori_loop(0, 2, lambda _, t: t * 2, t)
        lox.log({"tangent": t})
        t = jax.lax.fori_loop(0, 2, lambda _, t: t * 2, t)
        lox.log({"last": x})
        return jnp.sin(x), jnp.cos(x) * t

    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda x, t: lox.tap(tangents, lambda logs: found.append(*logs))(*x, *t))
    step = jax.jit(transform(sine)) if compiled else transform(sine)
    with built_for("tpu"), shuffling_host():
        for _ in range(2):
            jax.block_until_ready(step(jnp.asarray(args)))
    assert sorted(found) == 2 * np.size(args) * ["first"] + 2 * np.size(args) * ["last"]


def test_a_callback_that_raises_is_heard_and_the_others_are_called():
    called = []

    def raise_once(logs):
        called.append(next(iter(logs)))
        if called == ["start", "outer"]:
            raise ValueError("refused")

    with built_for("tpu"), pytest.raises(Exception, match="refused"):
        jax.jit(lox.tap(places, raise_once))(XS)
        jax.effects_barrier()
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    assert called[:2] == ["start", "outer"]


# --- found by a hostile reader ---------------------------------------------------------------------------------------


def away(x):
    """What follows is another host call."""
    return jax.lax.fori_loop(0, 2, lambda _, x: x + 1.0, x)


def arriving(platform, fun, *args, **options):
    """The records that have arrived when the barrier returns, on a host that nothing delays."""
    found = []

    def keep(logs):
        found.extend((key, *np.ravel(value).tolist()) for key, value in logs.items())

    with built_for(platform):
        jax.block_until_ready(fun(lambda f: lox.tap(f, keep, **options))(*args))
        jax.effects_barrier()
    return found


def branches_of_a_rule(tap):
    """The rule has more branches than the function."""

    @jax.custom_jvp
    def sine(x):
        lox.log({"a": x})
        return jnp.sin(x)

    @sine.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        jax.lax.cond(x > 2, lambda: lox.log({"a": x}), lambda: lox.log({"a": -x}))
        return jnp.sin(x), jnp.cos(x) * t

    def fun(x):
        lox.log({"start": x})
        return sine(x)

    return jax.jit(jax.vmap(jax.grad(tap(fun))))


def branches_around_maps(tap, devices=2):
    def first(x):
        lox.log({"a": x[0]})
        x = away(x)
        lox.log({"b": x[0]})
        return x

    def second(x):
        lox.log({"c": x[0]})
        x = away(x)
        lox.log({"d": x[0]})
        return x

    there = [on_mesh(body, devices) for body in (first, second)]
    return jax.jit(tap(lambda x: jax.lax.cond(x[0] > 0, *there, x)))


def branches_of_a_vmap_rule(tap):
    def positive(x):
        lox.log({"a": x})
        y = away(x)
        lox.log({"b": y})
        return y

    def negative(x):
        lox.log({"a": -x})
        y = away(x)
        lox.log({"b": -y})
        return y

    @jax.custom_batching.custom_vmap
    def fun(x):
        return jax.lax.cond(x.sum() > 2, positive, negative, x)

    @fun.def_vmap
    def rule(size, batched, x):
        return jax.lax.cond(x.sum() > 2, positive, negative, x), True

    return jax.jit(jax.vmap(jax.vmap(tap(fun))))


def linear_function_called_twice(tap):
    def tangents(x, t):
        lox.log({"first": x})
        t = away(t) * 2
        lox.log({"tangent": t})
        t = away(t)
        lox.log({"last": x})
        return jnp.sin(x), jnp.cos(x) * t

    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda x, t: tap(tangents)(*x, *t))

    def both(x):
        _, linear = jax.linearize(sine, x)
        return linear(1.0), linear(2.0)

    return jax.jit(both)


FOUND = {
    "branches of a derivative rule": (branches_of_a_rule, jnp.arange(4.0)),
    "branches around maps": (branches_around_maps, jnp.arange(1.0, 5.0)),
    "branches around maps, the other": (branches_around_maps, -jnp.arange(1.0, 5.0)),
    "branches of a vmap rule": (branches_of_a_vmap_rule, jnp.arange(4.0).reshape(2, 2)),
    "a linear function": (linear_function_called_twice, jnp.float32(1.0)),
}


@pytest.mark.parametrize("name", FOUND)
def test_all_records_have_arrived_when_the_barrier_returns(name):
    fun, args = FOUND[name]
    expected = arriving("cpu", fun, args)
    assert expected
    assert sorted(arriving("tpu", fun, args)) == sorted(expected)


def test_lanes_that_branch_in_a_map_over_devices():
    """In a shard_map, JAX cannot batch a branch that varies what it gets."""

    def fun(x):
        lox.log({"p": x})
        return jax.lax.cond(x < 3, lambda x: (lox.log({"q": x}), x)[1], lambda x: (lox.log({"r": x}), x)[1], x)

    for platform in ("cpu", "tpu"):
        found = arriving(platform, lambda tap: jax.jit(on_mesh(jax.vmap(tap(fun)))), jnp.arange(8.0))
        assert sorted(found) == [*[("p", x) for x in range(8)], *[("q" if x < 3 else "r", x) for x in range(8)]]
    inside = on_mesh(lambda x: jax.lax.cond(x[0] < 3, lambda x: (lox.log({"q": x[0]}), x)[1], lambda x: x, x))
    for platform in ("cpu", "tpu"):
        found = arriving(platform, lambda tap: jax.jit(jax.vmap(tap(inside))), jnp.arange(16.0).reshape(2, 8))
        assert sorted(found) == [("q", 0.0), ("q", 2.0)]


def test_each_execution_that_is_refused_says_so():
    """A callback that raises aborts the program, which then does not say that it ends."""

    def refuse(logs):
        raise ValueError("refused")

    def fun(x):
        lox.log({"a": x})
        x = away(x)
        lox.log({"b": x})
        return x

    refused = 0
    with built_for("tpu"):
        tapped = jax.jit(lox.tap(fun, refuse))
        for i in range(5):
            try:
                jax.block_until_ready(tapped(float(i)))
                jax.effects_barrier()
            except Exception:
                refused += 1
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    assert refused == 5


@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"batch": 2}], ids=str)
def test_a_branch_of_no_lanes_at_all(options):
    def fun(x):
        lox.log({"a": x})
        x = jax.lax.cond(x > 1, lambda x: (lox.log({"b": x}), x)[1], lambda x: x, away(x))
        lox.log({"c": x})
        return x

    for platform in ("cpu", "tpu"):
        assert arriving(platform, lambda tap: jax.jit(jax.vmap(tap(fun))), jnp.zeros(0), **options) == []


# --- the host's side -------------------------------------------------------------------------------------------------


class Program:
    """Says what an execution of a program says. ``end`` is how many calls it makes on each track."""

    def __init__(self, sequence, number, into, end=(0,), device=0):
        self.sequence, self.number, self.into, self.end, self.device = sequence, number, into, end, device

    def _say(self, kind, track, counts, hand_on=lambda: None):
        self.sequence.receive(Event(kind, Token(self.number, self.device, track, tuple(counts)), hand_on))

    def begins(self):
        self._say(Kind.BEGIN, 0, [0] * len(self.end))
        return self

    def calls(self, *counts, track=0, name=None):
        name = (self.number, counts[track]) if name is None else name
        self._say(Kind.CALL, track, counts, lambda: self.into.append(name))

    def ends(self):
        self._say(Kind.END, 0, self.end)

    def leaves(self):
        self._say(Kind.LEAVE, 0, [0] * len(self.end))


def test_calls_are_handed_on_by_number_whatever_the_order_they_arrive_in():
    sequence, rng = order.Sequence(), np.random.default_rng(0)
    for number in range(20):
        found = []
        program = Program(sequence, number, found, end=(49,)).begins()
        for call in rng.permutation(50).tolist():
            if call < 49:
                program.calls(call)
            else:
                program.ends()
        assert [call for _, call in found] == list(range(49))
        assert sequence.is_idle


def test_a_call_waits_for_all_that_its_token_counts_on_any_track():
    sequence, found = order.Sequence(patience=600), []
    program = Program(sequence, 7, found, end=(3, 1)).begins()
    program.calls(2, 1, name="after both")
    program.ends()
    program.calls(1, 0, name="second of one branch")
    program.calls(0, 0, name="first of one branch")
    assert found == ["first of one branch", "second of one branch"]
    program.calls(0, 0, track=1, name="of the other")
    assert found == ["first of one branch", "second of one branch", "of the other", "after both"]
    assert sequence.is_idle


def test_an_execution_waits_for_the_calls_of_the_one_before():
    sequence, found = order.Sequence(patience=600), []
    first, second = (Program(sequence, n, found, end=(2,)).begins() for n in (5, 3))
    second.calls(1)
    second.calls(0)
    second.ends()
    first.ends()
    first.calls(1)
    assert found == []
    first.calls(0)
    assert found == [(5, 0), (5, 1), (3, 0), (3, 1)]
    assert sequence.is_idle


def test_devices_do_not_wait_for_each_other():
    sequence, found = order.Sequence(patience=600), []
    first, second = (Program(sequence, 1, found, end=(2,), device=device).begins() for device in (0, 1))
    first.calls(1, name="early")
    second.calls(0, name="of another device")
    assert found == ["of another device"]


def test_a_call_may_arrive_before_the_beginning():
    sequence, found = order.Sequence(patience=600), []
    program = Program(sequence, 1, found, end=(2,))
    program.calls(1)
    program.ends()
    program.begins()
    assert found == []
    program.calls(0)
    assert found == [(1, 0), (1, 1)]
    assert sequence.is_idle


def test_nobody_waits_for_long_for_an_execution_on_another_device():
    sequence, found = order.Sequence(patience=0.01), []
    first, second = (Program(sequence, n, found, end=(2,)).begins() for n in (1, 2))
    first.calls(0)
    second.calls(0)
    wait_until(lambda: len(found) == 2)
    second.calls(1)  # now it is known
    first.calls(1)
    assert [number for _, number in found] == [0, 0, 1, 1]
    first.ends()
    second.ends()
    assert sequence.is_idle


def test_nobody_waits_for_long_for_calls_of_an_execution_that_has_ended():
    sequence, found = order.Sequence(patience=0.01), []
    program = Program(sequence, 1, found, end=(3,)).begins()
    program.calls(2)
    program.calls(1)
    program.ends()
    wait_until(lambda: len(found) == 2)
    assert found == [(1, 1), (1, 2)]
    wait_until(lambda: sequence.is_idle)


def test_a_call_of_an_execution_that_never_began_is_handed_on():
    sequence, found = order.Sequence(patience=0.01), []
    Program(sequence, 1, found, end=(3,)).calls(2)
    wait_until(lambda: found == [(1, 2)])
    assert sequence.is_idle


def test_all_that_is_held_is_handed_on_at_exit():
    sequence, found = order.Sequence(patience=600), []
    first, second = (Program(sequence, n, found, end=(3,)).begins() for n in (1, 2))
    second.calls(2)
    second.calls(0)
    first.calls(1)
    Program(sequence, 3, found, end=(1,)).calls(0)
    sequence.flush()
    assert found == [(1, 1), (2, 0), (2, 2), (3, 0)]
    assert sequence.is_idle


@pytest.mark.parametrize("seed", range(20))
def test_executions_with_the_same_number_are_told_apart_by_what_they_lack(seed):
    """Each place is a queue of its own, and the host looks at them in any order."""
    rng, sequence, found = random.Random(seed), order.Sequence(patience=600), []
    queues = collections.defaultdict(list)
    total = 0
    for n in range(6):
        ends = rng.randint(0, 5)
        program = Program(sequence, 0, found, end=(ends,))
        queues["begin"].append(program.begins)
        for call in range(ends):
            place = rng.choice("ab")
            queues[place].append(lambda program=program, call=call, n=n: program.calls(call, name=(n, call)))
        queues["end"].append(program.ends)
        total += ends
    while any(queues.values()):
        rng.choice([queue for queue in queues.values() if queue]).pop(0)()
    assert sorted(found) == sorted(set(found))
    assert len(found) == total
    assert sequence.is_idle


def test_an_execution_that_leaves_keeps_nobody_waiting():
    sequence, found = order.Sequence(patience=0.01), []
    first, second = (Program(sequence, n, found, end=(1,)).begins() for n in (1, 2))
    second.calls(0)
    first.leaves()
    first.calls(0)  # it comes too late, but need not wait
    second.ends()
    assert found == [(2, 0), (1, 0)]
    assert sequence.is_idle
    wait_until(lambda: not sequence._devices[0].executions)


def test_what_an_execution_says_twice_is_handed_on_at_once():
    sequence, found = order.Sequence(patience=600), []
    program = Program(sequence, 1, found, end=(2,)).begins()
    program.calls(0, name="first")
    program.calls(0, name="first again")
    program.calls(0, track=1, name="on a track that is not there")
    program.calls(1, name="second")
    program.ends()
    program.calls(1, name="second again")
    assert found == ["first", "first again", "on a track that is not there", "second", "second again"]
    assert sequence.is_idle


def test_calls_do_not_go_to_an_execution_that_was_aborted():
    """Without random numbers, only the order of what arrives tells executions apart."""
    sequence, found = order.Sequence(patience=600), []

    def fail():
        raise ValueError("refused")

    Program(sequence, 0, found, end=(3,)).begins()
    with pytest.raises(ValueError, match="refused"):
        sequence.receive(Event(Kind.CALL, Token(0, 0, 0, (0,)), fail))
    for run in "BC":
        program = Program(sequence, 0, found, end=(3,)).begins()
        for i in range(3):
            program.calls(i, name=f"{run}{i}")
        program.ends()
    assert found == ["B0", "B1", "B2", "C0", "C1", "C2"]


def test_nobody_is_given_up_while_a_callback_takes_long():
    sequence, found = order.Sequence(patience=0.05), []
    program = Program(sequence, 1, found, end=(3,)).begins()
    program.calls(2)
    program.ends()
    started, waiting = threading.Event(), threading.Event()

    def slow():
        started.set()
        waiting.wait(5)
        time.sleep(0.2)  # longer than the patience
        found.append((1, 0))

    first = threading.Thread(target=sequence.receive, args=[Event(Kind.CALL, Token(1, 0, 0, (0,)), slow)])
    first.start()
    started.wait(5)
    second = threading.Thread(target=program.calls, args=[1])
    second.start()
    waiting.set()
    first.join()
    second.join()
    wait_until(lambda: sequence.is_idle)
    assert found == [(1, 0), (1, 1), (1, 2)]


def test_an_error_that_comes_late_reaches_the_next_call():
    sequence, found = order.Sequence(patience=0.01), []

    def fail():
        found.append("failed")
        raise ValueError("refused")

    sequence.receive(Event(Kind.CALL, Token(1, 0, 0, (2,)), fail))  # its execution never began
    wait_until(lambda: found == ["failed"])
    with pytest.raises(ValueError, match="refused"):
        Program(sequence, 2, found).begins()


def test_numbers_go_on_after_32_bits():
    sequence, found = order.Sequence(), []
    program = Program(sequence, 1, found).begins()
    sequence._devices[0].executions[0]._done = [2**32 - 2]
    for number in (2**32 - 1, 1, 0, 2**32 - 2):
        program.calls(number)
    assert [number for _, number in found] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_an_error_does_not_keep_back_the_calls_that_follow():
    sequence, found = order.Sequence(), []
    program = Program(sequence, 1, found).begins()

    def fail():
        raise ValueError("refused")

    sequence.receive(Event(Kind.CALL, Token(1, 0, 0, (1,)), fail))
    program.calls(2)
    with pytest.raises(ValueError, match="refused"):
        program.calls(0)
    assert [number for _, number in found] == [0, 2]


def test_receivers_that_are_equal_have_one_sequence_as_long_as_a_program_needs_it():
    callback = [].append
    sequence = order.sequence_for(PerRecord(callback))
    assert order.sequence_for(PerRecord(callback)) is sequence
    assert order.sequence_for(PerRecord([].append)) is not sequence
    before = len(order._sequences)
    del sequence
    gc.collect()
    assert len(order._sequences) < before
