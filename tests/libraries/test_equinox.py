"""A training step of equinox: filter_jit, filter_grad, and its loops."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.libraries.checks import assert_rows, lane

eqx = pytest.importorskip("equinox", reason="equinox is not installed: hatch run libs:test")
optax = pytest.importorskip("optax", reason="optax is not installed")

XS = jnp.linspace(-1.0, 1.0, 8).reshape(4, 2)
YS = jnp.sin(XS.sum(axis=1, keepdims=True))


def make_model() -> Any:
    return eqx.nn.MLP(2, 1, 8, depth=2, key=jax.random.key(0))


def loss_of(model: Any, x: Any, y: Any, mark: bool) -> Any:
    predicted = jax.vmap(model)(x)
    loss = jnp.mean((predicted - y) ** 2)
    if mark:
        lox.log({"loss": loss, "predicted/mean": predicted.mean()})
    return loss


def train(model: Any, mark: bool, steps: int = 3) -> tuple[Any, list[Any]]:
    """Three steps of training; the oracle collects by hand what the marks record."""
    optimiser = optax.sgd(0.1)
    state = optimiser.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model: Any, state: Any) -> Any:
        loss, gradients = eqx.filter_value_and_grad(loss_of)(model, XS, YS, mark)
        norm = optax.global_norm(gradients)
        if mark:
            lox.log({"norm": norm})
        updates, state = optimiser.update(gradients, state)
        return eqx.apply_updates(model, updates), state, (loss, norm)

    seen = []
    for _ in range(steps):
        model, state, values = step(model, state)
        seen.append(values)
    return model, seen


def test_steps_of_filter_jit_and_filter_grad() -> None:
    model, seen = train(make_model(), mark=False)
    (logged, _), logs = lox.spool(lambda: train(make_model(), mark=True))()
    for a, b in zip(
        jax.tree.leaves(eqx.filter(model, eqx.is_array)), jax.tree.leaves(eqx.filter(logged, eqx.is_array)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    rows = logs.filter(lambda key: key != "predicted/mean")
    assert_rows(rows, {"loss": [loss for loss, _ in seen], "norm": [norm for _, norm in seen]})
    assert logs["predicted/mean"].shape == (3,)


def test_the_model_is_an_argument_like_any_other() -> None:
    """A model holds functions besides its arrays: they reach the function as they are."""
    loss, logs = lox.spool(eqx.filter_jit(loss_of))(make_model(), XS, YS, True)
    assert_rows(logs.filter(lambda key: key == "loss"), {"loss": loss})


def test_a_spooled_loss_can_be_differentiated() -> None:
    plain = eqx.filter_grad(loss_of)(make_model(), XS, YS, False)
    spooled = lambda model: lox.spool(loss_of)(model, XS, YS, True)  # noqa: E731
    gradients, logs = eqx.filter_grad(spooled, has_aux=True)(make_model())
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert_rows(logs.filter(lambda key: key == "loss"), {"loss": loss_of(make_model(), XS, YS, False)})


@pytest.mark.parametrize("kind", ["lax", "checkpointed", "bounded"])
def test_loops(kind: str) -> None:
    def looped(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            lox.log({"y": y}, i=i)
            return i + 1, y * x

        limit = {} if kind == "lax" else {"max_steps": 8}
        return eqx.internal.while_loop(lambda state: state[0] < 4, body, (0, jnp.float32(1.0)), kind=kind, **limit)[1]

    x = jnp.float32(3.0)
    y, logs = lox.spool(looped, capacity=10)(x)
    assert float(y) == 81.0
    assert_rows(logs, {"y": [1.0, 3.0, 9.0, 27.0]})
    assert logs.trim().i["y"].tolist() == [0, 1, 2, 3]
    if kind != "lax":
        gradient, logs = jax.grad(lox.spool(looped, capacity=10), has_aux=True)(x)
        assert float(gradient) == 4 * 27.0
        assert_rows(logs, {"y": [1.0, 3.0, 9.0, 27.0]})


def halve(kind: str, each: Any = lambda x: x) -> Any:
    """Halves its argument until it is at most 1, and logs it before each step."""

    def body(x: Any) -> Any:
        lox.log({"x": x})
        return x / 2

    return lambda x: eqx.internal.while_loop(lambda x: x > 1, each(body), x, kind=kind, max_steps=16)


LANES = jnp.array([2.0, 8.0, 0.5])
OWN = [[2.0], [8.0, 4.0, 2.0], []]
KINDS = ["lax", "checkpointed", "bounded"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_lane_of_a_loop_has_its_own_records(kind: str) -> None:
    spooled = lox.spool(halve(kind), capacity=4)
    runs = [jax.vmap(spooled)(LANES), jax.jit(jax.vmap(spooled))(LANES)]
    if kind != "lax":
        runs.append(jax.vmap(jax.grad(spooled, has_aux=True))(LANES))
    for _, logs in runs:
        assert [lane(logs, i).trim()["x"].tolist() for i in range(3)] == OWN
    assert runs[0][0].tolist() == [1.0, 1.0, 0.5]
    _, counts = jax.vmap(lox.spool(halve(kind), reduce=("count", "sum")))(LANES)
    assert counts["x"]["count"].tolist() == [1, 3, 0]
    assert counts["x"]["sum"].tolist() == [2.0, 14.0, 0.0]


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"interval": 2}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tap_of_a_loop_delivers_each_lane_its_own_records(kind: str, options: Any) -> None:
    seen: list[float] = []
    tapped = lox.tap(halve(kind), lambda logs: seen.extend(np.ravel(logs["x"]).tolist()), **options)
    jax.jit(jax.vmap(tapped))(LANES)
    jax.effects_barrier()
    assert sorted(seen) == ([2.0, 2.0, 8.0] if "interval" in options else [2.0, 2.0, 4.0, 8.0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tap_inside_a_loop_asks_which_lanes_are_in_it(kind: str) -> None:
    seen: list[float] = []
    looped = halve(kind, lambda body: lox.tap(body, lambda logs: seen.append(float(logs["x"]))))
    assert jax.jit(jax.vmap(looped))(LANES).tolist() == [1.0, 1.0, 0.5]
    jax.effects_barrier()
    assert seen == [2.0, 8.0, 4.0, 2.0]


def test_a_loop_in_a_loop_in_lanes() -> None:
    """Both loops run on for lanes that are done."""

    def outer(x: Any) -> Any:
        def body(x: Any) -> Any:
            return eqx.internal.while_loop(lambda x: x > 1, inner, x, kind="lax") + 2.5

        def inner(x: Any) -> Any:
            lox.log({"x": x})
            return x / 2

        return eqx.internal.while_loop(lambda x: x < 3.5, body, x, kind="bounded", max_steps=4)

    spooled = lox.spool(outer, capacity=16)
    _, logs = jax.vmap(spooled)(LANES)
    for i, x in enumerate(LANES):
        own = spooled(x)[1].trim()["x"]
        assert lane(logs, i).trim()["x"].tolist() == own.tolist()


def test_the_gradient_in_lanes_of_a_checkpointed_loop_that_records_where() -> None:
    """The loop runs again in the backward pass, outside the transformation, where nobody collects its marks."""

    def looped(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            lox.log({"y": y}, where=y < 5.0, reduce="count")
            return i + 1, y * x

        return eqx.internal.while_loop(lambda s: s[0] < 3, body, (0, x), kind="checkpointed", max_steps=8)[1]

    gradients, logs = jax.vmap(jax.grad(lox.spool(looped), has_aux=True))(jnp.array([2.0, 3.0]))
    assert gradients.tolist() == [32.0, 108.0]
    assert logs["y"].tolist() == [2, 1]
