"""PPO on a cart and pole, all of it in JAX: the training job that the benchmarks log.

``update`` returns its metrics; who calls it decides what becomes of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = Any
# What PPO is usually run with on this task: 512 steps of the environment and 16 gradients an update.
ENVS, STEPS, EPOCHS, MINIBATCHES, HIDDEN = 4, 128, 4, 4, 64
DISCOUNT, LAMBDA, CLIP, LEARNING_RATE, ENTROPY = 0.99, 0.95, 0.2, 3e-4, 0.01


class Batch(NamedTuple):
    observation: Array
    action: Array
    log_prob: Array
    value: Array
    reward: Array
    done: Array


class Training(NamedTuple):
    key: Array
    params: Any
    momentum: Any
    env: Array  # position, velocity, angle, angular velocity of each environment
    returns: Array  # of the episodes that are running
    last_return: Array  # of the episodes that ended last


def init(key: Array) -> Training:
    keys = jax.random.split(key, 5)
    sizes = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 3)]  # two logits and a value
    params = [
        (jax.random.normal(k, size) / size[0] ** 0.5, jnp.zeros(size[1])) for k, size in zip(keys, sizes, strict=False)
    ]
    env = jax.random.uniform(keys[3], (ENVS, 4), minval=-0.05, maxval=0.05)
    return Training(keys[4], params, jax.tree.map(jnp.zeros_like, params), env, jnp.zeros(ENVS), jnp.zeros(ENVS))


def policy(params: Any, x: Array) -> tuple[Array, Array]:
    for weight, bias in params[:-1]:
        x = jnp.tanh(x @ weight + bias)
    out = x @ params[-1][0] + params[-1][1]
    return jax.nn.log_softmax(out[..., :2]), out[..., 2]


def physics(state: Array, action: Array) -> tuple[Array, Array]:
    position, velocity, angle, spin = jnp.moveaxis(state, -1, 0)
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    pull = push - 0.05 * turn * jnp.cos(angle) / 1.1
    rates = jnp.stack([velocity, pull, spin, turn], axis=-1)
    state = state + 0.02 * rates
    return state, (jnp.abs(state[..., 0]) > 2.4) | (jnp.abs(state[..., 2]) > 0.21)


def rollout(training: Training) -> tuple[Training, Batch]:
    def step(training: Training, _: None) -> tuple[Training, Batch]:
        key, action_key, reset_key = jax.random.split(training.key, 3)
        log_probs, value = policy(training.params, training.env)
        action = jax.random.categorical(action_key, log_probs)
        env, done = physics(training.env, action)
        returns = training.returns + 1.0
        fresh = jax.random.uniform(reset_key, env.shape, minval=-0.05, maxval=0.05)
        log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
        batch = Batch(training.env, action, log_prob, value, jnp.ones(ENVS), done)
        training = training._replace(
            key=key,
            env=jnp.where(done[:, None], fresh, env),
            returns=jnp.where(done, 0.0, returns),
            last_return=jnp.where(done, returns, training.last_return),
        )
        return training, batch

    return jax.lax.scan(step, training, None, length=STEPS)


def advantages(batch: Batch, last_value: Array) -> Array:
    def step(carry: Any, x: Any) -> Any:
        following, advantage = carry
        alive = 1.0 - x.done
        delta = x.reward + DISCOUNT * following * alive - x.value
        advantage = delta + DISCOUNT * LAMBDA * alive * advantage
        return (x.value, advantage), advantage

    return jax.lax.scan(step, (last_value, jnp.zeros_like(last_value)), batch, reverse=True)[1]


def loss_of(params: Any, batch: Batch, advantage: Array, target: Array) -> tuple[Array, dict[str, Array]]:
    log_probs, value = policy(params, batch.observation)
    log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], 1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    value_loss = jnp.mean((value - target) ** 2)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    loss = policy_loss + 0.5 * value_loss - ENTROPY * entropy
    metrics = {"loss": loss, "policy": policy_loss, "value": value_loss, "entropy": entropy}
    return loss, {**metrics, "kl": jnp.mean(batch.log_prob - log_prob), "clipped": jnp.mean(jnp.abs(ratio - 1) > CLIP)}


def update(training: Training) -> tuple[Training, dict[str, Array]]:
    """One iteration: a rollout, then a few epochs of minibatches. The metrics are eight scalars."""
    training, batch = rollout(training)
    advantage = advantages(batch, policy(training.params, training.env)[1])
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batch, advantage, advantage + batch.value))

    def minibatch(carry: Any, part: Any) -> Any:
        params, momentum = carry
        (_, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(params, *part)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - LEARNING_RATE * m, params, momentum)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        return (params, momentum), {**metrics, "grad_norm": norm}

    def epoch(carry: Any, key: Array) -> Any:
        order = jax.random.permutation(key, ENVS * STEPS)
        parts = jax.tree.map(lambda x: x[order].reshape(MINIBATCHES, -1, *x.shape[1:]), flat)
        return jax.lax.scan(minibatch, carry, parts)

    key, *keys = jax.random.split(training.key, EPOCHS + 1)
    (params, momentum), metrics = jax.lax.scan(epoch, (training.params, training.momentum), jnp.stack(keys))
    metrics = {name: values.mean() for name, values in metrics.items()}
    training = training._replace(key=key, params=params, momentum=momentum)
    return training, {**metrics, "return": training.last_return.mean()}
