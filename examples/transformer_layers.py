"""A small transformer whose layers are one scan, with checkpointing: activations and gradient norms of every layer.

The marks are inside the layer, under `scan`, `jax.checkpoint` and `grad`. Each is recorded once, though checkpointing
computes the activations twice.

    python examples/transformer_layers.py
"""

import argparse

import jax
import jax.numpy as jnp

import lox


def init_params(key, layers, width, symbols):
    keys = jax.random.split(key, 6)
    scale = width**-0.5

    def stack(key, *shape):
        return scale * jax.random.normal(key, (layers, *shape))

    return {
        "embed": jax.random.normal(keys[0], (symbols, width)),
        "layers": {
            "qkv": stack(keys[1], width, 3 * width),
            "out": stack(keys[2], width, width),
            "up": stack(keys[3], width, 4 * width),
            "down": stack(keys[4], 4 * width, width) / 2,
        },
        "head": scale * jax.random.normal(keys[5], (width, symbols)),
    }


def normalise(x):
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)


def attend(layer, x, heads=4):
    length, width = x.shape
    q, k, v = (part.reshape(length, heads, -1) for part in jnp.split(x @ layer["qkv"], 3, axis=-1))
    scores = jnp.einsum("qhd,khd->hqk", q, k) / (width // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores)
    entropy = -jnp.sum(weights * jnp.log(weights + 1e-9), axis=-1).mean()
    return jnp.einsum("hqk,khd->qhd", weights, v).reshape(length, width) @ layer["out"], entropy


def loss_of(params, tokens):
    """Of one sequence: predict each symbol from those before it."""
    depth = params["layers"]["qkv"].shape[0]

    @jax.checkpoint
    def block(x, layer_and_index):
        layer, index = layer_and_index
        attended, entropy = attend(layer, normalise(x))
        x = x + attended
        x = x + jax.nn.gelu(normalise(x) @ layer["up"]) @ layer["down"]
        lox.log({"activation/rms": jnp.sqrt(jnp.mean(x**2)), "attention/entropy": entropy}, layer=index)
        x = lox.log_grad(x, "gradient", layer=index)  # the cotangent, when the backward pass comes here
        return x, None

    x, _ = jax.lax.scan(block, params["embed"][tokens], (params["layers"], jnp.arange(depth)))
    scores = jax.nn.log_softmax(normalise(x[:-1]) @ params["head"])
    return -jnp.mean(jnp.take_along_axis(scores, tokens[1:, None], axis=-1))


def train(key, params, steps, rate=0.05):
    """Sequences that count upwards, from a random start, modulo the number of symbols."""
    symbols = params["embed"].shape[0]

    def step(params, i):
        start = jax.random.randint(jax.random.fold_in(key, i), (), 0, symbols)
        loss, gradients = jax.value_and_grad(loss_of)(params, (start + jnp.arange(32)) % symbols)
        lox.log({"loss": loss}, step=i)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), None

    return jax.lax.scan(step, params, jnp.arange(steps))[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()

    key = jax.random.key(0)
    params = init_params(key, options.layers, options.width, symbols=32)
    _, logs = jax.jit(lox.spool(train), static_argnums=2)(key, params, options.steps)

    # Records of all layers of all steps lie along one axis; the backward pass reaches the last layer first.
    shape = (options.steps, options.layers)
    rms = logs["activation/rms"].reshape(shape)
    entropy = logs["attention/entropy"].reshape(shape)
    norms = jnp.sqrt(jnp.sum(logs["gradient"] ** 2, axis=(1, 2))).reshape(shape)[:, ::-1]
    assert logs.layer["gradient"].reshape(shape)[0].tolist() == list(range(options.layers))[::-1]

    print(f"loss {logs['loss'][0]:.3f} -> {logs['loss'][-1]:.3f} in {options.steps} steps\n")
    print(f"{'layer':>5} {'activation rms':>22} {'attention entropy':>22} {'gradient norm':>22}")
    for layer in range(options.layers):
        columns = (f"{values[0, layer]:9.4f} -> {values[-1, layer]:9.4f}" for values in (rms, entropy, norms))
        print(f"{layer:>5} " + " ".join(columns))


if __name__ == "__main__":
    main()
