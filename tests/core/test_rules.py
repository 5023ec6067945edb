"""Primitives with more to them than the laws show: rules with marks of their own, platforms, solvers, meshes, calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import PartitionSpec as P

import lox
from tests.core.checks import tapped

X = jnp.array([0.5, -1.0, 2.0])


def values(logs):
    return {key: np.asarray(value).tolist() for key, value in logs.items()}


# --- rules for vmap --------------------------------------------------------------------------------------------------


def square_with_vmap_rule(rule):
    @jax.custom_batching.custom_vmap
    def square(v):
        lox.log({"v": v})
        return v**2

    @square.def_vmap
    def _(axis_size, in_batched, vs):
        return rule(vs), in_batched[0]

    return square


def mean_of_lanes(vs):
    lox.log({"mean": vs.mean()})
    return vs**2


def test_a_vmap_outside_spool_shows_the_records_of_the_function_and_one_inside_those_of_the_rule():
    square = square_with_vmap_rule(mean_of_lanes)
    assert values(lox.spool(square)(X[0])[1]) == {"v": 0.5}
    assert values(lox.spool(jax.vmap(square))(X)[1]) == {"mean": 0.5}
    assert [values(each) for each in tapped(jax.vmap(square), X)[1]] == [{"mean": 0.5}]
    assert values(lox.spool(jax.vmap(lox.nolog(square)))(X)[1]) == {}
    assert values(lox.spool(lox.nolog(jax.vmap(square)))(X)[1]) == {}


def test_a_vmap_rule_that_records_something_else_is_an_error_that_says_what_to_do_when_spool_is_inside():
    square = square_with_vmap_rule(mean_of_lanes)
    with pytest.raises(lox.LoxError, match=r"'mean' x 1, but the function records 'v' x 1.*spool\(vmap\(f\)\)"):
        jax.vmap(lox.spool(square))(X)

    def pairs(vs):
        lox.log({"v": vs[:2]})
        return vs**2

    with pytest.raises(
        lox.LoxError, match=r"of shape \(2,\), but the function records one of shape \(\) for each lane"
    ):
        jax.vmap(lox.spool(square_with_vmap_rule(pairs)))(X)


@pytest.mark.parametrize("options", [{"reduce": "sum"}, {"capacity": 2}, {"interval": 2}, {}], ids=str)
def test_the_records_of_a_vmap_rule_are_folded_lane_by_lane(options):
    def rule(vs):
        def step(vs, _):
            lox.log({"v": vs})
            return vs + 1, None

        return jax.lax.scan(step, vs, length=3)[0]

    @jax.custom_batching.custom_vmap
    def function(v):
        return rule(v)

    @function.def_vmap
    def _(axis_size, in_batched, vs):
        return rule(vs), True

    def f(x):
        return jax.lax.cond(x > 0, lambda x: function(x), lambda x: x, x) if "capacity" in options else function(x)

    out, logs = jax.vmap(lox.spool(f, **options))(X)
    for i, x in enumerate(X):
        alone, own = lox.spool(f, **options)(x)
        assert float(out[i]) == float(alone)
        assert values(jax.tree.map(lambda leaf, i=i: leaf[i], logs).trim()) == values(own.trim())


def test_a_tap_in_a_function_with_a_vmap_rule_asks_which_lanes_took_the_branch():
    seen = []
    sequential = jax.custom_batching.sequential_vmap(lox.tap(lambda v: (lox.log({"v": v}), v)[1], seen.append))
    jax.vmap(lambda v: jax.lax.cond(v > 0, sequential, lambda v: v, v))(X)
    jax.effects_barrier()
    assert [float(logs["v"]) for logs in seen] == [0.5, 2.0]


def test_a_function_that_a_vmap_rule_replaces_is_run_for_its_records_and_leaves_no_marks():
    """In a branch that lanes take or not, its marks would be batched where nobody knows the lanes."""

    @jax.custom_batching.custom_vmap
    def double(v):
        lox.log({"v": v}, where=v > 0)
        return 2 * v

    double.def_vmap(lambda axis_size, in_batched, vs: (2 * vs, in_batched[0]))

    def branch(v):
        return jax.lax.cond(v < 1, double, lambda v: v, v)

    seen = []
    out = jax.vmap(lox.tap(branch, seen.append))(X)
    jax.effects_barrier()
    assert out.tolist() == [1.0, -2.0, 2.0]
    assert [float(logs["v"]) for logs in seen] == [0.5]
    assert values(lox.spool(jax.vmap(lox.tap(double, print)))(X)[1]) == {}


def test_forward_derivatives_of_a_function_with_a_vmap_rule():
    square = square_with_vmap_rule(lambda vs: vs**2)
    ones = jnp.ones(3)
    (out, logs), (tangent, _) = jax.vmap(lambda v, t: jax.jvp(lox.spool(square), (v,), (t,)))(X, ones)
    assert (out.tolist(), tangent.tolist()) == ((X**2).tolist(), (2 * X).tolist())
    assert logs["v"].tolist() == X.tolist()


# --- platforms -------------------------------------------------------------------------------------------------------


def on_platforms(x):
    def logged(key):
        def run(x):
            lox.log({key: x})
            return x * 2

        return run

    return jax.lax.platform_dependent(x, cpu=logged("host"), cuda=logged("gpu"), default=logged("other"))


def test_branches_for_platforms_that_differ_are_an_error_that_names_them():
    with pytest.raises(
        lox.LoxError,
        match=r"'host' in the same way: the branch for cpu records it 1 time \(.*test_rules.py:\d+\); "
        r"the branch for cuda does not record it; the branch for other platforms does not record it",
    ):
        lox.spool(on_platforms)(X)
    logs = lox.spool(on_platforms, reduce="last")(X)[1]
    assert values(logs) == {"host": X.tolist(), "gpu": [0, 0, 0], "other": [0, 0, 0]}


def test_a_spooled_program_for_several_platforms_can_be_exported():
    spooled = lox.spool(on_platforms, reduce="count")
    exported = export.export(jax.jit(lambda x: dict(spooled(x)[1])), platforms=("cpu", "tpu"))(X)
    assert exported.platforms == ("cpu", "tpu")
    logs = exported.call(X)
    assert (int(logs["host"]), int(logs["other"])) == (1, 0)


# --- derivative rules ------------------------------------------------------------------------------------------------


def cube_with_rule(mark_in_rule, call_function=True):
    @jax.custom_jvp
    def cube(v):
        lox.log({"v": v})
        return v**3

    @cube.defjvp
    def rule(primals, tangents):
        (v,), (dv,) = primals, tangents
        if mark_in_rule:
            lox.log({"rule": v})
        return cube(v) if call_function else v**3, 3 * v**2 * dv

    return lambda x: cube(x).sum()


def test_marks_of_a_jvp_rule_are_recorded_when_the_rule_runs():
    f = cube_with_rule(mark_in_rule=True)
    assert list(lox.spool(f)(X)[1]) == ["v"]
    logs = lox.spool(jax.grad(f))(X)[1]
    assert sorted(logs) == ["rule", "v"]
    assert logs["rule"].tolist() == logs["v"].tolist() == X.tolist()
    assert sorted(key for each in tapped(jax.grad(f), X)[1] for key in each) == ["rule", "v"]


def test_marks_of_a_jvp_rule_run_once_however_often_the_linear_function_is_called():
    def both(x):
        _, pullback = jax.vjp(cube_with_rule(mark_in_rule=True), x)
        return pullback(1.0)[0] + pullback(2.0)[0]

    logs = lox.spool(both)(X)[1]
    assert logs["rule"].shape == (3,)
    assert logs["v"].shape == (3,)


def test_a_rule_that_does_not_call_its_function_loses_no_mark_of_it_when_spool_is_inside():
    f = cube_with_rule(mark_in_rule=False, call_function=False)
    gradient, logs = jax.grad(lox.spool(f), has_aux=True)(X)
    np.testing.assert_allclose(gradient, 3 * X**2)
    assert values(logs) == {"v": X.tolist()}


def test_a_rule_that_records_something_else_is_an_error_that_says_what_to_do_when_spool_is_inside():
    f = cube_with_rule(mark_in_rule=True)
    with pytest.raises(lox.LoxError, match=r"spool\(grad\(f\)\)"):
        jax.grad(lox.spool(f), has_aux=True)(X)


def test_marks_of_forward_and_backward_rules():
    @jax.custom_vjp
    def cube(v):
        lox.log({"primal": v})
        return v**3

    def forward(v):
        lox.log({"forward": v})
        return v**3, v

    def backward(v, ct):
        lox.log({"backward": ct})
        return (3 * v**2 * ct,)

    cube.defvjp(forward, backward)

    def f(x):
        return 2 * cube(x).sum()

    assert values(lox.spool(f)(X)[1]) == {"primal": X.tolist()}
    logs = lox.spool(jax.grad(f))(X)[1]
    assert values(logs) == {"forward": X.tolist(), "backward": [2.0, 2.0, 2.0]}
    assert list(logs) == ["forward", "backward"]
    assert [next(iter(each)) for each in tapped(jax.jit(jax.grad(f)), X)[1]] == ["forward", "backward"]


def test_what_a_checkpoint_computes_again_is_not_recorded_again_also_in_nested_ones():
    @jax.checkpoint
    def inner(x):
        lox.log({"inner": x})
        return jnp.sin(x)

    @jax.checkpoint
    def outer(x):
        lox.log({"outer": x})
        return inner(inner(x))

    logs = lox.spool(jax.grad(lambda x: outer(x).sum()))(X)[1]
    assert logs["inner"].shape == (2, 3)
    assert logs["outer"].shape == (3,)


def test_hessians_record_each_mark_once():
    def f(x):
        lox.log({"x": x})
        return (x**3).sum()

    reverse = lox.spool(jax.jacrev(jax.grad(f)))(X)[1]
    assert values(reverse) == {"x": X.tolist()}
    hessian, logs = lox.spool(jax.hessian(f))(X)
    np.testing.assert_allclose(hessian, np.diag(6 * X))
    assert logs.counts == {"x": 1}
    # jacfwd is a vmap over directions, and a value that does not vary over lanes is broadcast.
    assert logs["x"].tolist() == [X.tolist()] * 3


# --- solvers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
def test_linear_solves_with_marks(symmetric):
    diagonal = jnp.array([1.0, 2.0, 4.0])

    def solve(matvec, b):
        lox.log({"b": b})
        return b / diagonal

    def f(b):
        transpose = None if symmetric else lambda vecmat, b: b / diagonal
        return jax.lax.custom_linear_solve(lambda v: diagonal * v, b, solve, transpose, symmetric=symmetric).sum()

    assert values(lox.spool(f)(X)[1]) == {"b": X.tolist()}
    gradient, logs = jax.grad(lox.spool(f), has_aux=True)(X)
    np.testing.assert_allclose(gradient, 1 / diagonal)
    assert values(logs) == {"b": X.tolist()}
    np.testing.assert_allclose(lox.spool(jax.grad(f))(X)[0], 1 / diagonal)


def test_iterative_solvers_of_jax():
    def f(b):
        def matvec(v):
            return 2 * v

        solution, _ = jax.scipy.sparse.linalg.cg(matvec, b)
        lox.log({"solution": solution})
        return solution.sum()

    np.testing.assert_allclose(lox.spool(jax.grad(f))(X)[1]["solution"], X / 2, rtol=1e-5)


# --- calls -----------------------------------------------------------------------------------------------------------


def test_closed_calls_are_looked_into():
    from jax._src import core

    def f(x):
        def inner(v):
            lox.log({"v": v})
            return v * 2

        params = core.closed_call_p.get_bind_params({"call_jaxpr": jax.make_jaxpr(inner)(x)})
        functions, params = params if isinstance(params, tuple) else ((), params)  # JAX < 0.10 has a tuple
        return core.closed_call_p.bind(*functions, x, **params)[0]

    out, logs = lox.spool(f)(X)
    assert out.tolist() == (2 * X).tolist()
    assert values(logs) == {"v": X.tolist()}
    assert len(tapped(f, X)[1]) == 1


def test_shardings_and_donation_of_an_inner_jit_stay():
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    split = jax.sharding.NamedSharding(mesh, P("d"))

    def body(x):
        lox.log({"x": x})
        return x + 1

    inner = jax.jit(body, in_shardings=split, out_shardings=split)
    xs = jax.device_put(jnp.arange(4.0), split)
    out, logs = lox.spool(lambda x: inner(x))(xs)
    assert out.sharding.is_equivalent_to(split, 1)
    assert values(logs) == {"x": [0.0, 1.0, 2.0, 3.0]}


# --- meshes ----------------------------------------------------------------------------------------------------------


def sharded(log_inside_scan=False):
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("d",), auto, devices=jax.devices()[:2])

    def body(x):
        if log_inside_scan:
            jax.lax.map(lambda v: lox.log({"x": v})["x"], x)
        else:
            lox.log({"x": x})
        return x * 2

    return jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)


def test_records_in_shard_map_have_a_leading_axis_for_the_mesh():
    xs = jnp.arange(4.0)
    out, logs = jax.jit(lox.spool(sharded()))(xs)
    assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert values(logs) == {"x": [[0.0, 1.0], [2.0, 3.0]]}
    assert "x" not in logs.stacked


def test_loops_in_shard_map():
    logs = jax.jit(lox.spool(sharded(log_inside_scan=True)))(jnp.arange(4.0))[1]
    assert "x" in logs.stacked
    assert logs["x"].shape == (2, 2)
    assert sorted(np.asarray(logs["x"]).ravel().tolist()) == [0.0, 1.0, 2.0, 3.0]


def test_tap_in_shard_map_delivers_the_records_of_every_device():
    received = tapped(jax.jit(sharded()), jnp.arange(4.0))[1]
    assert sorted(v for logs in received for v in np.asarray(logs["x"]).ravel().tolist()) == [0.0, 1.0, 2.0, 3.0]


def test_gradients_through_shard_map():
    xs = jnp.arange(4.0)
    gradient = jax.jit(jax.grad(lambda x: lox.spool(sharded())(x)[0].sum()))(xs)
    assert gradient.tolist() == [2.0] * 4
    gradient, logs = lox.spool(jax.grad(lambda x: sharded()(x).sum()))(xs)
    assert gradient.tolist() == [2.0] * 4
    assert values(logs) == {"x": [[0.0, 1.0], [2.0, 3.0]]}


def test_pmap():
    f = jax.pmap(lambda x: (lox.log({"x": x}), x * 2)[1], devices=jax.devices()[:2])
    out, logs = lox.spool(f)(jnp.arange(2.0))
    assert out.tolist() == [0.0, 2.0]
    assert values(logs) == {"x": [0.0, 1.0]}


def test_a_linear_solve_records_its_own_solve_and_that_of_its_tangents():
    """Forward mode runs `solve` twice: for the value, and for its tangent."""

    def f(b):
        def solve(matvec, b):
            lox.log({"b": b})
            return b / 2.0

        return jax.lax.custom_linear_solve(lambda v: 2.0 * v, b, solve, solve, symmetric=True).sum()

    value, tangent = jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0])
    _, logs = lox.spool(lambda b, t: jax.jvp(f, (b,), (t,)))(value, tangent)
    assert logs["b"].tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert lox.spool(f)(value)[1]["b"].tolist() == [1.0, 2.0]


def root_with_marks(x):
    """Its residual and its solve have a mark each; what it closes over is a float and a whole number."""
    target, power = jnp.abs(x).sum() + 1, jnp.argmax(x)

    def residual(y):
        lox.log({"y": y})
        return y**2 - jnp.where(power == 2, target, 0) ** 2

    def solve(f, guess):
        lox.log({"guess": guess})
        return guess, f(guess)

    root, _ = jax.lax.custom_root(residual, target, solve, lambda g, y: y / g(1.0), has_aux=True)
    return root


@pytest.mark.parametrize("checked", [False, True])
def test_a_root_records_its_residual_wherever_that_is_computed(checked):
    """Its derivative computes the residual twice: to differentiate it by what it closes over, and by its argument."""
    forward, backward = {"guess": 4.5, "y": 4.5}, {"guess": 4.5, "y": [4.5, 4.5, 4.5]}
    with jax.enable_checks(checked):
        assert values(lox.spool(root_with_marks)(X)[1]) == forward
        gradient, logs = jax.grad(lox.spool(root_with_marks), has_aux=True)(X)
        assert gradient.tolist() == [1.0, -1.0, 1.0]
        assert values(logs) == forward
        gradient, logs = lox.spool(jax.grad(root_with_marks))(X)
        assert gradient.tolist() == [1.0, -1.0, 1.0]
        assert values(logs) == backward
        assert [key for each in tapped(jax.grad(root_with_marks), X)[1] for key in each] == ["guess", "y", "y", "y"]
        lanes = jnp.stack([X, X + 1])
        logs = lox.spool(jax.vmap(jax.grad(root_with_marks)))(lanes)[1]
        assert values(logs) == {"guess": [4.5, 5.5], "y": [[4.5, 5.5]] * 3}
        assert values(jax.vmap(lox.spool(jax.grad(root_with_marks)))(lanes)[1])["y"] == [[4.5] * 3, [5.5] * 3]
