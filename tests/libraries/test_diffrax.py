"""Marks inside the vector field of an ordinary differential equation, and gradients through its solution."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, lane, tapped

diffrax = pytest.importorskip("diffrax", reason="diffrax is not installed: hatch run libs:test")

STEPS, STEP = 4, 0.25
RATE = jnp.float32(0.5)


def solve(rate: Any, solver: Any = None, **options: Any) -> Any:
    def field(t: Any, y: Any, rate: Any) -> Any:
        lox.log({"y": y}, t=t)
        return -rate * y

    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        solver or diffrax.Euler(),
        t0=0.0,
        t1=STEPS * STEP,
        dt0=STEP,
        y0=jnp.float32(1.0),
        args=rate,
        **{"max_steps": 16, **options},
    ).ys[0]


def by_hand(rate: Any) -> tuple[Any, np.ndarray]:
    """Euler's method: the solution, and y wherever the field was asked for."""
    y, seen = jnp.float32(1.0), []
    for _ in range(STEPS):
        seen.append(y)
        y = y - STEP * rate * y
    return y, jnp.stack(seen)


def test_the_field_is_recorded_at_every_step() -> None:
    y, logs = lox.spool(solve, capacity=8)(RATE)
    expected, seen = by_hand(RATE)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    assert_rows(logs, {"y": seen})
    np.testing.assert_allclose(logs.trim().t["y"], np.arange(STEPS) * STEP)
    assert int(logs.counts["y"]) == STEPS


def test_without_a_bound_the_error_names_the_field() -> None:
    with pytest.raises(lox.LoxError, match=r"test_diffrax\.py:\d+.*while_loop.*capacity"):
        lox.spool(solve)(RATE)


def test_a_tap_streams_the_field() -> None:
    _, rows = tapped(solve, RATE)
    np.testing.assert_allclose(rows["y"], by_hand(RATE)[1], rtol=1e-6)


def test_the_gradient_of_a_spooled_solve() -> None:
    gradient, logs = jax.grad(lox.spool(solve, capacity=8), has_aux=True)(RATE)
    np.testing.assert_allclose(gradient, jax.grad(lambda rate: by_hand(rate)[0])(RATE), rtol=1e-5)
    assert_rows(logs, {"y": by_hand(RATE)[1]})


def test_a_spooled_gradient_also_sees_the_backward_pass() -> None:
    """diffrax's checkpointed loop runs the field again in a backward rule of its own: those are records too."""
    gradient, logs = lox.spool(jax.grad(solve), capacity=20)(RATE)
    np.testing.assert_allclose(gradient, jax.grad(lambda rate: by_hand(rate)[0])(RATE), rtol=1e-5)
    seen = np.asarray(by_hand(RATE)[1])
    assert_rows(logs, {"y": np.concatenate([seen, seen[::-1]])})


def test_the_gradient_of_a_solve_that_jax_differentiates_itself() -> None:
    direct = lambda rate: solve(rate, adjoint=diffrax.DirectAdjoint())  # noqa: E731
    gradient, logs = lox.spool(jax.grad(direct), capacity=20)(RATE)
    np.testing.assert_allclose(gradient, jax.grad(lambda rate: by_hand(rate)[0])(RATE), rtol=1e-5)
    assert_rows(logs, {"y": by_hand(RATE)[1]})


def test_solves_in_parallel() -> None:
    rates = jnp.array([0.5, 1.0, 2.0], jnp.float32)
    ys, logs = jax.jit(jax.vmap(lox.spool(solve, capacity=8)))(rates)
    for i, rate in enumerate(rates):
        y, seen = by_hand(rate)
        np.testing.assert_allclose(ys[i], y, rtol=1e-6)
        assert_rows(lane(logs, i), {"y": seen})


def adaptive(rate: Any, solver: Any) -> Any:
    return solve(rate, solver, stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4), max_steps=512)


RATES = jnp.array([0.1, 8.0, 1.0], jnp.float32)


def test_each_lane_of_an_adaptive_solver_has_its_own_records() -> None:
    """The loop runs on for lanes that are done."""
    spooled = lox.spool(lambda rate: adaptive(rate, diffrax.Heun()), capacity=1024)
    ys, logs = jax.vmap(spooled)(RATES)
    _, of_gradients = jax.vmap(jax.grad(spooled, has_aux=True))(RATES)
    lengths = set()
    for i, rate in enumerate(RATES):
        y, own = spooled(rate)
        np.testing.assert_allclose(ys[i], y, rtol=1e-6)
        lengths.add(int(own.counts["y"]))
        for found in (lane(logs, i), lane(of_gradients, i)):
            assert int(found.counts["y"]) == int(own.counts["y"])
            assert_rows(found, {"y": own.trim()["y"]})
            np.testing.assert_allclose(found.trim().t["y"], own.trim().t["y"], rtol=1e-5)
    assert len(lengths) > 1


def test_a_tap_of_an_adaptive_solver_delivers_each_lane_its_own_records() -> None:
    heun = lambda rate: adaptive(rate, diffrax.Heun())  # noqa: E731
    seen: list[Any] = []
    jax.jit(jax.vmap(lox.tap(heun, seen.append)))(RATES)
    jax.effects_barrier()
    alone = [tapped(heun, rate)[1]["y"] for rate in RATES]
    assert len(seen) == sum(map(len, alone))
    np.testing.assert_allclose(
        sorted(float(logs["y"]) for logs in seen), sorted(float(y) for rows in alone for y in rows), rtol=1e-5
    )


def test_a_stage_that_is_computed_again_for_another_lane_is_recorded() -> None:
    """After a rejected first step, Tsit5 computes its first stage again, in all lanes, and goes on with that."""
    spooled = lox.spool(lambda rate: adaptive(rate, diffrax.Tsit5()), reduce="count")
    rates = RATES[:2]
    alone = [int(spooled(rate)[1]["y"]) for rate in rates]
    assert jax.vmap(spooled)(rates)[1]["y"].tolist() == [alone[0] + 1, alone[1]]
