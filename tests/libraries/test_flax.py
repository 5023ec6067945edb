"""Training steps of flax nnx, whose modules are mutable and whose transformations lift them through JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
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


# --- arguments that are changed in place -----------------------------------------------------------------------------


class Block(nnx.Module):
    """Statistics, dropout, a shared variable, a list of modules, and a static attribute."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0, dropout=1)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.layers[1].kernel = self.layers[0].kernel
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.calls = nnx.Variable(jnp.int32(0))

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        self.calls[...] += 1
        return self.dropout(self.norm(x))


BATCHES = jax.random.normal(jax.random.key(3), (3, 8, 4))


def make() -> tuple[Any, Any]:
    model = Block()
    return model, nnx.Optimizer(model, optax.adam(0.05), wrt=nnx.Param)


def step(model: Any, optimiser: Any, x: Any) -> Any:
    def loss_of(model: Any) -> Any:
        loss = jnp.mean((model(x) - x) ** 2)
        lox.log({"loss": loss})
        return loss

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimiser.update(model, gradients)
    lox.log({"norm": optax.global_norm(gradients)})
    return loss


def trained(wrapped: Any) -> tuple[Any, list[Any]]:
    model, optimiser = make()
    outs = [wrapped(model, optimiser, x) for x in BATCHES]
    assert model.layers[0].kernel is model.layers[1].kernel
    return nnx.state((model, optimiser)), outs


def assert_same_state(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, e = jax.random.key_data(a), jax.random.key_data(e)
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=2e-6, atol=2e-6)


def in_order(fun: Any, *inside: Any) -> Any:
    for each in inside:
        fun = each(fun)
    return fun


def out_of_spool(fun: Any) -> Any:
    return lambda *args: lox.spool(fun)(*args)[0]


def silent_tap(fun: Any) -> Any:
    return lox.tap(fun, lambda logs: None)


@pytest.mark.parametrize(
    "inside",
    [
        (lox.spool,),
        (nnx.jit, lox.spool),
        (lox.spool, nnx.jit),
        (nnx.jit, lox.spool, nnx.jit),
        (silent_tap,),
        (nnx.jit, silent_tap),
        (silent_tap, nnx.jit),
        (lox.nolog, nnx.jit),
        (nnx.jit, lox.nolog),
        (silent_tap, lox.spool, nnx.jit),
        (nnx.jit, lox.spool, lox.spool),
    ],
    ids=lambda inside: "_of_".join(each.__name__ for each in reversed(inside)),
)
def test_a_model_trains_as_without_lox(inside: Any) -> None:
    expected, _ = trained(nnx.jit(step))
    actual, _ = trained(in_order(step, *inside))
    assert_same_state(actual, expected)


def test_the_records_are_those_of_the_run() -> None:
    _, losses = trained(nnx.jit(step))
    _, outs = trained(lox.spool(nnx.jit(step)))
    np.testing.assert_allclose([out for out, _ in outs], losses, rtol=1e-5)
    for out, logs in outs:
        assert_rows(logs.filter(lambda key: key == "loss"), {"loss": out})


@pytest.mark.parametrize("how", ["spool", "tap"])
def test_a_logger_delivers_and_the_model_trains(how: str) -> None:
    expected, losses = trained(nnx.jit(step))
    with lox.loggers.MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        actual, _ = trained(getattr(logger, how)(nnx.jit(step), state))
        logger.flush()
        (logs,) = logger.logs.values()
    assert_same_state(actual, expected)
    np.testing.assert_allclose(logs["loss"], losses, rtol=1e-5)


def test_a_step_is_traced_once() -> None:
    traces = []

    def traced(*args: Any) -> Any:
        traces.append(args)
        return step(*args)

    expected, _ = trained(nnx.jit(step))
    actual, _ = trained(lox.spool(traced))
    assert_same_state(actual, expected)
    assert len(traces) == 1


def test_scan_and_vmap_of_nnx_inside() -> None:
    def sweep(model: Any, xs: Any) -> Any:
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        def run(model: Any, x: Any) -> Any:
            y = model(x)
            lox.log({"y": y.mean()})
            return model, y.sum()

        _, sums = run(model, xs)

        @nnx.vmap(in_axes=(None, 0))
        def score(model: Any, x: Any) -> Any:
            lox.log({"score": x.sum()})
            return model.layers[0](x).sum()

        return sums, score(model, xs)

    def run(wrap: Any) -> Any:
        model = Block()
        out = wrap(sweep)(model, BATCHES)
        return nnx.state(model), out

    expected, out = run(nnx.jit)
    actual, (spooled_out, logs) = run(lambda f: lox.spool(nnx.jit(f)))
    assert_same_state(actual, expected)
    assert_same_state(spooled_out, out)
    assert logs["y"].shape == (3,)
    assert logs["score"].shape == (3,)
    assert run(nnx.jit)[0]["calls"][...] == 3


def test_spool_inside_the_transformations_of_nnx() -> None:
    def forward(model: Any, x: Any) -> Any:
        y = model(x)
        lox.log({"y": y.mean()})
        return y.sum()

    def gradients(model: Any, f: Any) -> Any:
        return nnx.grad(f, has_aux=True)(model, BATCHES[0])

    plain, spooled = Block(), Block()
    expected, _ = gradients(plain, lambda model, x: (forward(model, x), None))
    actual, logs = gradients(spooled, lox.spool(forward))
    assert_same_state(actual, expected)
    assert_same_state(nnx.state(spooled), nnx.state(plain))
    assert logs["y"].shape == ()

    plain, spooled = Block(), Block()
    nnx.scan(lambda model, x: (model, forward(model, x)), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(
        plain, BATCHES
    )
    scan = nnx.scan(
        lambda model, x: (model, lox.spool(forward)(model, x)[1]), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0)
    )
    _, logs = scan(spooled, BATCHES)
    assert_same_state(nnx.state(spooled), nnx.state(plain))
    assert logs["y"].shape == (3,)


def test_the_model_itself_and_its_methods() -> None:
    plain, spooled, method = Block(), Block(), Block()
    for x in BATCHES:
        expected = plain(x)
        np.testing.assert_allclose(lox.spool(spooled)(x)[0], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(lox.nolog(method.__call__)(x), expected, rtol=1e-5, atol=1e-6)
    assert_same_state(nnx.state(spooled), nnx.state(plain))
    assert_same_state(nnx.state(method), nnx.state(plain))


class Growing(nnx.Module):
    """Changes its own structure."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.float32(2.0))
        self.mode = "train"

    def __call__(self, x: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen = nnx.Variable(jnp.zeros_like(x))
            self.mode = "grown"
        self.seen[...] += x
        lox.log({"seen": self.seen[...]})
        return self.weight * x


def test_new_variables_and_static_attributes() -> None:
    model = Growing()
    grow = lox.spool(nnx.jit(lambda model, x: model(x)))
    weight = model.weight
    for x in (1.0, 2.0, 3.0):
        out, logs = grow(model, jnp.float32(x))
        assert float(out) == 2 * x
    assert (float(model.seen[...]), model.mode, float(logs["seen"])) == (6.0, "grown", 6.0)
    assert model.weight is weight


def test_a_returned_model_is_the_one_that_was_passed() -> None:
    def rename(model: Any, x: Any) -> Any:
        model(x)
        return {"model": model, "new": Growing(), "x": x}

    model = Growing()
    for _ in range(2):
        out, _ = lox.spool(rename)(model, jnp.float32(1.0))
        assert out["model"] is model
        assert out["new"] is not model
        assert float(out["new"].weight[...]) == 2.0


def test_a_function_that_only_reads_leaves_the_model_alone() -> None:
    model = Block()
    before = {id(leaf) for leaf in jax.tree.leaves(nnx.state(model))}
    lox.spool(lambda model, x: model.layers[0](x))(model, BATCHES[0])
    assert {id(leaf) for leaf in jax.tree.leaves(nnx.state(model))} == before


def test_an_exception_leaves_the_model_as_it_was() -> None:
    model = Growing()

    def failing(model: Any) -> None:
        model.weight[...] += 1.0
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        lox.spool(failing)(model)
    assert float(model.weight[...]) == 2.0
    out, _ = lox.spool(lambda model, x: model(x))(model, jnp.float32(1.0))
    assert float(out) == 2.0


def test_donated_models() -> None:
    donating = nnx.jit(step, donate_argnums=(0, 1))
    expected, _ = trained(nnx.jit(step))
    actual, _ = trained(lox.spool(donating))
    assert_same_state(actual, expected)


def test_a_model_that_is_closed_over_cannot_be_changed_and_the_error_says_so() -> None:
    model = Growing()

    def closed(x: Any) -> Any:
        model.weight[...] += x
        return x

    with pytest.raises(Exception, match="different trace level"):
        lox.spool(closed)(jnp.float32(1.0))
    assert float(model.weight[...]) == 2.0


def test_one_variable_in_two_arguments_stays_one() -> None:
    shared = nnx.Variable(jnp.float32(1.0))

    def twice(a: Any, b: Any) -> Any:
        a[...] += 1.0
        b["again"][...] *= 10.0
        lox.log({"shared": a[...]})

    for expected in (20.0, 210.0):
        _, logs = lox.spool(twice)(shared, {"again": shared})
        assert float(shared[...]) == float(logs["shared"]) == expected


def test_variables_of_python_numbers_and_keys() -> None:
    class Counter(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Variable(0)
            self.rngs = nnx.Rngs(0)

        def __call__(self) -> Any:
            self.count.set_value(self.count.get_value() + 1)
            return jax.random.uniform(self.rngs())

    plain, spooled = Counter(), Counter()
    for _ in range(3):
        np.testing.assert_allclose(lox.spool(spooled)()[0], plain())
    assert spooled.count.get_value() == 3


class Tower(nnx.Module):
    """One module in two places, modules in a list, and a static counter."""

    def __init__(self) -> None:
        self.first = Growing()
        self.again = self.first
        self.rest = nnx.List([Growing(), Growing()])
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        for module in (self.first, self.again, *self.rest):
            x = module(x)
        self.calls += 1
        return x


def test_one_module_in_two_places_stays_one_and_static_counters_count() -> None:
    plain, spooled = Tower(), Tower()
    for _ in range(3):
        np.testing.assert_allclose(lox.spool(spooled)(jnp.float32(1.0))[0], plain(jnp.float32(1.0)))
    assert spooled.first is spooled.again
    assert (spooled.calls, plain.calls) == (3, 3)
    assert_same_state(nnx.state(spooled), nnx.state(plain))


def test_modules_that_are_taken_out_put_in_and_exchanged() -> None:
    def rebuild(tower: Any) -> None:
        first, second = tower.rest
        first.weight, second.weight = second.weight, first.weight
        tower.first = Growing()
        tower.calls = len(tower.rest)

    tower = Tower()
    again, weights = tower.again, [module.weight for module in tower.rest]
    lox.spool(rebuild)(tower)
    assert tower.again is again
    assert tower.first is not again
    assert float(tower.first.weight[...]) == 2.0
    assert [module.weight for module in tower.rest] == weights[::-1]
    assert all(a is b for a, b in zip([module.weight for module in tower.rest], weights[::-1], strict=True))
    lox.spool(lambda tower: tower.rest.pop(1))(tower)
    assert len(tower.rest) == 1


def test_one_program_serves_several_models() -> None:
    traces = []

    def grow(a: Any, b: Any) -> None:
        traces.append(a)
        a.weight[...] += 1.0
        b.weight[...] += 10.0

    one, other = Growing(), Growing()
    spooled = lox.spool(grow)
    spooled(one, other)
    spooled(other, one)
    assert len(traces) == 1
    spooled(one, one)  # another graph
    assert len(traces) == 2
    assert (float(one.weight[...]), float(other.weight[...])) == (24.0, 13.0)


def test_a_model_that_is_merged_inside_a_scan() -> None:
    graph, state = nnx.split(Block())

    def step(state: Any, x: Any) -> Any:
        model = nnx.merge(graph, state)
        _, logs = lox.spool(lambda model, x: lox.log({"y": model(x).mean()}))(model, x)
        return nnx.state(model), logs

    after, logs = jax.lax.scan(step, state, BATCHES)
    plain = Block()
    for x in BATCHES:
        plain(x)
    assert_same_state(after, nnx.state(plain))
    assert logs["y"].shape == (3,)
