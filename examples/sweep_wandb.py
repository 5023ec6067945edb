"""A sweep over learning rates, all at once, to Weights & Biases in offline mode: it needs no account and no network.

python examples/sweep_wandb.py
wandb sync wandb/offline-run-*        # to upload it later
"""

import argparse
import sys

import jax
import jax.numpy as jnp

import lox
import lox.loggers


def train(key, rate, steps):
    """Logistic regression on two clouds of points."""
    x_key, y_key = jax.random.split(key)
    label = jax.random.bernoulli(y_key, shape=(512,)).astype(jnp.float32)
    x = jax.random.normal(x_key, (512, 8)) + 0.5 * label[:, None]

    def loss_of(weights, i):
        score = x @ weights
        lox.log({"train/accuracy": jnp.mean((score > 0) == (label > 0))}, step=i)
        return jnp.mean(jax.nn.softplus(score) - label * score)

    def step(weights, i):
        loss, gradient = jax.value_and_grad(loss_of)(weights, i)
        lox.log({"train/loss": loss, "train/gradient": gradient}, step=i)
        return weights - rate * gradient, None

    return jax.lax.scan(step, jnp.zeros(8), jnp.arange(steps))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    if "wandb" not in lox.loggers.available():
        sys.exit("This example needs the package lox-wandb: see docs/install.md")

    keys = jax.random.split(jax.random.key(0), options.runs)
    rates = jnp.geomspace(0.01, 3.0, options.runs)
    with lox.loggers.create("wandb", project="lox-sweep", mode="offline", summary={"train/loss": "min"}) as logger:
        states = jax.vmap(logger.init)(keys, {"rate": rates})  # each run has its own rate in its config

        @jax.jit
        @jax.vmap
        def sweep(state, key, rate):
            return logger.tap(train, state, batch=50)(key, rate, options.steps)

        sweep(states, keys, rates).block_until_ready()
        logger.flush()
        for run, rate in zip(logger.runs, rates, strict=True):
            print(f"{run.name}  rate {rate:.3f}  {run.settings.sync_dir}")
    print(f"{options.runs} offline runs; wandb sync uploads them")


if __name__ == "__main__":
    main()
