"""Looking into the code of libraries, which is not changed for it: ``lox.probe``, ``lox.find_nonfinite`` and bars."""

from __future__ import annotations

import io
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers._backends.display.program_bars import painter

REASON = "not installed: hatch run libs:test"


def with_bar(fun: Any, *args: Any) -> tuple[Any, str]:
    """The result, and the last line about it in a log file."""
    file = io.StringIO()
    out = jax.block_until_ready(lox.loggers.progress(fun, file=file)(*args))
    painter.finish()
    return out, file.getvalue().splitlines()[-1]


class TestBlackjax:
    """The No-U-Turn sampler: dynamic loops in dynamic loops, with branches."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        self.blackjax = pytest.importorskip("blackjax", reason=REASON)

    def sample(self, key: Any, density: Any) -> Any:
        kernel = self.blackjax.nuts(density, step_size=0.5, inverse_mass_matrix=jnp.ones(2))

        def step(state: Any, key: Any) -> Any:
            state, info = kernel.step(key, state)
            return state, info.acceptance_rate

        return jax.lax.scan(step, kernel.init(jnp.ones(2)), jax.random.split(key, 5))[1]

    def test_a_bar_and_the_acceptance_rate_of_each_step(self) -> None:
        def density(x: Any) -> Any:
            return -0.5 * jnp.sum(x**2)

        def sample(key: Any) -> Any:
            return self.sample(key, density)

        key = jax.random.key(0)
        acceptance, line = with_bar(jax.jit(sample), key)
        assert acceptance.tolist() == jax.jit(sample)(key).tolist()
        assert line.startswith("sample  5/5 (100%)")
        # The sampler divides by the number of its proposals: nothing else outside of its own loops is a quotient.
        _, logs = lox.spool(jax.jit(lox.probe(sample, loops="scan", primitives="scan/div")), capacity=8)(key)
        assert logs["sample/scan" if "sample/scan" in logs else "scan"].tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(logs["scan/div"], acceptance, rtol=1e-5)


def test_a_solution_of_diffrax_and_the_step_where_it_blows_up() -> None:
    diffrax = pytest.importorskip("diffrax", reason=REASON)

    def solve(y0: Any) -> Any:
        term = diffrax.ODETerm(lambda t, y, args: y**3)
        saved = diffrax.diffeqsolve(term, diffrax.Euler(), t0=0.0, t1=4.0, dt0=0.25, y0=y0, max_steps=16, throw=False)
        return saved.ys[0]

    solved, line = with_bar(jax.jit(solve), jnp.float32(0.1))
    np.testing.assert_allclose(solved, jax.jit(solve)(jnp.float32(0.1)), rtol=1e-6)
    assert "solve" in line
    slow, report = lox.find_nonfinite(solve, ignore_masked=True)(jnp.float32(0.1))
    assert np.isfinite(slow)
    assert not report.found
    _, report = lox.find_nonfinite(solve, ignore_masked=True)(jnp.float32(3.0))
    assert report.found
    assert report.primitive in ("integer_pow", "mul")
    assert report.file == __file__


def test_a_root_of_optimistix() -> None:
    optimistix = pytest.importorskip("optimistix", reason=REASON)

    def root(start: Any) -> Any:
        solver = optimistix.Newton(rtol=1e-5, atol=1e-5)
        return optimistix.root_find(lambda x, _: jnp.sqrt(x) - 1.0, solver, start, throw=False, max_steps=8).value

    found, report = lox.find_nonfinite(root, ignore_masked=True)(jnp.float32(0.5))
    np.testing.assert_allclose(found, 1.0, rtol=1e-4)
    assert not report.found
    _, report = lox.find_nonfinite(root, ignore_masked=True)(jnp.float32(9.0))  # Newton's step leads below zero
    assert (report.primitive, report.file) == ("sqrt", __file__)
    assert report.operands[0][0] < 0


def test_each_layer_of_a_flax_linen_transformer() -> None:
    linen = pytest.importorskip("flax.linen", reason=REASON)

    class Block(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = x + linen.MultiHeadDotProductAttention(num_heads=2)(x)
            return x + linen.Dense(8)(linen.gelu(linen.Dense(16)(linen.LayerNorm()(x))))

    class Transformer(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(2):
                x = Block()(x)
            return linen.Dense(1)(x).sum()

    x = jnp.linspace(-1.0, 1.0, 24).reshape(1, 3, 8)
    model = Transformer()
    parameters = jax.jit(model.init)(jax.random.key(0), x)
    capture = jax.jit(lambda *args: model.apply(*args, capture_intermediates=True, mutable="intermediates"))
    _, state = capture(parameters, x)
    expected = state["intermediates"]
    out, logs = lox.spool(jax.jit(lox.probe(model.apply, scopes=["Block_*", "Block_*/Dense_*"])))(parameters, x)
    np.testing.assert_allclose(out, expected["__call__"][0], rtol=1e-5)
    blocks = {key: value for key, value in logs.items() if key.split("/")[-1].startswith("Block")}
    assert [key.split("/")[-1] for key in blocks] == ["Block_0", "Block_1"]
    for key, value in blocks.items():
        np.testing.assert_allclose(value, expected[key.split("/")[-1]]["__call__"][0], rtol=1e-4, atol=1e-5)
    dense = next(value for key, value in logs.items() if key.endswith("Block_0/Dense_1"))
    np.testing.assert_allclose(dense, expected["Block_0"]["Dense_1"]["__call__"][0], rtol=1e-4, atol=1e-5)
    # Both passes of its gradient.
    gradient = jax.grad(lambda parameters: model.apply(parameters, x))
    passes = lox.spool(jax.jit(lox.probe(gradient, scopes="Block_*", summary=True)))(parameters)[1]
    assert any(key.startswith("backward") for key in passes)


def test_each_layer_of_a_flax_nnx_transformer() -> None:
    nnx = pytest.importorskip("flax.nnx", reason=REASON)

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.attention = nnx.MultiHeadAttention(num_heads=2, in_features=8, decode=False, rngs=rngs)
            self.first, self.second = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            with jax.named_scope("attention"):
                x = x + self.attention(x)
            with jax.named_scope("mlp"):
                return x + self.second(nnx.gelu(self.first(x)))

    blocks = [Block(nnx.Rngs(i)) for i in range(2)]

    def model(x: Any) -> Any:
        for i, block in enumerate(blocks):
            with jax.named_scope(f"block{i}"):
                x = block(x)
        return x

    x = jnp.linspace(-1.0, 1.0, 24).reshape(1, 3, 8)
    out, logs = lox.spool(jax.jit(lox.probe(model, scopes=["block?", "mlp"])))(x)
    assert list(logs) == ["block0/mlp", "block0", "block1/mlp", "block1"]
    np.testing.assert_allclose(logs["block0"], blocks[0](x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(logs["block1"], out, rtol=1e-6)


def test_nnx_has_no_scopes_of_its_own_and_a_few_lines_add_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nnx = pytest.importorskip("flax.nnx", reason=REASON)

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm, self.linear = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return x + nnx.gelu(self.linear(self.norm(x)))

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first, self.second = Block(rngs), Block(rngs)

        def __call__(self, x: Any) -> Any:
            return self.second(self.first(x))

    model, x = Model(nnx.Rngs(0)), jnp.linspace(-1.0, 1.0, 16).reshape(2, 8)
    expected = model.first(x)
    assert not [found for found in lox.probe(lambda x: model(x)).found(x) if found.kind == "scopes"]
    names = {id(module): ".".join(map(str, path)) for path, module in nnx.iter_modules(model)}

    def with_scope(call: Any) -> Any:
        def named(self: Any, *args: Any) -> Any:
            with jax.named_scope(names[id(self)] or "model"):
                return call(self, *args)

        return named

    for layer in (Model, Block, nnx.Linear):
        monkeypatch.setattr(layer, "__call__", with_scope(layer.__call__))
    out, logs = lox.spool(lox.probe(lambda x: model(x), scopes=["first", "second.linear", "model"]))(x)
    assert list(logs) == ["model/first", "model/second/second.linear", "model"]
    np.testing.assert_allclose(logs["model/first"], expected, rtol=1e-5)
    np.testing.assert_allclose(logs["model"], out, rtol=1e-6)


def test_the_backward_pass_of_an_optax_loop_that_makes_a_nan() -> None:
    optax = pytest.importorskip("optax", reason=REASON)
    optimiser = optax.adam(0.1)

    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("distance"):
            return jnp.linalg.norm(w - x)  # not differentiable where both are equal

    def train(xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            w, state = carry
            value, gradient = jax.value_and_grad(loss)(w, x)
            updates, state = optimiser.update(gradient, state)
            return (optax.apply_updates(w, updates), state), value

        w = jnp.zeros(2)
        return jax.lax.scan(step, (w, optimiser.init(w)), xs)[1]

    far = jnp.ones((4, 2))
    losses, report = lox.find_nonfinite(jax.jit(train))(far)
    assert np.isfinite(losses).all()
    assert not report.found
    losses, report = lox.find_nonfinite(jax.jit(train))(far.at[0].set(0.0))
    assert np.isfinite(losses[0])
    assert np.isnan(losses[1])
    assert report.found
    assert "distance" in report.scope
    assert (report.file, report.loops) == (__file__, {"train/scan": 0})
    # Of a sweep, the lanes that died.
    starts = jnp.stack([far, far.at[2].set(0.0), far.at[0].set(0.0)])
    _, reports = jax.jit(jax.vmap(lox.find_nonfinite(train)))(starts)
    assert reports.found.tolist() == [False, False, True]
