"""Loops that tell how far they are: the engine of ``lox.loggers.progress``."""

from __future__ import annotations

import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import lox
from lox._inside import effort
from lox._inside.follow import follow
from lox._inside.ticks import Answer, FollowedLoop, TickTarget
from lox._jax import compat
from tests.core.checks import assert_close
from tests.corpus import LANES, PROGRAMS, X

ARGUMENT, SEVERAL = jnp.asarray(X), jnp.asarray(LANES)


class Listening:
    """Takes note of all it hears, and asks for more after ``steps`` iterations."""

    def __init__(self, steps=1, inside=True):
        self.steps, self.inside = steps, inside
        self.heard, self.ended, self.loops = [], [], []
        self.lock = threading.Lock()

    def expect(self, loops):
        self.loops = list(loops)

    def tick(self, loop, position):
        with self.lock:
            self.heard.append((loop.path, position))
        return Answer(self.steps, self.inside)

    def end(self, loop, position):
        with self.lock:
            self.ended.append((loop.path, position))

    def positions(self, path):
        return [position for heard, position in self.heard if heard == path]


def followed(fun, **options):
    return follow(fun, lambda: Listening(**options), tuple(options.items()))


@pytest.fixture
def follow_everything(monkeypatch):
    """Loops are worth it however short they are, and scans have two chunks, outside and inside."""
    monkeypatch.setattr(effort.Effort, "is_worth_following", lambda *_: True)
    monkeypatch.setattr(effort, "_PLACES", 2)
    chunk = effort.Effort.chunk
    monkeypatch.setattr(effort.Effort, "chunk", lambda self, eqn, outermost: chunk(self, eqn, True))


def assert_same_bits(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.every(4)
@pytest.mark.compiled_as_by_users
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_nothing_changes_but_that_the_host_hears_of_it(program, follow_everything):
    def all_ways(transform):
        def run(x):
            fun = transform(program.fun)
            outs = [fun(x), jax.vmap(fun)(SEVERAL)]
            if program.differentiable:
                outs.append(transform(jax.grad(program.fun))(x))
            return outs, lox.spool(fun, capacity=64)(x)[1], jax.grad(fun)(x) if program.differentiable else ()

        return jax.jit(run)(ARGUMENT)

    outs, logs, gradient = all_ways(lambda fun: followed(fun)[0])
    expected, expected_logs, expected_gradient = all_ways(lambda fun: fun)
    assert_same_bits(outs, expected)
    assert_close(gradient, expected_gradient)  # JAX hoists nothing out of loops that call the host
    assert list(logs) == list(expected_logs)
    for key in logs:
        assert int(logs.counts[key]) == int(expected_logs.counts[key]), key
        assert_close(logs.trim()[key], expected_logs.trim()[key], key)


# --- what is heard ---------------------------------------------------------------------------------------------------


def heard_of(fun, *args, **options):
    run, listener = followed(fun, **options)
    out = jax.jit(run)(*args)
    jax.effects_barrier()
    return out, listener


def steps(length, reverse=False):
    def fun(x):
        c, ys = jax.lax.scan(lambda c, v: (c + v, c * v), x, jnp.arange(float(length)), reverse=reverse)
        return c, ys

    return fun


def test_a_scan_tells_how_far_it_is_and_when_it_has_ended(monkeypatch):
    monkeypatch.setattr(effort, "_PLACES", 10**9)
    _, listener = heard_of(steps(10), 1.0, steps=4)
    (loop,) = listener.loops
    assert (loop.path, loop.length, loop.inside) == ("scan", 10, None)
    assert listener.positions("scan") == [0, 4, 8]
    assert listener.ended == [("scan", 10)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [12, 13])  # in chunks of 4; of 5, and the rest
def test_a_scan_of_short_steps_tells_between_chunks(length, reverse, monkeypatch):
    monkeypatch.setattr(effort, "_PLACES", 3)
    fun = steps(length, reverse)
    out, listener = heard_of(fun, 1.0)
    assert listener.positions("scan") == ([0, 4, 8] if length == 12 else [0, 5])
    assert listener.ended == [("scan", length)]
    assert_same_bits(out, jax.jit(fun)(1.0))


def test_the_host_chooses_how_often_it_hears_of_a_while_loop():
    fun = lambda n: jax.lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)  # noqa: E731
    out, listener = heard_of(fun, 1000, steps=300)
    assert int(out) == 1000
    assert listener.loops[0].length is None
    assert listener.positions("while") == [0, 300, 600, 900]
    assert listener.ended == [("while", 1000)]


def nested(x):
    def outer(c, _):
        return jax.lax.fori_loop(0, 50, lambda i, c: jnp.cos(c), c), None

    return jax.lax.scan(outer, x, None, length=4)[0]


def test_loops_inside_tell_only_if_the_host_wants_to_know(follow_everything):
    _, listener = heard_of(nested, 1.0, inside=True)
    assert listener.positions("scan") == [0, 2]
    inner = [path for path, _ in listener.heard if path != "scan"]
    assert set(inner) == {"scan/scan"}
    _, listener = heard_of(nested, 1.0, inside=False)
    assert {path for path, _ in listener.heard} == {"scan"}


def test_a_loop_inside_is_not_taken_apart_for_less_than_a_millisecond():
    def fun(x, inner):
        step = lambda c, _: (jax.lax.scan(lambda c, _: (matrix @ c, None), c, None, length=inner)[0], None)  # noqa: E731
        return jax.lax.scan(step, x, None, length=3)[0]

    matrix = jnp.eye(100)
    for inner, lengths in ((1_000, [3]), (20_000, [3, 20_000])):
        listener = followed(functools.partial(fun, inner=inner))
        jax.eval_shape(listener[0], jnp.ones(100))
        assert [loop.length for loop in listener[1].loops] == lengths


def test_lanes_in_lockstep_are_heard_of_once():
    fun = lambda n: jax.lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)  # noqa: E731
    run, listener = followed(fun, steps=4)
    out = jax.jit(jax.vmap(run))(jnp.array([3, 10, 7]))
    jax.effects_barrier()
    assert out.tolist() == [3, 10, 7]
    assert listener.positions("while") == [0, 4, 8]
    assert listener.ended == [("while", 10)]
    # The lanes are inside.
    out, listener = heard_of(jax.vmap(fun), jnp.array([3, 10, 7]), steps=4)
    assert out.tolist() == [3, 10, 7]
    assert listener.positions("while") == [0, 4, 8]
    assert listener.ended == [("while", 10)]


def test_both_passes_of_a_gradient_are_heard_of(follow_everything):
    def loss(x):
        return jax.lax.scan(lambda c, v: (jnp.sin(c * v), None), x, jnp.arange(1.0, 9.0))[0]

    out, listener = heard_of(jax.grad(loss), 0.3)
    assert_same_bits(out, jax.jit(jax.grad(loss))(0.3))
    assert {path for path, _ in listener.ended} == {"scan", "backward/scan"}
    # From outside only the function itself is there.
    run, listener = followed(loss)
    out = jax.jit(jax.grad(run))(0.3)
    jax.effects_barrier()
    assert_same_bits(out, jax.jit(jax.grad(loss))(0.3))
    assert {path for path, _ in listener.ended} == {"scan"}


def test_counters_of_32_bits_start_again():
    listener, loop = Listening(steps=5), FollowedLoop("while", None, None)
    due, _ = TickTarget(listener, loop).call(np.int32(2**31 - 2))
    assert (due.dtype, int(due)) == (np.int32, -(2**31) + 3)
    TickTarget(listener, loop).call(np.int32(-1))
    assert listener.heard[-1][1] == 2**32 - 1


def test_a_loop_on_several_devices():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))

    def body(x):
        return jax.lax.scan(lambda c, v: (c + jax.lax.psum(c * v, "d"), None), x, jnp.arange(1.0, 4.0))[0]

    spec = PartitionSpec("d")
    fun = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.arange(float(jax.device_count()))
    out, listener = heard_of(fun, x)
    assert_close(out, jax.jit(fun)(x))
    assert {path for path, _ in listener.ended} == {"shard_map/scan"}
    # Split by the compiler.
    whole = lambda x: jax.lax.scan(lambda c, v: (c * v + c.sum(), None), x, jnp.arange(1.0, 4.0))[0]  # noqa: E731
    split = jax.device_put(x, jax.NamedSharding(mesh, spec))
    out, listener = heard_of(whole, split)
    assert_close(out, jax.jit(whole)(split))
    assert listener.ended == [("scan", 3)]


def test_a_program_without_loops_tells_nothing():
    out, listener = heard_of(lambda x: jnp.sin(x), 1.0)
    assert_close(out, jnp.sin(1.0))
    assert (listener.loops, listener.heard, listener.ended) == ([], [], [])


def test_a_kind_of_effect_that_comes_after_the_first_mark_is_known_to_jax():
    lox.spool(lambda x: lox.log({"x": x}))(1.0)

    class Late(compat.Effect):
        __str__ = lambda self: "Late"  # noqa: E731

    late = Late()
    late_p = compat.Primitive("late")
    late_p.multiple_results = True
    late_p.def_effectful_abstract_eval(lambda: ([], {late}))
    compat.allow_effect(Late)
    try:
        late_loop, loop = (
            jax.make_jaxpr(lambda x, bind=bind: jax.lax.scan(lambda c, _: (bind(), (c, None))[1], x, None, length=3))(
                1.0
            )
            for bind in (late_p.bind, lambda: None)
        )
        assert late_loop.effects - loop.effects == {late}
    finally:
        del compat.our_effects[Late]
