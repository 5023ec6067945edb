"""A regression to watch: a live table in the terminal, or plain lines if the output is not a terminal.

python examples/regression_console.py
"""

import argparse

import jax
import jax.numpy as jnp

import lox
import lox.loggers

HIDDEN = 64


def init_params(key):
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (1, HIDDEN)),
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 1)) / HIDDEN**0.5,
        "b2": jnp.zeros(1),
    }


def predict(params, x, i):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    lox.log({"hidden/saturated": jnp.mean(jnp.abs(hidden) > 0.97)}, step=i)
    return hidden @ params["w2"] + params["b2"]


def train(key, steps, rate=0.05, batch=256):
    """Fits sin(3x) from noisy samples; a new batch at each step."""

    def loss_of(params, x, y, i):
        return jnp.mean((predict(params, x, i) - y) ** 2)

    def step(params, i):
        x_key, noise_key = jax.random.split(jax.random.fold_in(key, i))
        x = jax.random.uniform(x_key, (batch, 1), minval=-2, maxval=2)
        y = jnp.sin(3 * x) + 0.1 * jax.random.normal(noise_key, x.shape)
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y, i)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        lox.log({"train/loss": loss, "train/gradient": norm}, step=i)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), None

    params, _ = jax.lax.scan(step, init_params(key), jnp.arange(steps))
    x = jnp.linspace(-2, 2, 101)[:, None]
    error = jnp.mean((predict(params, x, steps) - jnp.sin(3 * x)) ** 2)
    lox.log({"test/error": error}, step=steps)
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=100, help="show every n-th record")
    options = parser.parse_args()

    key = jax.random.key(0)
    with lox.loggers.create("console") as logger:
        watched = logger.tap(train, logger.init(key), interval=options.every)
        error = jax.jit(watched, static_argnums=1)(key, options.steps)
    print(f"test error {error:.4f}")


if __name__ == "__main__":
    main()
