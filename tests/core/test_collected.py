"""Logs that were collected and are logged again: each record, with its own steps and those given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.programs._program import LANES, X


def layers(x):
    def layer(total, v):
        lox.log({"total": total + v}, layer=v)
        return total + v, None

    lox.log({"x": x})
    jax.lax.map(lambda v: lox.log({"some": v}, where=v > 0), x)
    return jax.lax.scan(layer, 0.0, x)[0]


def train(x):
    def step(total, i):
        out, logs = lox.spool(layers)(x)
        lox.log(logs, step=i, prefix="model/")
        return total + out, None

    return jax.lax.scan(step, 0.0, jnp.arange(2))[0]


def expected(x):
    some = [v for v in x if v > 0]
    return {
        "model/x": ([x, x], {"step": [0, 1]}),
        "model/some": (some * 2, {"step": [0] * len(some) + [1] * len(some)}),
        "model/total": (list(np.cumsum(x)) * 2, {"layer": list(x) * 2, "step": [0] * 3 + [1] * 3}),
    }


def check(logs, x):
    logs = logs.trim()
    assert set(logs) == set(expected(x))
    for key, (values, steps) in expected(x).items():
        np.testing.assert_allclose(logs[key], values, rtol=1e-6)
        assert [axis for axis, by_key in logs.steps.items() if key in by_key] == list(steps)
        for axis, column in steps.items():
            np.testing.assert_allclose(logs.steps[axis][key], column)


@pytest.mark.parametrize(
    "transform",
    [
        lox.spool,
        lambda f: jax.jit(lox.spool(f)),
        lambda f: lox.spool(jax.jit(f)),
        lambda f: lox.spool(jax.grad(f)),
        lambda f: lox.spool(f, capacity=16),
    ],
    ids=["spool", "jit(spool)", "spool(jit)", "spool(grad)", "capacity"],
)
def test_each_record_is_recorded_again_with_one_more_axis(transform):
    check(transform(train)(X)[1], X)


def test_each_lane_has_its_own():
    logs = jax.vmap(lox.spool(train))(LANES)[1]
    for lane, x in enumerate(LANES):
        check(jax.tree.map(lambda leaf, lane=lane: leaf[lane], logs), x)


def test_a_tap_gets_the_same_records():
    rows = []
    lox.tap(train, rows.append)(X)
    jax.effects_barrier()
    for key, (values, _) in expected(X).items():
        np.testing.assert_allclose([logs[key] for logs in rows if key in logs], values, rtol=1e-6)


def test_reductions_see_the_records():
    logs = lox.spool(train, reduce="mean")(X)[1]
    for key, (values, _) in expected(X).items():
        np.testing.assert_allclose(logs[key], np.mean(values, axis=0), rtol=1e-6)


def test_a_reduction_of_no_records_is_no_record():
    def none(x):
        logs = lox.spool(lambda v: lox.log({"v": v}, where=v > 100) and v, reduce="mean")(x)[1]
        lox.log(logs, step=1)

    assert lox.spool(none)(1.0)[1].trim()["v"].shape == (0,)


def test_a_plain_call_is_what_it_was():
    assert train(X) == jax.jit(train)(X) == lox.spool(train)(X)[0]
