"""Reinforcement learning in the style of PureJaxRL: nested scans on a jitted environment, vmapped over seeds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, lane, tapped

optax = pytest.importorskip("optax", reason="optax is not installed")

UPDATES, ROLLOUT, EPOCHS, BATCHES, SEEDS = 3, 6, 2, 2, 3


@jax.jit
def env_step(state: Any, action: Any, key: Any) -> Any:
    """A walk on a line. An episode ends at the edge, or after five steps."""
    position, length = state
    position = position + jnp.where(action == 1, 1.0, -1.0) + 0.1 * jax.random.normal(key)
    length = length + 1
    done = (jnp.abs(position) > 2.0) | (length >= 5)
    return (jnp.where(done, 0.0, position), jnp.where(done, 0, length)), -jnp.abs(position), done, length


def train(key: Any, mark: bool) -> Any:
    """The trained weights, and by hand everything that the marks record."""
    optimiser = optax.sgd(0.05)

    def rollout(carry: Any, key: Any) -> Any:
        weights, state, i = carry
        act, noise = jax.random.split(key)
        action = jax.random.bernoulli(act, jax.nn.sigmoid(weights[0] * state[0] + weights[1])).astype(jnp.int32)
        observation = state[0]
        state, reward, done, length = env_step(state, action, noise)
        if mark:
            lox.log({"episode/length": length}, where=done, frame=i)
        return (weights, state, i + 1), (observation, action, reward, done, length)

    def loss_of(weights: Any, batch: Any) -> Any:
        observation, action, reward = batch
        chance = jax.nn.log_sigmoid((2 * action - 1) * (weights[0] * observation + weights[1]))
        return -jnp.mean(chance * (reward - reward.mean()))

    def minibatch(carry: Any, batch: Any) -> Any:
        weights, state = carry
        loss, gradients = jax.value_and_grad(loss_of)(weights, batch)
        if mark:
            lox.log({"loss": loss})
        updates, state = optimiser.update(gradients, state)
        return (optax.apply_updates(weights, updates), state), loss

    def epoch(carry: Any, key: Any, batch: Any) -> Any:
        order = jax.random.permutation(key, ROLLOUT)
        shuffled = jax.tree.map(lambda x: x[order].reshape(BATCHES, -1), batch)
        return jax.lax.scan(minibatch, carry, shuffled)

    def update(carry: Any, key: Any) -> Any:
        weights, opt_state, env_state, i = carry
        roll, shuffle = jax.random.split(key)
        (_, env_state, i), seen = jax.lax.scan(rollout, (weights, env_state, i), jax.random.split(roll, ROLLOUT))
        observation, action, reward, done, length = seen
        if mark:
            lox.log({"reward": reward.mean()})
        batch = (observation, action, reward)
        (weights, opt_state), losses = jax.lax.scan(
            lambda carry, key: epoch(carry, key, batch), (weights, opt_state), jax.random.split(shuffle, EPOCHS)
        )
        return (weights, opt_state, env_state, i), (losses, reward.mean(), done, length)

    weights = jnp.zeros(2)
    start = (weights, optimiser.init(weights), (jnp.float32(0.0), jnp.int32(0)), jnp.int32(0))
    (weights, *_), seen = jax.lax.scan(update, start, jax.random.split(key, UPDATES))
    return weights, seen


KEYS = jax.random.split(jax.random.key(3), SEEDS)


@pytest.fixture(scope="module")
def by_hand() -> list[dict[str, Any]]:
    weights, (losses, rewards, done, length) = jax.jit(jax.vmap(lambda key: train(key, mark=False)))(KEYS)
    return [
        {
            "weights": weights[i],
            "loss": np.ravel(losses[i]),
            "reward": rewards[i],
            "episode/length": np.ravel(length[i])[np.ravel(done[i])],
            "frame": np.nonzero(np.ravel(done[i]))[0],
        }
        for i in range(SEEDS)
    ]


def rows_of(expected: dict[str, Any]) -> dict[str, Any]:
    return {key: expected[key] for key in ("loss", "reward", "episode/length")}


@pytest.mark.parametrize("capacity", [None, UPDATES * ROLLOUT])
def test_seeds_in_parallel(by_hand: list[dict[str, Any]], capacity: int | None) -> None:
    spooled = lox.spool(lambda key: train(key, mark=True), capacity=capacity)
    (weights, _), logs = jax.jit(jax.vmap(spooled))(KEYS)
    for i, expected in enumerate(by_hand):
        np.testing.assert_allclose(weights[i], expected["weights"], rtol=1e-4, atol=1e-6)
        mine = lane(logs, i)
        assert_rows(mine, rows_of(expected), 1e-4)
        assert mine.trim().frame["episode/length"].tolist() == expected["frame"].tolist()


def test_means_are_those_of_the_episodes_that_ended(by_hand: list[dict[str, Any]]) -> None:
    spooled = lox.spool(lambda key: train(key, mark=True), reduce=("mean", "count"))
    _, logs = jax.jit(jax.vmap(spooled))(KEYS)
    for i, expected in enumerate(by_hand):
        lengths = expected["episode/length"]
        np.testing.assert_allclose(logs["episode/length"]["mean"][i], lengths.mean(), rtol=1e-5)
        assert int(logs["episode/length"]["count"][i]) == len(lengths)


def test_a_tap_of_one_seed(by_hand: list[dict[str, Any]]) -> None:
    _, rows = tapped(jax.jit(lambda key: train(key, mark=True)), KEYS[0])
    for key, expected in rows_of(by_hand[0]).items():
        np.testing.assert_allclose(rows[key], expected, rtol=1e-4, atol=1e-6)


def test_a_tap_of_all_seeds_delivers_only_what_happened(by_hand: list[dict[str, Any]]) -> None:
    lengths: list[int] = []
    streamed = lox.tap(
        lambda key: train(key, mark=True), lambda logs: lengths.append(int(logs["episode/length"])), "episode/*"
    )
    jax.block_until_ready(jax.jit(jax.vmap(streamed))(KEYS))
    jax.effects_barrier()
    expected = np.concatenate([expected["episode/length"] for expected in by_hand])
    assert sorted(lengths) == sorted(expected.tolist())
