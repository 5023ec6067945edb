"""Training steps of flax nnx, whose modules are mutable and whose transformations lift them through JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, tapped

nnx = pytest.importorskip("flax.nnx", reason="flax is not installed: hatch run libs:test")
optax = pytest.importorskip("optax", reason="optax is not installed")

XS = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
YS = jnp.cos(XS.sum(axis=1, keepdims=True))


class Network(nnx.Module):
    def __init__(self, mark: bool) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(2, 4, rngs=rngs)
        self.second = nnx.Linear(4, 1, rngs=rngs)
        self.mark = mark

    def __call__(self, x: Any) -> Any:
        hidden = nnx.relu(self.first(x))
        if self.mark:
            lox.log({"hidden": hidden.mean()})
        return self.second(hidden)


def loss_of(network: Any, x: Any, y: Any) -> Any:
    return jnp.mean((network(x) - y) ** 2)


def train(mark: bool, steps: int = 3) -> tuple[Any, list[Any]]:
    network = Network(mark)
    optimiser = nnx.Optimizer(network, optax.adam(0.05), wrt=nnx.Param)

    @nnx.jit
    def step(network: Any, optimiser: Any) -> Any:
        loss, gradients = nnx.value_and_grad(loss_of)(network, XS, YS)
        if mark:
            lox.log({"loss": loss})
        hidden = nnx.relu(network.first(XS)).mean()
        optimiser.update(network, gradients)
        return loss, hidden

    seen = [step(network, optimiser) for _ in range(steps)]
    return nnx.state(network, nnx.Param), seen


def test_training_steps() -> None:
    plain, seen = train(mark=False)
    (logged, _), logs = lox.spool(lambda: train(mark=True))()
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(logged), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert_rows(logs, {"loss": [loss for loss, _ in seen], "hidden": [hidden for _, hidden in seen]})


def test_a_tap_streams_them() -> None:
    _, seen = train(mark=False)
    _, rows = tapped(lambda: train(mark=True))
    np.testing.assert_allclose(rows["loss"], [loss for loss, _ in seen], rtol=1e-5)
    np.testing.assert_allclose(rows["hidden"], [hidden for _, hidden in seen], rtol=1e-5)


def test_a_network_in_a_scan() -> None:
    """The functional way: a state of arrays in the carry."""
    graph, state = nnx.split(Network(mark=True))

    def run(state: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            loss, gradients = jax.value_and_grad(lambda state: loss_of(nnx.merge(graph, state), x, YS))(state)
            lox.log({"loss": loss})
            return jax.tree.map(lambda p, g: p - 0.1 * g, state, gradients), loss

        return jax.lax.scan(step, state, jnp.stack([XS, XS * 2, XS * 3]))

    (_, losses), logs = lox.spool(jax.jit(run))(state)
    assert_rows(logs.filter(lambda key: key == "loss"), {"loss": losses})
    assert logs["hidden"].shape == (3,)
