"""Training loops on optax: evaluation in a conditional, and layers in a scan with checkpoint policies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, lane, tapped

optax = pytest.importorskip("optax", reason="optax is not installed")

STEPS, EVERY = 10, 4


def loss_of(weights: Any, x: Any) -> Any:
    return jnp.sum((weights - x) ** 2)


def train(start: Any, mark: bool) -> Any:
    """Every fourth step is followed by an evaluation. By hand: all losses, all evaluations, and where they happened."""
    optimiser = optax.adam(0.1)

    def evaluate(weights: Any, i: Any) -> Any:
        error = jnp.max(jnp.abs(weights - 3.0))
        if mark:
            lox.log({"eval/error": error}, step=i)
        return error

    def step(carry: Any, i: Any) -> Any:
        weights, state = carry
        loss, gradients = jax.value_and_grad(loss_of)(weights, 3.0)
        updates, state = optimiser.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        if mark:
            lox.log({"train/loss": loss}, step=i)
        due = i % EVERY == 0
        error = jax.lax.cond(due, evaluate, lambda weights, i: jnp.float32(-1.0), weights, i)
        return (weights, state), (loss, due, error)

    (weights, _), seen = jax.lax.scan(step, (start, optimiser.init(start)), jnp.arange(STEPS))
    return weights, seen


START = jnp.zeros(3)


def expected(start: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    weights, (losses, due, errors) = train(start, mark=False)
    return weights, np.asarray(losses), np.asarray(errors)[np.asarray(due)]


def test_an_evaluation_now_and_then() -> None:
    weights, losses, errors = expected(START)
    (logged, _), logs = lox.spool(jax.jit(lambda start: train(start, mark=True)), capacity=5)(START)
    np.testing.assert_allclose(logged, weights, rtol=1e-6)
    assert_rows(logs, {"train/loss": losses, "eval/error": errors})
    assert logs.trim().step["eval/error"].tolist() == [0, 4, 8]


def test_only_the_last_evaluations_are_kept() -> None:
    _, losses, errors = expected(START)
    _, logs = lox.spool(lambda start: train(start, mark=True), capacity=2)(START)
    assert_rows(logs, {"train/loss": losses, "eval/error": errors[-2:]})
    assert int(logs.counts["eval/error"]) == len(errors)


def test_the_difference_between_the_branches_is_an_error_that_says_so() -> None:
    with pytest.raises(lox.LoxError, match=r"eval/error.*branch 0.*test_optax\.py:\d+|eval/error.*does not record"):
        lox.spool(lambda start: train(start, mark=True))(START)


def test_a_sweep_over_starting_points() -> None:
    starts = jnp.stack([START, START + 1.0, START - 5.0])
    _, logs = jax.jit(jax.vmap(lox.spool(lambda start: train(start, mark=True), capacity=4)))(starts)
    for i, start in enumerate(starts):
        _, losses, errors = expected(start)
        assert_rows(lane(logs, i), {"train/loss": losses, "eval/error": errors}, 1e-4)


def test_a_tap_streams_evaluations_as_they_happen() -> None:
    _, losses, errors = expected(START)
    _, rows = tapped(jax.jit(lambda start: train(start, mark=True)), START)
    np.testing.assert_allclose(rows["train/loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(rows["eval/error"], errors, rtol=1e-5)


# --- layers in a scan ------------------------------------------------------------------------------------------------

WEIGHTS = jax.random.normal(jax.random.key(0), (4, 3, 3)) * 0.5
INPUT = jnp.arange(3.0)
POLICIES = ["nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable"]


def layers(weights: Any, x: Any, policy: Any, mark: bool) -> tuple[Any, Any]:
    def layer(x: Any, w: Any) -> Any:
        before = w @ x
        if mark:
            lox.log({"activation": before.mean(), "scale": jnp.float32(2.0)})
        x = jnp.tanh(before)
        return x, before.mean()

    x, means = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, weights)
    return jnp.sum(x**2), means


@pytest.mark.parametrize("policy", [None, *POLICIES])
def test_layers_with_checkpoints_are_recorded_once(policy: str | None) -> None:
    chosen = getattr(jax.checkpoint_policies, policy) if policy else None
    plain = jax.grad(lambda weights: layers(weights, INPUT, chosen, mark=False)[0])(WEIGHTS)
    _, means = layers(WEIGHTS, INPUT, chosen, mark=False)
    loss = lambda weights: layers(weights, INPUT, chosen, mark=True)[0]  # noqa: E731
    for gradient, logs in (
        lox.spool(jax.grad(loss))(WEIGHTS),
        jax.grad(lox.spool(loss), has_aux=True)(WEIGHTS),
        jax.jit(lox.spool(jax.grad(loss)))(WEIGHTS),
    ):
        np.testing.assert_allclose(gradient, plain, rtol=1e-5, atol=1e-6)
        assert_rows(logs, {"activation": means, "scale": [2.0] * len(WEIGHTS)})


def test_gradients_of_activations_flow_backwards() -> None:
    def loss(weights: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jnp.tanh(lox.log_grad(w @ x, "cotangent")), None

        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), INPUT, weights)[0] ** 2)

    def by_hand(offsets: Any) -> Any:
        x = INPUT
        for w, offset in zip(WEIGHTS, offsets, strict=True):
            x = jnp.tanh(w @ x + offset)
        return jnp.sum(x**2)

    _, logs = lox.spool(jax.grad(loss))(WEIGHTS)
    cotangents = jax.grad(by_hand)(jnp.zeros((len(WEIGHTS), 3)))
    assert_rows(logs, {"cotangent": cotangents[::-1]})
