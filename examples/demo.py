"""Trains a small network on two spirals, from eight seeds at once, and logs all of it.

The training loop is one jitted program: a `scan` over steps inside a `vmap` over seeds. It marks values with `lox.log`,
and does not know where they go. Outside, a console logger taps it (some of the records, while it runs) and a save logger
spools it (every record, to files under ./.lox/, one run for each seed).

    hatch run demo
"""

import argparse
import time

import jax
import jax.numpy as jnp

import lox
import lox.loggers

LAYERS = (2, 32, 32, 1)
LEARNING_RATE, MOMENTUM = 0.01, 0.9


def spirals(key, points):
    """Points on two interleaved spirals, and which of the two each is on."""
    angle_key, noise_key = jax.random.split(key)
    angle = 3 * jnp.pi * jnp.sqrt(jax.random.uniform(angle_key, (points,), minval=0.05))
    label = jnp.arange(points) % 2
    direction = jnp.stack([jnp.cos(angle + jnp.pi * label), jnp.sin(angle + jnp.pi * label)], axis=1)
    noise = 0.02 * jax.random.normal(noise_key, (points, 2))
    return direction * angle[:, None] / (3 * jnp.pi) + noise, label


def init_params(key):
    keys = jax.random.split(key, len(LAYERS) - 1)
    return [
        (jax.random.normal(k, (n, m)) * (2 / n) ** 0.5, jnp.zeros(m))
        for k, n, m in zip(keys, LAYERS[:-1], LAYERS[1:], strict=True)
    ]


def logits(params, x):
    for weight, bias in params[:-1]:
        x = jax.nn.relu(4 * x @ weight + bias) / 2
    weight, bias = params[-1]
    return (x @ weight + bias)[:, 0]


def loss_of(params, i, x, label):
    score = logits(params, x)
    lox.log({"train/accuracy": jnp.mean((score > 0) == label)}, step=i)  # also in here, under `grad`
    return jnp.mean(jax.nn.softplus(jnp.where(label == 1, -score, score)))


def train(key, steps):
    """An ordinary training loop, with marks in it."""
    init_key, train_key, test_key = jax.random.split(key, 3)
    train_data, test_data = spirals(train_key, 256), spirals(test_key, 256)
    params = init_params(init_key)

    def step(carry, i):
        params, velocity = carry
        loss, grads = jax.value_and_grad(loss_of)(params, i, *train_data)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        velocity = jax.tree.map(lambda v, g: MOMENTUM * v - LEARNING_RATE * g, velocity, grads)
        params = jax.tree.map(jnp.add, params, velocity)
        lox.log({"train/loss": loss, "train/gradient": norm}, step=i)
        return (params, velocity), None

    velocity = jax.tree.map(jnp.zeros_like, params)
    (params, _), _ = jax.lax.scan(step, (params, velocity), jnp.arange(steps))
    accuracy = jnp.mean((logits(params, test_data[0]) > 0) == test_data[1])
    lox.log({"test/accuracy": accuracy}, step=steps)
    return accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--path", default=".lox", help="where the files go (default: %(default)s)")
    options = parser.parse_args()

    keys = jax.random.split(jax.random.key(0), options.seeds)
    save = lox.loggers.create("save", path=options.path, if_exists="replace")  # the demo can be run again
    with lox.loggers.create("console") as console, save:
        lines, files = jax.vmap(console.init)(keys), jax.vmap(save.init)(keys)  # a run for each seed

        def logged_train(lines, files, key):
            # tap leaves the marks in place, so spool still finds every one of them.
            tapped = console.tap(train, lines, argnames=("train/loss", "train/accuracy"), interval=20)
            return save.spool(tapped, files)(key, options.steps)

        begun = time.perf_counter()
        accuracies = jax.jit(jax.vmap(logged_train))(lines, files, keys)
        accuracies.block_until_ready()
        console.flush()
        save.flush()
        names = [run.name for run in save.runs]
        seconds = time.perf_counter() - begun

    tell_what_was_saved(options.path, names, seconds)


def tell_what_was_saved(path, names, seconds):
    runs = lox.loggers.load(path)
    print(f"\n{len(names)} networks trained in {seconds:.1f} s, compilation included. Saved under {path}/:\n")
    print(f"{'run':24}{'records':>9}{'first loss':>12}{'last loss':>11}{'test accuracy':>15}")
    for name in names:
        logs = runs[name]
        loss = logs["train/loss"]
        print(f"{name:24}{len(loss):>9}{loss[0]:>12.4f}{loss[-1]:>11.4f}{float(logs['test/accuracy'][-1]):>15.3f}")
    print(
        f"""
How to read it, in Python:

    import lox.loggers
    runs = lox.loggers.load({path!r})              # {{name: logdict}}
    logs = runs[{names[0]!r}]
    logs["train/loss"], logs.step["train/loss"]   # numpy arrays
    logs.to_pandas()                              # with pandas

and in a shell (`lox` alone is enough if lox-loggers is installed):

    hatch run lox show {path}
    hatch run lox plot {path} --keys train/loss"""
    )


if __name__ == "__main__":
    main()
