"""The quick start as a script: mark values, get them back, watch them, save them, and train eight seeds at once.

python examples/quickstart.py
"""

import argparse

import jax
import jax.numpy as jnp

import lox
import lox.loggers


def train(key, rate, steps):
    """Linear regression by gradient descent."""
    x = jax.random.normal(key, (128, 4))
    y = x @ jnp.array([1.0, -2.0, 3.0, 0.5])

    def step(weights, i):
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        lox.log({"train/loss": loss, "train/gradient": jnp.linalg.norm(gradient)}, step=i)
        return weights - rate * gradient, None

    return jax.lax.scan(step, jnp.zeros(4), jnp.arange(steps))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--path", default="runs/examples/quickstart")
    options = parser.parse_args()
    key, rate = jax.random.key(0), jnp.float32(0.1)

    # spool: the logs are returned with the result.
    weights, logs = lox.spool(train)(key, rate, options.steps)
    print("weights", weights)
    print("logs   ", logs)

    # tap: each record reaches the host while the program runs.
    def show(logs):
        print(f"step {logs.step['train/loss']:4}  loss {logs['train/loss']:.6f}")

    lox.tap(train, show, argnames="train/loss", interval=max(1, options.steps // 5))(key, rate, options.steps)
    jax.effects_barrier()

    # A logger: the records go to files, with a run for each seed. The rate is the config of its run.
    keys = jax.random.split(key, options.seeds)
    rates = jnp.geomspace(0.01, 0.3, options.seeds)
    with lox.loggers.create("save", path=options.path, if_exists="replace") as logger:
        states = jax.vmap(logger.init)(keys, {"rate": rates})
        jax.jit(jax.vmap(lambda state, key, rate: logger.spool(train, state)(key, rate, options.steps)))(
            states, keys, rates
        )
    runs = lox.loggers.load(options.path)
    for name, logs in runs.items():
        rate = runs.configs[name]["rate"]
        print(f"run {name}, rate {rate:.3f}: {len(logs['train/loss'])} records, last loss {logs['train/loss'][-1]:.6f}")
    print(f"look at them: lox show {options.path}; lox plot {options.path} --keys train/loss --by rate")


if __name__ == "__main__":
    main()
