"""The laws of spool and tap, each on every program of the corpus, eager, jitted, vmapped and differentiated."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import assert_close, assert_logs_are, assert_logs_equal, assert_steps_equal, in_sequence, tapped
from tests.corpus import LANES, PROGRAMS, X, Program

pytestmark = pytest.mark.usefixtures("quick_compilation")

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=repr)
differentiable = pytest.mark.parametrize("program", [p for p in PROGRAMS if p.differentiable], ids=repr)
static = pytest.mark.parametrize("program", [p for p in PROGRAMS if not p.dynamic and not p.bounded], ids=repr)
unbatched_control = pytest.mark.parametrize("program", [p for p in PROGRAMS if not p.batched_control], ids=repr)


def spooled(program: Program, fun: Any = None, **options: Any) -> Any:
    return lox.spool(fun or program.fun, **program.options, **options)


def lane(tree: Any, i: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[i], tree)


@functools.cache
def reference(program: Program) -> tuple[Any, lox.logdict]:
    return spooled(program)(X)


# --- logging changes nothing -----------------------------------------------------------------------------------------


@every_program
def test_spool_and_tap_return_what_the_function_returns(program):
    expected = program.fun(X)
    assert_close(spooled(program)(X)[0], expected)
    assert_close(jax.jit(spooled(program))(X)[0], expected)
    assert_close(tapped(program.fun, X)[0], expected)
    assert_close(lox.nolog(program.fun)(X), expected)


@every_program
def test_output_is_unchanged_under_vmap(program):
    expected = jax.vmap(program.fun)(LANES)
    assert_close(jax.vmap(spooled(program))(LANES)[0], expected)
    assert_close(jax.vmap(lox.tap(program.fun, lambda logs: None))(LANES), expected)


@differentiable
def test_gradient_is_unchanged(program):
    expected = jax.grad(program.fun)(X)
    assert_close(jax.grad(lambda x: spooled(program)(x)[0])(X), expected)
    assert_close(spooled(program, jax.grad(program.fun))(X)[0], expected)
    assert_close(jax.grad(lox.tap(program.fun, lambda logs: None))(X), expected)
    assert_close(tapped(jax.grad(program.fun), X)[0], expected)


# --- what is recorded ------------------------------------------------------------------------------------------------


@every_program
def test_spool_returns_the_expected_records(program):
    logs = reference(program)[1]
    assert_logs_are(logs.trim(), program.expected(X), program.steps and program.steps(X))


@every_program
def test_spool_of_jit_is_jit_of_spool_is_spool(program):
    logs = reference(program)[1]
    assert_logs_equal(spooled(program, jax.jit(program.fun))(X)[1], logs)
    assert_logs_equal(jax.jit(spooled(program))(X)[1], logs)
    assert_logs_equal(jax.jit(spooled(program, jax.jit(program.fun)))(X)[1], logs)


@every_program
def test_each_lane_of_vmapped_spool_has_the_records_of_its_own_call(program):
    _, logs = jax.vmap(spooled(program))(LANES)
    for i, x in enumerate(LANES):
        assert_logs_are(lane(logs, i).trim(), program.expected(x), program.steps and program.steps(x))


@unbatched_control
def test_spool_of_vmap_is_vmap_of_spool_with_axes_swapped(program):
    outer = spooled(program, jax.vmap(program.fun))(LANES)[1]
    inner = jax.vmap(spooled(program))(LANES)[1]
    assert list(outer) == list(inner)
    assert outer.stacked == inner.stacked

    def swapped(key, leaf):
        return jnp.swapaxes(leaf, 0, 1) if key in inner.stacked else leaf

    for key in inner:
        assert_close(outer[key], jax.tree.map(functools.partial(swapped, key), inner[key]), key)
    steps = {axis: {k: swapped(k, leaf) for k, leaf in by_key.items()} for axis, by_key in inner.steps.items()}
    assert_steps_equal(outer.steps, steps)


# --- grad ------------------------------------------------------------------------------------------------------------


@differentiable
def test_grad_of_spool_has_the_logs_of_the_function(program):
    logs = reference(program)[1]
    assert_logs_equal(jax.grad(spooled(program), has_aux=True)(X)[1], logs)
    assert_logs_equal(jax.jit(jax.grad(spooled(program), has_aux=True))(X)[1], logs)


@differentiable
def test_spool_of_grad_has_the_logs_of_the_function_and_of_backward_rules(program):
    forward = reference(program)[1]
    backward = program.backward(X) if program.backward else {}
    for differentiated in (jax.grad(program.fun), jax.grad(jax.jit(program.fun)), jax.jit(jax.grad(program.fun))):
        logs = spooled(program, differentiated)(X)[1]
        assert_logs_equal(logs.filter(lambda key: key not in backward), forward)
        back = logs.filter(lambda key: key in backward)
        assert_logs_are(back, backward, back.steps)


@differentiable
def test_vjp_linearize_and_jvp_record_each_mark_once(program):
    logs = reference(program)[1]
    backward = program.backward(X) if program.backward else {}
    linearized = spooled(program, lambda x: jax.linearize(program.fun, x)[1](jnp.ones_like(x)))(X)[1]
    forward_mode = spooled(program, lambda x: jax.jvp(program.fun, (x,), (jnp.ones_like(x),))[1])
    assert_logs_equal(linearized, logs)
    if "custom_vjp" not in program.name:
        assert_logs_equal(forward_mode(X)[1], logs)
    pulled_back = spooled(program, lambda x: jax.vjp(program.fun, x)[1](jnp.float32(1)))(X)[1]
    assert_logs_equal(pulled_back.filter(lambda key: key not in backward), logs)


@differentiable
def test_vmapped_gradients_have_the_records_of_each_lane(program):
    _, logs = jax.vmap(jax.grad(spooled(program), has_aux=True))(LANES)
    for i, x in enumerate(LANES):
        assert_logs_are(lane(logs, i).trim(), program.expected(x), program.steps and program.steps(x))


# --- tap -------------------------------------------------------------------------------------------------------------


def assert_rows_are(received: list[lox.logdict], logs: lox.logdict) -> None:
    """What a callback got, put together, is what spool returned: key by key, in order, with steps."""
    rows, expected = in_sequence(received).table(), logs.table()
    recorded = [key for key in expected if len(jax.tree.leaves(expected[key])[0])]
    assert sorted(rows) == sorted(recorded)
    for key in recorded:
        # spool promotes the dtypes of one key; a tap sends each record as it is.
        like = jax.tree.map(lambda a, e: a.astype(e.dtype), rows[key], expected[key])
        assert_close(like, expected[key], key)
    assert_steps_equal(rows.steps, expected.filter(lambda key: key in recorded).steps)


@every_program
def test_rows_of_tap_are_the_rows_of_spool(program):
    logs = reference(program)[1]
    assert_rows_are(tapped(program.fun, X)[1], logs)
    assert_rows_are(tapped(jax.jit(program.fun), X)[1], logs)


@every_program
def test_rows_of_a_batched_tap_in_jit_are_the_rows_of_spool(program):
    received: list[lox.logdict] = []
    jax.jit(lox.tap(program.fun, received.append, batch=2))(X)
    jax.effects_barrier()
    assert_rows_are(received, reference(program)[1])
    assert all(len(jax.tree.leaves(value)[0]) <= 2 for logs in received for value in logs.values())


@every_program
def test_vmapped_tap_delivers_each_lane_the_rows_of_its_own_call(program):
    received: list[tuple[int, lox.logdict]] = []

    def numbered(i, x):
        return lox.tap(program.fun, Labelled(i, received))(x)

    jax.vmap(numbered)(jnp.arange(3), LANES)
    jax.effects_barrier()
    for i, x in enumerate(LANES):
        mine = [logs for label, logs in received if label == i]
        assert_rows_are(mine, spooled(program)(x)[1])


def Labelled(i, received):
    """A receiver that learns the lane's number along with each delivery."""
    from lox._host import Receiver

    def handle(delivery):
        received.extend((int(label), logs) for label, logs in delivery.split())

    return Receiver(handle, i)


@differentiable
def test_tap_delivers_each_record_once_when_differentiated(program):
    logs = reference(program)[1]
    backward = program.backward(X) if program.backward else {}
    received: list[lox.logdict] = []
    jax.grad(lox.tap(program.fun, received.append))(X)
    jax.effects_barrier()
    assert_rows_are(received, logs)
    forward = [logs for logs in tapped(jax.grad(program.fun), X)[1] if not set(logs) & set(backward)]
    assert_rows_are(forward, logs)


# --- reductions and sequence -----------------------------------------------------------------------------------------


def reducible(logs: lox.logdict) -> lox.logdict:
    def numeric(key):
        return not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(logs[key]))

    return logs.filter(numeric)


@every_program
@pytest.mark.parametrize("how", ["mean", ("sum", "count", "std"), ("first", "last")], ids=str)
def test_reducing_in_the_program_is_reducing_its_logs(program, how):
    logs = reducible(reference(program)[1])
    reduced = lox.spool(program.fun, argnames=list(logs), reduce=how)(X)[1]
    assert_logs_equal(reduced, logs.reduce(how))


@every_program
def test_logs_of_two_functions_in_sequence_are_the_sum_of_their_logs(program):
    def both(x):
        return program.fun(x) + program.fun(x * 2)

    logs = spooled(program, both)(X)[1]
    expected = reference(program)[1] + spooled(program)(X * 2)[1]
    assert_logs_equal(logs.trim(), expected.trim())


# --- nothing leaks ---------------------------------------------------------------------------------------------------


@every_program
def test_the_function_itself_is_untouched_and_nothing_is_left_to_spool(program):
    jitted = jax.jit(program.fun)
    before = str(jax.make_jaxpr(jitted)(X))
    spooled(program, jitted)(X)
    tapped(jitted, X)
    assert str(jax.make_jaxpr(jitted)(X)) == before
    assert "lox" not in before
    assert "lox_log" not in str(jax.make_jaxpr(spooled(program, jitted))(X))
    assert lox.spool(lambda x: spooled(program)(x)[0])(X)[1] == {}
    assert lox.spool(lox.nolog(program.fun))(X)[1] == {}


@every_program
def test_kept_logs_are_seen_by_an_outer_spool(program):
    def inner(x):
        return lox.spool(program.fun, keep_logs=True, **program.options)(x)[0]

    assert_logs_equal(spooled(program, inner)(X)[1], reference(program)[1])
    assert_logs_equal(spooled(program, lox.tap(program.fun, lambda logs: None))(X)[1], reference(program)[1])


@every_program
@pytest.mark.parametrize("order", ["PSTPTSP", "STPSPTS", "TSPTPST"])
def test_plain_spooled_and_tapped_calls_of_a_jitted_function_do_not_influence_each_other(program, order):
    if program.dynamic and order != "PSTPTSP":
        pytest.skip("one order is enough for programs that compile slowly")
    jitted = jax.jit(program.fun)
    out, logs = reference(program)
    for kind in order:
        if kind == "P":
            assert_close(jitted(X), np.asarray(out))
        elif kind == "S":
            assert_logs_equal(spooled(program, jitted)(X)[1], logs)
        else:
            assert_rows_are(tapped(jitted, X)[1], logs)


@static
def test_dynamic_programs_are_the_only_ones_that_need_a_bound(program):
    assert lox.spool(program.fun)(X)[1].keys() == program.expected(X).keys()
