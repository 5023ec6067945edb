"""PPO on a cart and a pole, from many seeds in one compiled program, to TensorBoard while it runs.

Needs optax, lox-tensorboard (see docs/install.md) and tensorboard.

    python examples/ppo_seeds.py
    tensorboard --logdir runs/examples/ppo_seeds
"""

import argparse
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import lox
import lox.loggers

LENGTH = 200  # an episode is cut off here


class Env(NamedTuple):
    state: jax.Array  # cart position, cart velocity, pole angle, pole velocity
    time: jax.Array
    total: jax.Array


def reset(key):
    return Env(jax.random.uniform(key, (4,), minval=-0.05, maxval=0.05), jnp.zeros((), jnp.int32), jnp.zeros(()))


def step_env(key, env, action):
    """The textbook cart and pole: one Euler step of 20 ms. When an episode ends, a new one begins."""
    x, v, angle, spin = env.state
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    turn = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    speed_up = push - 0.05 * turn * jnp.cos(angle) / 1.1
    state = env.state + 0.02 * jnp.stack([v, speed_up, spin, turn])
    total, time = env.total + 1, env.time + 1
    done = (jnp.abs(state[0]) > 2.4) | (jnp.abs(state[2]) > 0.21) | (time >= LENGTH)
    after = jax.tree.map(lambda new, old: jnp.where(done, new, old), reset(key), Env(state, time, total))
    return after, done, total


def init_params(key, width=64):
    keys = jax.random.split(key, 3)
    sizes = [(4, width, 0.5), (width, 2, 0.01), (width, 1, 0.1)]
    return [(scale * jax.random.normal(k, (n, m)), jnp.zeros(m)) for k, (n, m, scale) in zip(keys, sizes, strict=True)]


def policy(params, state):
    """The logits of the actions, and the value of the state."""
    (w, b), (w_action, b_action), (w_value, b_value) = params
    hidden = jnp.tanh(state @ w + b)
    return hidden @ w_action + b_action, (hidden @ w_value + b_value)[..., 0]


def play(key, params, envs, frames, first_frame):
    """Runs all environments, and logs the return of each episode that ends."""
    count = envs.time.shape[0]

    def frame(envs, i):
        act_key, env_key = jax.random.split(jax.random.fold_in(key, i))
        logits, value = policy(params, envs.state)
        action = jax.random.categorical(act_key, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], axis=-1)[:, 0]
        after, done, total = jax.vmap(step_env)(jax.random.split(env_key, count), envs, action)
        # A record for each environment whose episode has just ended.
        lox.log({"episode/return": total}, where=done, lanes=True, step=first_frame + i)
        return after, (envs.state, action, log_prob, value, done)

    return jax.lax.scan(frame, envs, jnp.arange(frames))


def advantages(values, dones, last_value, discount=0.99, decay=0.95):
    """Generalised advantage estimation; every frame has the reward 1."""

    def back(carry, at):
        advantage, next_value = carry
        value, done = at
        error = 1 + discount * next_value * ~done - value
        advantage = error + discount * decay * ~done * advantage
        return (advantage, value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), (values, dones), reverse=True)[1]


def loss_of(params, batch, clip=0.2):
    state, action, old_log_prob, advantage, target = batch
    logits, value = policy(params, state)
    log_probs = jax.nn.log_softmax(logits)
    ratio = jnp.exp(jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0] - old_log_prob)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    actor = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage).mean()
    critic = 0.5 * jnp.mean((value - target) ** 2)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1).mean()
    clipped = jnp.mean(jnp.abs(ratio - 1) > clip)
    lox.log({"ppo/actor": actor, "ppo/critic": critic, "ppo/entropy": entropy, "ppo/clipped": clipped})
    return actor + 0.5 * critic - 0.01 * entropy


def train(key, rate, updates, frames=128, count=8, epochs=4, minibatches=4):
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate))
    param_key, env_key = jax.random.split(key)
    params = init_params(param_key)

    def update(carry, i):
        params, moments, envs = carry
        update_key = jax.random.fold_in(key, i)
        envs, played = play(update_key, params, envs, frames, i * frames)
        states, actions, log_probs, values, dones = played
        gains = advantages(values, dones, policy(params, envs.state)[1])
        batch = (states, actions, log_probs, gains, gains + values)
        batch = jax.tree.map(lambda x: x.reshape(frames * count, *x.shape[2:]), batch)

        def minibatch(carry, order):
            params, moments = carry
            gradients = jax.grad(loss_of)(params, jax.tree.map(lambda x: x[order], batch))
            changes, moments = optimizer.update(gradients, moments)
            return (optax.apply_updates(params, changes), moments), optax.global_norm(gradients)

        orders = jnp.concatenate(
            [
                jax.random.permutation(jax.random.fold_in(update_key, epoch), frames * count).reshape(minibatches, -1)
                for epoch in range(epochs)
            ]
        )
        # A transformation inside the program: what the minibatches log is reduced to its mean, one record per update.
        (carried, norms), logs = lox.spool(jax.lax.scan, reduce="mean")(minibatch, (params, moments), orders)
        lox.log({**logs, "ppo/gradient": norms.mean()}, step=(i + 1) * frames)
        return (*carried, envs), None

    envs = jax.vmap(reset)(jax.random.split(env_key, count))
    (params, _, _), _ = jax.lax.scan(update, (params, optimizer.init(params), envs), jnp.arange(updates))
    return params


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--logdir", default="runs/examples/ppo_seeds")
    options = parser.parse_args()
    if "tensorboard" not in lox.loggers.available():
        sys.exit("This example needs the package lox-tensorboard: see docs/install.md")

    keys = jax.random.split(jax.random.key(0), options.seeds)
    rates = jnp.full(options.seeds, 2.5e-3)
    tensorboard = lox.loggers.create("tensorboard", path=options.logdir, if_exists="replace")
    memory = lox.loggers.create("memory")
    with lox.loggers.MultiLogger(tensorboard, memory, name="seed={lane}") as logger:
        states = jax.vmap(logger.init)(keys, {"rate": rates})

        @jax.jit
        @jax.vmap
        def train_all(state, key, rate):
            return logger.tap(train, state, batch=64)(key, rate, options.updates)

        jax.block_until_ready(train_all(states, keys, rates))
        for name, logs in memory.logs.items():
            returns = logs["episode/return"]
            print(f"{name}: {len(returns)} records of returns, first {returns[0]:.0f}, last {returns[-10:].mean():.0f}")
    print(f"look at them: tensorboard --logdir {options.logdir}")


if __name__ == "__main__":
    main()
