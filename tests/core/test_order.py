"""Program order where calls are numbered instead of waiting for each other: programs built as for a TPU."""

import contextlib
import gc
import os
import random
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._host import order
from lox._host.targets import PerRecord
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
    return re.findall(r"custom_call @xla_ffi_python_cpu_callback\([^)]*\).*-> (.*)", text)


class Shuffled(order.Sequence):
    """A host on which calls overtake each other, as threads do. The program waits for those with lanes."""

    def __init__(self):
        super().__init__(patience=600)
        self._late, self._rng = [], random.Random(0)

    def arrive(self, token, hand_on):
        if getattr(hand_on, "args", None) and hand_on.args[0].ndim:  # which lanes are alive
            super().arrive(token, hand_on)
            return
        self._late.append((token, hand_on))
        if self._rng.random() < 0.5:
            self.catch_up(self._rng.randint(0, 3))

    def catch_up(self, number=None):
        while self._late and number != 0:
            super().arrive(*self._late.pop(self._rng.randrange(len(self._late))))
            number = None if number is None else number - 1


def received_by(platform, transform, fun, *args):
    """The result of a tapped program, and its records in the order in which the callback gets them."""
    records, host = [], Shuffled()
    with built_for(platform), pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "sequence_for", lambda receiver: host)
        out = jax.jit(transform(lox.tap(lambda x: fun(x), records.append)))(*args)
        jax.effects_barrier()
        host.catch_up()
    assert host.is_idle  # each execution that began has ended
    return out, [(dict(logs), logs.steps) for logs in records]


# --- programs ----------------------------------------------------------------------------------------------------------


def places(xs):
    """Three places: before a loop, in it, and in a loop inside it."""
    lox.log({"start": xs[0]})

    def body(carry, x):
        lox.log({"outer": x}, step=x)
        jax.lax.fori_loop(0, 2, lambda i, _: (lox.log({"inner": x, "i": i}), 0)[1], 0)
        return carry + x, None

    return jax.lax.scan(body, 0.0, xs)[0]


def test_only_the_first_call_of_an_execution_waits_for_the_host():
    with built_for("tpu"):
        assert sorted(host_calls(lox.tap(places, print), XS)) == ["()"] * 4 + [
            "tensor<2xui32>"
        ]  # one says that it ends
        inside = lambda xs: jax.lax.map(lambda x: lox.log({"x": x}), xs)  # noqa: E731
        assert host_calls(lox.tap(inside, print), XS) == ["()"]


def test_records_of_several_places_arrive_in_program_order():
    out, records = received_by("tpu", lambda f: f, places, XS)
    assert float(out) == 15.0
    in_order = [("outer", x) if i < 0 else ("inner", x) for x in range(6) for i in (-1, 0, 1)]
    assert [(next(iter(values)), float(next(iter(values.values())))) for values, _ in records] == [
        ("start", 0),
        *in_order,
    ]


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
    if args is LANES and "scan" not in name:  # lanes in the two branches of a conditional come in any order
        expected, found = sorted(expected, key=repr), sorted(found, key=repr)
    assert [list(values) for values, _ in found] == [list(values) for values, _ in expected]
    assert_close((same, found), (out, expected))


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


# --- the host's side -------------------------------------------------------------------------------------------------


def arrive(sequence, token, number, into):
    sequence.arrive((int(token[0]), number), lambda: into.append((int(token[0]), number)))


def finish(sequence, token, number):
    sequence.end((int(token[0]), number))


def test_calls_are_handed_on_by_number_whatever_the_order_they_arrive_in():
    sequence, rng = order.Sequence(), np.random.default_rng(0)
    for _ in range(20):
        token, found = sequence.begin(), []
        for number in rng.permutation(50).tolist():
            if number < 49:
                arrive(sequence, token, number, found)
            else:
                finish(sequence, token, number)
        assert [number for _, number in found] == list(range(49))
        assert sequence.is_idle


def test_an_execution_waits_for_the_calls_of_the_one_before():
    sequence, found = order.Sequence(patience=600), []
    first, second = sequence.begin(), sequence.begin()
    arrive(sequence, second, 0, found)
    finish(sequence, second, 1)
    finish(sequence, first, 2)
    arrive(sequence, first, 1, found)
    assert found == []
    arrive(sequence, first, 0, found)
    assert found == [(int(first[0]), 0), (int(first[0]), 1), (int(second[0]), 0)]
    assert sequence.is_idle


def test_nobody_waits_for_long_for_an_execution_on_another_device():
    sequence, found = order.Sequence(patience=0.01), []
    first, second = sequence.begin(), sequence.begin()
    arrive(sequence, first, 0, found)
    arrive(sequence, second, 0, found)
    wait_until(lambda: len(found) == 2)
    arrive(sequence, second, 1, found)  # now it is known
    arrive(sequence, first, 1, found)
    assert [number for _, number in found] == [0, 0, 1, 1]
    finish(sequence, first, 2)
    finish(sequence, second, 2)
    assert sequence.is_idle


def test_calls_with_the_same_number_are_both_handed_on():
    sequence, found = order.Sequence(), []
    token = sequence.begin()
    for number in (2, 0, 0, 1, 1):
        arrive(sequence, token, number, found)
    numbers = [number for _, number in found]
    assert sorted(numbers) == [0, 0, 1, 1, 2]
    assert numbers.index(2) > numbers.index(1) > numbers.index(0)


def test_an_execution_without_a_number_is_not_put_in_order():
    sequence, found = order.Sequence(), []
    for number in (3, 1):
        arrive(sequence, np.zeros(2, np.uint32), number, found)
    finish(sequence, np.zeros(2, np.uint32), 4)
    assert [number for _, number in found] == [3, 1]


def test_numbers_go_on_after_32_bits():
    sequence, found = order.Sequence(), []
    token = sequence.begin()
    sequence._executions[int(token[0])]._next = 2**32 - 2
    for number in (2**32 - 1, 1, 0, 2**32 - 2):
        arrive(sequence, token, number, found)
    assert [number for _, number in found] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_an_error_does_not_keep_back_the_calls_that_follow():
    sequence, found = order.Sequence(), []
    token = sequence.begin()

    def fail():
        raise ValueError("refused")

    sequence.arrive((int(token[0]), 1), fail)
    arrive(sequence, token, 2, found)
    with pytest.raises(ValueError, match="refused"):
        arrive(sequence, token, 0, found)
    assert [number for _, number in found] == [0, 2]


def test_receivers_that_are_equal_have_one_sequence_as_long_as_a_program_needs_it():
    receiver = PerRecord(print)
    sequence = order.sequence_for(receiver)
    assert order.sequence_for(PerRecord(print)) is sequence
    assert order.sequence_for(PerRecord(repr)) is not sequence
    before = len(order._sequences)
    del sequence
    gc.collect()
    assert len(order._sequences) < before
