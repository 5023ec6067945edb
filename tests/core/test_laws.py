"""The laws of spool and tap, each on every program of the corpus, eager, jitted, vmapped and differentiated.

For each change, a program is held to the first laws and to a third of the others."""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core import runs
from tests.core.checks import assert_close, assert_logs_are, assert_logs_equal, assert_steps_equal, in_sequence, tapped
from tests.core.runs import ARGUMENT, lane, spooled
from tests.corpus import LANES, PROGRAMS, Program, X

pytestmark = pytest.mark.usefixtures("quick_compilation")

# Each program is held to one of these groups for each change, and to all of them at night.
about_lanes = pytest.mark.every(3, 0)
about_derivatives = pytest.mark.every(3, 1)
about_the_rest = pytest.mark.every(3, 2)

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=repr)
differentiable = pytest.mark.parametrize("program", [p for p in PROGRAMS if p.differentiable], ids=repr)
unbatched_control = pytest.mark.parametrize("program", [p for p in PROGRAMS if not p.batched_control], ids=repr)


def expected_steps(program: Program, x: Any) -> Any:
    return program.steps(x) if program.steps else {}


def expected_backward(program: Program) -> dict[str, Any]:
    return program.backward(X) if program.backward else {}


# --- logging changes nothing -----------------------------------------------------------------------------------------


@every_program
def test_spool_tap_and_nolog_return_what_the_function_returns(program):
    expected = runs.plain(program)
    assert_close(runs.spool(program)[0], expected)
    assert_close(runs.jit_of_spool(program)[0], expected)
    assert_close(runs.tap_of_jit(program)[0], expected)
    assert_close(jax.jit(lox.nolog(program.fun))(ARGUMENT), expected)


@about_lanes
@every_program
def test_output_is_unchanged_under_vmap(program):
    expected = jax.jit(jax.vmap(program.fun))(LANES)
    assert_close(runs.vmap_of_spool(program)[0], expected)
    assert_close(runs.vmap_of_tap(program)[0], expected)


@about_derivatives
@differentiable
def test_gradient_is_unchanged(program):
    expected = runs.grad(program)
    assert_close(runs.grad_of_spool(program)[0], expected)
    assert_close(runs.spool_of_grad(program)[0], expected)
    assert_close(runs.grad_of_tap(program)[0], expected)
    assert_close(runs.tap_of_grad(program)[0], expected)


# --- what is recorded ------------------------------------------------------------------------------------------------


@every_program
def test_spool_returns_the_expected_records(program):
    assert_logs_are(runs.spool(program)[1].trim(), program.expected(X), expected_steps(program, X))


@every_program
def test_spool_of_jit_is_jit_of_spool_is_spool(program):
    logs = runs.spool(program)[1]
    assert_logs_equal(runs.jit_of_spool(program)[1], logs)
    assert_logs_equal(spooled(program, jax.jit(program.fun))(ARGUMENT)[1], logs)


@about_lanes
@every_program
def test_each_lane_of_vmapped_spool_has_the_records_of_its_own_call(program):
    logs = runs.vmap_of_spool(program)[1]
    for i, x in enumerate(LANES):
        assert_logs_are(lane(logs, i).trim(), program.expected(x), expected_steps(program, x))


@about_lanes
@unbatched_control
def test_spool_of_vmap_is_vmap_of_spool_with_axes_swapped(program):
    outer = spooled(program, jax.jit(jax.vmap(program.fun)))(LANES)[1]
    inner = runs.vmap_of_spool(program)[1]
    assert list(outer) == list(inner)
    assert outer.stacked == inner.stacked

    def swapped(key, leaf):
        return jnp.swapaxes(leaf, 0, 1) if key in inner.stacked else leaf

    for key in inner:
        assert_close(outer[key], jax.tree.map(functools.partial(swapped, key), inner[key]), key)
        np.testing.assert_array_equal(*np.broadcast_arrays(outer.counts[key], inner.counts[key]))
    steps = {axis: {k: swapped(k, leaf) for k, leaf in by_key.items()} for axis, by_key in inner.steps.items()}
    assert_steps_equal(outer.steps, steps)


# --- grad ------------------------------------------------------------------------------------------------------------


@about_derivatives
@differentiable
def test_grad_of_spool_has_the_logs_of_the_function(program):
    assert_logs_equal(runs.grad_of_spool(program)[1], runs.spool(program)[1])


@about_derivatives
@differentiable
def test_spool_of_grad_has_the_logs_of_the_function_and_of_backward_rules(program):
    backward = expected_backward(program)
    for logs in (runs.spool_of_grad(program)[1], spooled(program, jax.grad(jax.jit(program.fun)))(ARGUMENT)[1]):
        assert_logs_equal(logs.filter(lambda key: key not in backward), runs.spool(program)[1])
        back = logs.filter(lambda key: key in backward)
        assert_logs_are(back, backward, back.steps)


@about_derivatives
@differentiable
def test_jvp_and_linearize_record_each_mark_once(program):
    if "custom_vjp" in program.name:
        pytest.skip("forward mode is not defined for custom_vjp")
    if program.name == "custom_linear_solve":
        pytest.skip("its tangents are solved for by the same function: test_rules has how often that records")
    logs = runs.spool(program)[1]
    ones = jnp.ones_like(ARGUMENT)
    linearized = spooled(program, jax.jit(lambda x: jax.linearize(program.fun, x)[1](ones)))
    assert_logs_equal(linearized(ARGUMENT)[1], logs)
    forward_mode = spooled(program, lambda x: jax.jvp(program.fun, (x,), (ones,))[1])
    assert_same_types(jax.eval_shape(forward_mode, ARGUMENT)[1], logs)


@about_derivatives
@differentiable
def test_vmapped_gradients_have_the_records_of_each_lane(program):
    if jax.config.jax_enable_checks and jax.__version_info__ < (0, 11):
        try:
            jax.eval_shape(jax.jit(jax.vmap(jax.grad(program.fun))), LANES)
        except TypeError:
            pytest.skip("JAX < 0.11 cannot check a checkpointed scan under vmap, without lox either")
    _, logs = jax.jit(jax.vmap(jax.grad(spooled(program), has_aux=True)))(LANES)
    for i, x in enumerate(LANES):
        assert_logs_are(lane(logs, i).trim(), program.expected(x), expected_steps(program, x))


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
    logs = runs.spool(program)[1]
    assert_rows_are(tapped(program.fun, ARGUMENT)[1], logs)
    assert_rows_are(runs.tap_of_jit(program)[1], logs)


@about_the_rest
@every_program
def test_rows_of_a_batched_tap_are_the_rows_of_spool(program):
    """Batches keep the order of each call of ``lox.log``; those of several calls of one key may overtake each other."""
    received: list[lox.logdict] = []
    jax.jit(lox.tap(program.fun, received.append, batch=2))(ARGUMENT)
    jax.effects_barrier()
    rows, expected = in_sequence(received).table(), runs.spool(program)[1].table()
    assert_rows_are([sorted_rows(rows)], sorted_rows(expected))
    assert all(len(jax.tree.leaves(value)[0]) <= 2 for logs in received for value in logs.values())


def sorted_rows(table: lox.logdict) -> lox.logdict:
    """The rows of each key of a table of numpy, sorted by value."""
    order = {}
    for key in table:
        columns = [
            column
            for leaf in jax.tree.leaves(table[key])
            for column in leaf.reshape(len(leaf), math.prod(leaf.shape[1:])).T
        ]
        order[key] = np.lexsort([np.real(column).astype(np.float64) for column in columns])
    return lox.logdict(
        {key: jax.tree.map(lambda leaf, key=key: leaf[order[key]], value) for key, value in table.items()},
        {axis: {key: steps[order[key]] for key, steps in by_key.items()} for axis, by_key in table.steps.items()},
        stacked=table,
    )


@about_lanes
@every_program
def test_vmapped_tap_delivers_each_lane_the_rows_of_its_own_call(program):
    spool = runs.vmap_of_spool(program)[1]
    for i, received in enumerate(runs.vmap_of_tap(program)[1]):
        assert_rows_are(received, lane(spool, i))


@about_derivatives
@differentiable
def test_tap_delivers_each_record_once_when_differentiated(program):
    logs, backward = runs.spool(program)[1], expected_backward(program)
    assert_rows_are(runs.grad_of_tap(program)[1], logs)
    assert_rows_are([each for each in runs.tap_of_grad(program)[1] if not set(each) & set(backward)], logs)


# --- reductions and sequence -----------------------------------------------------------------------------------------


def reducible(logs: lox.logdict) -> lox.logdict:
    def numeric(key):
        return not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(logs[key]))

    return logs.filter(numeric)


@about_the_rest
@every_program
def test_reducing_in_the_program_is_reducing_its_logs(program):
    how = ("mean", "sum", "std", "count", "first", "last")
    logs = reducible(runs.spool(program)[1])
    reduced = jax.jit(lox.spool(program.fun, argnames=list(logs), reduce=how))(ARGUMENT)[1]
    assert_logs_equal(reduced, jax.jit(lambda logs: logs.reduce(how))(logs))


@about_the_rest
@every_program
def test_logs_of_two_functions_in_sequence_are_the_sum_of_their_logs(program):
    def both(x):
        return program.fun(x) + program.fun(x * 2)

    _, first = runs.spool(program)
    _, second = jax.jit(spooled(program))(ARGUMENT * 2)
    logs = jax.jit(spooled(program, both))(ARGUMENT)[1]
    assert_logs_equal(logs.trim(), (first + second).trim())


# --- nothing leaks ---------------------------------------------------------------------------------------------------


@every_program
def test_the_function_itself_is_untouched_and_nothing_is_left_to_spool(program):
    jitted = jax.jit(program.fun)
    before = str(jax.make_jaxpr(jitted)(ARGUMENT))
    spooled_jaxpr = str(jax.make_jaxpr(spooled(program, jitted))(ARGUMENT))
    assert "lox_deliver" in str(jax.make_jaxpr(lox.tap(jitted))(ARGUMENT)) or not program.expected(X)
    assert str(jax.make_jaxpr(jitted)(ARGUMENT)) == before
    assert "lox" not in before
    # `lox_log_grad`, the identity, may stay: what it records is recorded by whoever differentiates outside.
    assert not re.search(r"lox_log\b|lox_deliver|Lox", spooled_jaxpr)
    assert jax.eval_shape(lox.spool(lambda x: spooled(program)(x)[0]), ARGUMENT)[1] == {}
    assert jax.eval_shape(lox.spool(lox.nolog(program.fun)), ARGUMENT)[1] == {}


@about_the_rest
@every_program
def test_kept_logs_are_seen_by_an_outer_spool(program):
    def inner(x):
        return lox.spool(program.fun, keep_logs=True, **program.options)(x)[0]

    assert_logs_equal(spooled(program, jax.jit(inner))(ARGUMENT)[1], runs.spool(program)[1])


@about_the_rest
@every_program
def test_tapped_logs_are_seen_by_an_outer_spool(program):
    inner = lox.tap(program.fun, lambda logs: None)
    assert_same_types(jax.eval_shape(spooled(program, inner), ARGUMENT)[1], runs.spool(program)[1])


def assert_same_types(actual: lox.logdict, expected: lox.logdict) -> None:
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), (actual, jax.eval_shape(lambda: expected)))
    assert shapes[0] == shapes[1]


def assert_calls_do_not_influence_each_other(program: Program, order: str) -> None:
    out, logs = runs.spool(program)
    jitted = jax.jit(program.fun)
    for kind in order:
        if kind == "P":
            assert_close(jitted(ARGUMENT), out)
        elif kind == "S":
            assert_logs_equal(spooled(program, jitted)(ARGUMENT)[1], logs)
        else:
            assert_rows_are(tapped(jitted, ARGUMENT)[1], logs)


@about_the_rest
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_plain_spooled_and_tapped_calls_of_a_jitted_function_do_not_influence_each_other(program):
    """Each order has each kind of call after each other one; what comes first differs from program to program."""
    order = ("PSTPTSP", "SPTSTPS", "TPSTSPT")[PROGRAMS.index(program) % 3]
    assert_calls_do_not_influence_each_other(program, order)


IN_ANY_ORDER = ("scan", "nested_jits", "custom_vjp_in_a_scan", "scan_of_a_checkpoint", "grad_inside")


@pytest.mark.parametrize("order", ["".join(order) for order in itertools.permutations("PST")])
@pytest.mark.parametrize("program", [program for program in PROGRAMS if program.name in IN_ANY_ORDER], ids=repr)
def test_the_first_calls_may_come_in_any_order(program, order):
    assert_calls_do_not_influence_each_other(program, order)
