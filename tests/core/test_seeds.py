"""What lox has always been said to do: each example and claim, as a user would type it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import tapped


def cumulative(xs):
    lox.log({"xs": xs})

    def step(carry, x):
        carry += x
        lox.log({"carry": carry})
        return carry, x

    y, _ = jax.lax.scan(step, 0, xs)
    return y


# --- first steps -----------------------------------------------------------------------------------------------------


def test_tap_streams_the_logs_in_order(capsys):
    y = lox.tap(cumulative, callback=lambda logs: print("Logging:", logs))(jnp.arange(3))
    jax.effects_barrier()
    assert int(y) == 3
    assert capsys.readouterr().out.splitlines() == [
        "Logging: {'xs': [0, 1, 2]}",
        "Logging: {'carry': 0}",
        "Logging: {'carry': 1}",
        "Logging: {'carry': 3}",
    ]


def test_tap_without_a_callback_prints(capsys):
    lox.tap(cumulative)(jnp.arange(3))
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'xs': [0, 1, 2]}\n{'carry': 0}\n{'carry': 1}\n{'carry': 3}\n"


def test_spool_returns_the_logs_beside_the_result():
    y, logs = lox.spool(cumulative)(jnp.arange(3))
    assert int(y) == 3
    assert f"Collected Logs: {logs}" == "Collected Logs: {'xs': [0, 1, 2], 'carry': [0, 1, 3]}"


def test_a_reduction_like_mean_can_be_applied_to_spooled_logs():
    logs = lox.spool(cumulative)(jnp.arange(3))[1]
    means = jax.tree.map(jnp.mean, dict(logs))
    np.testing.assert_allclose(means["carry"], 4 / 3, rtol=1e-6)


def test_step_axes_are_attributes():
    xs = jnp.arange(3)

    def f(xs):
        def body(i, carry):
            carry += xs[i]
            lox.log({"carry": carry}, step=i, episode=i // 2)
            return carry

        return jax.lax.fori_loop(0, len(xs), body, 0)

    y, logs = lox.spool(f)(xs)
    assert int(y) == 3
    assert isinstance(logs, dict)
    assert logs["carry"].tolist() == [0, 1, 3]
    assert logs.step["carry"].tolist() == [0, 1, 2]
    assert logs.episode["carry"].tolist() == [0, 0, 1]


# --- reductions declared where the value is logged ----------------------------------------------------------------------


def test_reductions_at_the_call():
    @jax.jit
    @lox.spool
    def f(a, b):
        lox.log({"b": b}, reduce="mean")
        lox.log({"b": b + 1}, reduce="mean")
        lox.log({"b": b + 1}, reduce="mean")
        x = jnp.sum(a + b)
        lox.log({"y": x**2 - 1}, reduce="replace")
        lox.log({"y": x**2}, reduce="replace")
        return x

    out, logs = f(jnp.arange(3), jnp.zeros(3))
    logs = logs.asdict()
    assert float(out) == 3.0
    assert json.loads(json.dumps(logs, default=str)) == {"b": "[0.6666667 0.6666667 0.6666667]", "y": 9.0}


def test_reductions_at_the_call_inside_control_flow():
    def f(xs):
        def step(total, x):
            lox.log({"x": x}, reduce="mean")
            total = jax.lax.cond(x > 1, lambda t: t + lox.log({"big": x}, reduce="sum")["big"], lambda t: t, total)
            return total, None

        total, _ = jax.lax.scan(step, 0.0, xs)

        def halve(v):
            lox.log({"v": v}, reduce=("max", "count"))
            return v / 2

        return jax.lax.while_loop(lambda v: v > 1, halve, total)

    out, logs = jax.jit(lox.spool(f))(jnp.arange(4.0))
    assert float(out) == 0.625
    assert logs.asdict() == {"x": 1.5, "big": 5.0, "v": {"max": 5.0, "count": 3}}


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.vmap], ids=["jit", "grad", "vmap"])
def test_spool_may_be_applied_outside_the_other_transformations(transform):
    def f(x):
        lox.log({"x": x}, reduce="mean")
        return x * x

    argument = jnp.arange(3.0) if transform is jax.vmap else 2.0
    assert list(lox.spool(transform(f))(argument)[1]) == ["x"]


# --- spool -----------------------------------------------------------------------------------------------------------


def f(x):
    lox.log({"x": x})
    return x + 1.0


def test_spool_of_a_function_of_a_number():
    assert str(lox.spool(f)(1.0)) == "(2.0, {'x': 1.0})"


def test_spool_goes_through_scan():
    def g(xs):
        carry, ys = jax.lax.scan(lambda c, x: (f(c), x + 2.0), 0.0, xs)
        lox.log({"carry": carry})
        return ys

    ys, logs = lox.spool(g)(jnp.arange(3.0))
    assert ys.tolist() == [2.0, 3.0, 4.0]
    assert logs.asdict()["carry"] == 3.0
    assert logs["x"].tolist() == [0.0, 1.0, 2.0]


def test_spool_goes_through_cond_with_equal_logs():
    def h(x):
        return jax.lax.cond(x > 0, f, lambda x: f(x + 1), x)

    out, logs = lox.spool(h)(3.0)
    assert (float(out), float(logs["x"])) == (4.0, 3.0)


def test_spooled_logs_are_consumed():
    def j(x):
        y, _ = lox.spool(f)(x)
        return y

    out, logs = lox.spool(j)(1.0)
    assert float(out) == 2.0
    assert logs == {}


def test_keep_logs_leaves_them_for_an_outer_spool():
    def j(x):
        return lox.spool(f, keep_logs=True)(x)[0]

    assert str(lox.spool(j)(1.0)[1]) == "{'x': 1.0}"


def test_parameters_of_spool():
    def g(x):
        for i in range(4):
            lox.log({"loss": x * i, "other": x}, tags=["metric"] if i % 2 else ["debug"])
        return x

    assert lox.spool(g, argnames=["loss"])(1.0)[1]["loss"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert lox.spool(g, argnames=["loss"], tags=["metric"])(1.0)[1]["loss"].tolist() == [1.0, 3.0]
    assert lox.spool(g, argnames="loss", interval=2)(1.0)[1]["loss"].tolist() == [0.0, 2.0]
    assert float(lox.spool(g, argnames="loss", reduce="mean")(1.0)[1]["loss"]) == 1.5
    assert list(lox.spool(g, prefix="train/")(1.0)[1]) == ["train/loss", "train/other"]


# --- sharp bits ------------------------------------------------------------------------------------------------------


def test_branches_that_log_different_things_are_an_error():
    def g(x):
        return jax.lax.cond(x > 0, lambda x: lox.log({"a": x})["a"], lambda x: x, x)

    with pytest.raises(ValueError, match="branch"):
        lox.spool(g)(1.0)


def test_while_loops_are_for_tap_and_not_for_plain_spool():
    def g(x):
        def body(v):
            lox.log({"v": v})
            return v / 2

        return jax.lax.while_loop(lambda v: v > 1, body, x)

    with pytest.raises(ValueError, match="while_loop"):
        lox.spool(g)(4.0)
    assert [float(logs["v"]) for logs in tapped(g, 4.0)[1]] == [4.0, 2.0]


def test_fori_loop_needs_static_bounds():
    def g(n):
        return jax.lax.fori_loop(0, n, lambda i, c: c + lox.log({"i": i})["i"], 0)

    assert lox.spool(lambda: g(3))()[1]["i"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="while_loop"):
        lox.spool(g)(jnp.int32(3))
    assert len(tapped(g, jnp.int32(3))[1]) == 3


def test_a_function_that_was_jitted_and_called_can_be_spooled():
    traces = []

    @jax.jit
    def g(x):
        traces.append(x)
        lox.log({"x": x})
        return x

    g(1.0)
    g(1.0)
    assert len(traces) == 1
    y, logs = lox.spool(g)(1.0)
    assert len(traces) == 2  # spool compiles it again, once
    assert str((y, logs)) == "(Array(1., dtype=float32, weak_type=True), {'x': 1.0})"
    lox.spool(g)(1.0)
    g(1.0)
    assert len(traces) == 2


def test_jit_after_spool_makes_the_logs_part_of_the_compiled_output():
    compiled = jax.jit(lox.spool(f)).lower(1.0).compile()
    out, logs = compiled(1.0)
    assert (float(out), float(logs["x"])) == (2.0, 1.0)


def test_selective_logging():
    def g(loss, grad_norm):
        lox.log({"loss": loss}, tags=["metric"])
        lox.log({"gradient_norm": grad_norm}, tags=["debug"])
        return loss

    assert [list(logs) for logs in tapped(g, 1.0, 2.0, tags=["metric"])[1]] == [["loss"]]
    assert [list(logs) for logs in tapped(g, 1.0, 2.0, argnames="gradient_*")[1]] == [["gradient_norm"]]
    assert list(lox.spool(g, tags=["debug"])(1.0, 2.0)[1]) == ["gradient_norm"]
