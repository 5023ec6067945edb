"""Custom derivatives, checkpoints and solvers: what JAX can differentiate, lox can, with the same result."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.experimental.pallas import run_state

import lox
from tests.core.checks import assert_close, tapped

X = jnp.linspace(0.5, 2.0, 3)


# --- rules that never asked for symbolic zeros -----------------------------------------------------------------------


def _product(rule: Any) -> Any:
    """`c * x`, marked, with this rule."""

    @jax.custom_jvp
    def product(c, x):
        lox.log({"x": x})
        return c * x

    product.defjvp(lambda p, t: rule(product, p, t))
    return product


def _by_hand(product, p, t):
    return product(*p), p[0] * t[1] + t[0] * p[1]


ORDINARY = {
    "logaddexp": lambda x: jnp.logaddexp(x, 2.0).sum(),
    "softplus": lambda x: jax.nn.softplus(x).sum(),
    "xlogy": lambda x: jax.scipy.special.xlogy(2.0, x).sum(),
    "rel_entr": lambda x: jax.scipy.special.rel_entr(x, 2.0).sum(),
    "a rule of somebody's own": lambda x: _product(_by_hand)(2.0, x).sum(),
}


@pytest.mark.parametrize("fun", ORDINARY.values(), ids=ORDINARY)
def test_gradients_of_functions_with_constant_arguments(fun):
    expected = jax.grad(fun)(X)
    assert_close(jax.grad(lox.nolog(fun))(X), expected)
    assert_close(jax.jit(jax.grad(lambda x: lox.nolog(fun)(x)))(X), expected)
    assert_close(jax.grad(lambda x: lox.spool(fun)(x)[0])(X), expected)
    assert_close(jax.jvp(lox.nolog(fun), (X,), (X,)), jax.jvp(fun, (X,), (X,)))


def test_a_rule_that_asked_for_symbolic_zeros_gets_them():
    seen = []

    @jax.custom_jvp
    def product(c, x):
        lox.log({"x": x})
        return c * x

    def rule(primals, tangents):
        (c, x), (dc, dx) = primals, tangents
        seen.append(type(dc) is jax.custom_derivatives.SymbolicZero)
        return product(c, x), c * dx

    product.defjvp(rule, symbolic_zeros=True)
    out, logs = jax.grad(lox.spool(lambda x: product(2.0, x).sum()), has_aux=True)(X)
    assert_close(out, jnp.full(3, 2.0))
    assert_close(logs["x"], X)
    assert seen == [True]


# --- marks of tangents -----------------------------------------------------------------------------------------------

RULES = {
    "on (c, dx)": lambda f, p, t: (f(*p), f(p[0], t[1])),
    "on (dc, x)": lambda f, p, t: (f(*p), f(t[0], p[1])),
    "on both": lambda f, p, t: (f(*p), f(p[0], t[1]) + f(t[0], p[1])),
    "on tangents alone": lambda f, p, t: (p[0] * p[1], f(p[0], t[1])),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_may_call_its_own_function_on_tangents(rule):
    product = _product(rule)

    def fun(x):
        return product(3.0, x).sum()

    expected, tangents = jax.grad(fun)(X), jax.jvp(fun, (X,), (X,))
    gradient, logs = jax.grad(lox.spool(fun), has_aux=True)(X)
    assert_close(gradient, expected)
    assert_close(dict(logs), {"x": X})
    reduced = jax.grad(lox.spool(fun, reduce="sum"), has_aux=True)(X)
    assert_close((reduced[0], dict(reduced[1])), (expected, {"x": X}))
    assert_close(jax.jvp(lox.nolog(fun), (X,), (X,)), tangents)
    assert_close(jax.jvp(lambda x: lox.spool(fun)(x)[0], (X,), (X,)), tangents)
    assert_close(lox.spool(jax.grad(fun))(X)[0], expected)
    assert_close(tapped(jax.grad(fun), X)[0], expected)
    received: list[lox.logdict] = []
    assert_close(jax.grad(lox.tap(fun, received.append))(X), expected)
    jax.effects_barrier()
    assert [list(logs) for logs in received] == [["x"]]


NESTED = {
    "spool(tap)": lambda fun, callback: lambda x: lox.spool(lox.tap(fun, callback))(x)[0],
    "spool(reduce) of tap": lambda fun, callback: lambda x: lox.spool(lox.tap(fun, callback), reduce="sum")(x)[0],
    "tap(tap)": lambda fun, callback: lox.tap(lox.tap(fun, callback), lambda logs: None),
    "nolog(tap)": lambda fun, callback: lox.nolog(lox.tap(fun, callback)),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize(
    "rule", [*RULES.values(), lambda f, p, t: (p[0] * p[1], p[0] * t[1])], ids=[*RULES, "without a mark"]
)
def test_a_tap_inside_a_differentiated_transformation_delivers_each_record_once(rule, nested):
    """If a rule does not record what its function does, the function is run for its records, but not for its host calls."""
    product = _product(rule)
    received: list[lox.logdict] = []
    plain = lambda x: product(3.0, x).sum()  # noqa: E731
    fun = nested(plain, received.append)
    for differentiated in (jax.grad(fun), jax.grad(jax.jit(fun))):
        assert_close(differentiated(X), jax.grad(plain)(X))
        jax.effects_barrier()
        assert [list(logs) for logs in received] == [["x"]]
        received.clear()


def _custom_jvp(function):
    decorated = jax.custom_jvp(function)
    decorated.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]))
    return decorated, jax.grad


def _custom_vjp(function):
    decorated = jax.custom_vjp(function)
    decorated.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (jnp.cos(x) * cotangent,))
    return decorated, jax.grad


def _custom_vmap(function):
    decorated = custom_vmap(function)
    decorated.def_vmap(lambda axis_size, in_batched, xs: (jnp.sin(xs), in_batched[0]))
    return decorated, lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x]))


CALLBACKS = {
    "debug.callback": lambda called, x: jax.debug.callback(called.append, x),
    "io_callback": lambda called, x: io_callback(lambda x: called.append(x), None, x),
    "unused result": lambda called, x: io_callback(lambda x: (called.append(x), x)[1], jax.typeof(x), x),
    "in a loop": lambda called, x: jax.lax.fori_loop(
        0, 2, lambda i, _: (jax.debug.callback(called.append, x), 0)[1], 0
    ),
}


@pytest.mark.parametrize("callback", CALLBACKS.values(), ids=CALLBACKS)
@pytest.mark.parametrize("decorate", [_custom_jvp, _custom_vjp, _custom_vmap])
def test_a_function_that_is_run_for_its_records_makes_no_calls_of_its_own(decorate, callback):
    """Its rule runs instead, so JAX would not call them."""
    called: list[Any] = []

    def function(x):
        callback(called, x)
        lox.log({"x": x})
        return jnp.sin(x)

    decorated, transform = decorate(function)
    expected = transform(decorated)(jnp.float32(1))
    records: list[lox.logdict] = []
    for fun in (lox.tap(decorated, records.append), lambda x: lox.spool(decorated)(x)[0], lox.nolog(decorated)):
        assert_close(transform(fun)(jnp.float32(1)), expected)
    jax.effects_barrier()
    assert called == []
    assert len(records) == expected.size


def _marks_its_tangent(x):
    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    @sine.defjvp
    def _(primals, tangents):
        lox.log({"tangent": tangents[0]})
        lox.log({"primal": primals[0]})
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    return sine(x)


def _in_scan(fun):
    return lambda x: jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=1)[0]


def _saves_sines(prim, *_, **__):
    return prim.name == "sin"


AROUND = {
    "nothing": lambda fun: fun,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "checkpoint that saves": lambda fun: jax.checkpoint(fun, policy=_saves_sines),
    "checkpoint of a jit": lambda fun: jax.checkpoint(jax.jit(fun)),
    "checkpoint in a checkpoint": lambda fun: jax.checkpoint(lambda x: 1 * jax.checkpoint(fun)(x)),
    "checkpoint of a scan": lambda fun: jax.checkpoint(_in_scan(fun)),
    "scan of a checkpoint": lambda fun: _in_scan(jax.checkpoint(fun)),
    "vmap": jax.vmap,
    "vmap of a checkpoint": lambda fun: jax.vmap(jax.checkpoint(fun)),
    "scan": _in_scan,
    "cond": lambda fun: lambda x: jax.lax.cond(x[0] > 0, fun, lambda x: x, x),
    "checkpoint of a cond": lambda fun: jax.checkpoint(lambda x: jax.lax.cond(x[0] > 0, fun, lambda x: x, x)),
}
around = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)


def _recorded(fun, *args):
    """What a program records, key by key: all records of a key as one vector."""
    logs = lox.spool(fun, capacity=4)(*args)[1].trim()
    return {key: np.ravel(logs[key]) for key in logs if np.any(logs.counts[key])}


@around
def test_a_tangent_is_recorded_in_forward_mode_and_does_not_exist_in_reverse_mode(around):
    fun = around(_marks_its_tangent)
    gradient = jax.grad(lambda x: fun(x).sum())
    assert_close(lox.spool(gradient, capacity=4)(X)[0], gradient(X))
    assert_close(_recorded(gradient, X), {"primal": np.asarray(X)})
    out, received = tapped(gradient, X)
    assert_close(out, gradient(X))
    assert [key for logs in received for key in logs] == ["primal"] * len(received)
    np.testing.assert_allclose(np.ravel([logs["primal"] for logs in received]), X)
    forward = {"primal": np.asarray(X), "tangent": np.asarray(2 * X)}
    assert_close(_recorded(lambda x: jax.jvp(fun, (x,), (2 * x,))[1], X), forward)
    assert_close(_recorded(lambda x: jax.linearize(fun, x)[1](2 * x), X), forward)


def _marks_in_its_rules(x):
    @jax.custom_vjp
    def sine(x):
        return jnp.sin(x)

    def forward(x):
        lox.log({"forward": x})
        return jnp.sin(x), x

    def backward(x, g):
        lox.log({"backward": g * x})
        return (jnp.cos(x) * g,)

    sine.defvjp(forward, backward)
    return sine(lox.log_grad(x, "dx"))


@around
def test_marks_that_only_the_rules_of_a_custom_vjp_have_are_recorded_once(around):
    fun = around(_marks_in_its_rules)
    gradient = jax.grad(lambda x: fun(x).sum())
    assert_close(lox.spool(gradient, capacity=4)(X)[0], gradient(X))
    expected = {"forward": np.asarray(X), "backward": np.asarray(X), "dx": np.cos(X)}
    assert_close(_recorded(gradient, X), expected)
    _, received = tapped(gradient, X)
    delivered = {key: np.ravel([logs[key] for logs in received if key in logs]) for key in expected}
    assert_close(delivered, expected)


@pytest.mark.parametrize("around", [lambda fun: fun, jax.checkpoint], ids=["f", "checkpoint"])
def test_a_rule_is_recorded_where_it_runs_and_the_function_where_that_runs(around):
    """What is not differentiated is the function itself; and what is recorded changes no derivative."""

    @jax.custom_jvp
    def sine(x):
        lox.log({"function": x})
        return jnp.sin(x)

    @sine.defjvp
    def _(primals, tangents):
        lox.log({"rule": primals[0]})
        return jnp.sin(primals[0]), 5 * tangents[0]  # not the derivative of the result

    fun = around(lambda x: (sine(x) * sine(jax.lax.stop_gradient(2 * x))).sum())
    gradient = jax.grad(fun)
    assert_close(_recorded(gradient, X), {"rule": np.asarray(X), "function": np.asarray(2 * X)})
    twice = jax.grad(lambda x: gradient(x).sum())
    assert_close(lox.spool(twice, capacity=4)(X)[0], twice(X))


def test_a_rule_that_marks_tangents_at_a_line_of_its_own_is_an_error_under_grad_of_spool():
    @jax.custom_jvp
    def sine(x):
        lox.log({"x": x})
        return jnp.sin(x)

    @sine.defjvp
    def _(primals, tangents):
        lox.log({"x": tangents[0]})
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    with pytest.raises(lox.LoxError, match=r"record different things .*tangents, 'x' x 1.* spool\(grad\(f\)\)"):
        jax.grad(lox.spool(sine), has_aux=True)(1.0)


def test_a_host_call_that_follows_one_with_tangents_is_made():
    received: list[lox.logdict] = []

    def note(x, dx):
        lox.log({"dx": dx})
        lox.log({"x": x})
        return dx

    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    @sine.defjvp
    def _(primals, tangents):
        dx = lox.tap(note, received.append)(primals[0], tangents[0])
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * dx

    assert_close(jax.jit(jax.grad(sine))(1.0), np.cos(np.float32(1)))
    jax.effects_barrier()
    assert [dict(logs) for logs in received] == [{"x": 1.0}]
    received.clear()
    jax.jvp(sine, (1.0,), (2.0,))
    jax.effects_barrier()
    assert [dict(logs) for logs in received] == [{"dx": 2.0}, {"x": 1.0}]


# --- functions that close over a value ----------------------------------------------------------------------------------

REPEATED = {
    "scan": lambda f, x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "scan of a scan": lambda f, x: jax.lax.scan(lambda c, _: (REPEATED["scan"](f, c), None), x, None, length=2)[0],
    "scan of a cond": lambda f, x: REPEATED["scan"](lambda c: jax.lax.cond(c > 0, f, lambda v: -f(v), c), x),
    "scan of a checkpoint": lambda f, x: REPEATED["scan"](jax.checkpoint(f), x),
    "jit": lambda f, x: jax.jit(f)(x),
    "jit of a scan": lambda f, x: jax.jit(lambda x: REPEATED["scan"](f, x))(x),
    "cond": lambda f, x: jax.lax.cond(x > 0, f, lambda v: -f(v), x),
}
DIFFERENTIATED = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "value_and_grad": lambda f, x: jax.value_and_grad(f)(x),
    "grad of grad": lambda f, x: jax.grad(jax.grad(f))(x),
}


@pytest.mark.every(2)
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("derivative", DIFFERENTIATED)
@pytest.mark.parametrize("around", REPEATED)
def test_a_function_with_a_rule_may_close_over_a_traced_value(around, derivative):
    # Of such a function, JAX keeps tracers as constants of what is around it. Under jit it cannot run most of these itself.
    def run(scale: Any, x: Any) -> Any:
        @jax.custom_jvp
        def scaled(x):
            lox.log({"x": x, "scale": scale})
            return scale * x

        @scaled.defjvp
        def _(p, t):
            lox.log({"in the rule": scale + p[0]})
            return scaled(*p), scale * t[0]

        return DIFFERENTIATED[derivative](lambda x: REPEATED[around](scaled, x), x)

    expected, logs = lox.spool(lambda x: run(np.float32(3), x))(np.float32(2))
    assert_close(run(np.float32(3), np.float32(2)), expected)
    for spooled in (lox.spool(run), jax.jit(lox.spool(run))):
        assert_close(spooled(np.float32(3), np.float32(2)), (expected, logs))
    jax.vmap(lambda x: run(np.float32(3), x))(np.full(2, 2.0))  # JAX can do that, or says so: see conftest
    assert_close(jax.vmap(lox.spool(run))(np.full(2, 3.0), np.full(2, 2.0))[1]["x"][1], logs["x"])


# --- programs without any mark ---------------------------------------------------------------------------------------


def _in_custom_vmap(x):
    @custom_vmap
    def relu(x):
        return jax.nn.relu(x)

    relu.def_vmap(lambda size, batched, x: (jax.nn.relu(x), True))
    return relu(x)


def _by_platform(x):
    return jax.lax.platform_dependent(x, cpu=jax.nn.relu, default=jax.nn.silu)


def _in_run_state(x, mark=False):
    def body(ref):
        if mark:
            lox.log({"x": ref[...]})
        ref[...] = jax.nn.relu(ref[...])

    return run_state(body)(x)


UNKNOWN = {"custom_vmap": _in_custom_vmap, "platform_dependent": _by_platform, "run_state": _in_run_state}


@pytest.mark.parametrize("fun", UNKNOWN.values(), ids=UNKNOWN)
def test_nolog_leaves_what_it_cannot_look_into_as_it_is(fun):
    assert_close(lox.nolog(fun)(X), fun(X))
    if fun is not _in_run_state:  # which JAX does not batch
        assert_close(jax.vmap(lox.nolog(fun))(X), jax.vmap(fun)(X))
    if fun is _by_platform:
        assert_close(jax.grad(lambda x: lox.nolog(fun)(x).sum())(X), jax.grad(lambda x: fun(x).sum())(X))


def test_a_mark_in_a_run_state_is_named_and_nolog_takes_it_out():
    fun = functools.partial(_in_run_state, mark=True)
    assert_close(lox.spool(_in_run_state)(X)[0], fun(X))
    for transformed in (lox.spool(fun), lox.tap(fun, lambda logs: None)):
        with pytest.raises(lox.LoxError, match=r"lox.log call \(.*test_derivatives.py:\d+\) is inside 'run_state'"):
            transformed(X)
    assert_close(lox.nolog(fun)(X), fun(X))


# --- optimised rules, checkpoints ------------------------------------------------------------------------------------


def test_rules_with_optimized_remat():
    @jax.custom_vjp
    def sine(x):
        lox.log({"x": x})
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), jnp.cos(x)), lambda c, g: (c * g,), optimize_remat=True)

    def loss(x):
        return jax.checkpoint(sine)(x).sum()

    expected = jax.grad(loss)(X)
    for fun in (loss, lambda x: sine(x).sum()):
        out, logs = lox.spool(jax.grad(fun))(X)
        assert_close((out, dict(logs)), (expected, {"x": X}))
        out, logs = jax.grad(lox.spool(fun), has_aux=True)(X)
        assert_close((out, dict(logs)), (expected, {"x": X}))
        assert_close(lox.nolog(jax.grad(fun))(X), expected)
        out, received = tapped(jax.grad(fun), X)
        assert_close(out, expected)
        assert len(received) == 1


def _layers(x, mark):
    def layer(x):
        h = jnp.sin(x)
        if mark == "log_grad":
            h = lox.log_grad(h, "dh", reduce="mean")
        if mark == "log":
            lox.log({"h": h}, reduce="mean")
        return jnp.sin(h)

    for _ in range(3):
        x = jax.checkpoint(layer)(x)
    return x.sum()


@pytest.mark.parametrize("mark", ["log", "log_grad"])
def test_what_a_checkpoint_computes_again_is_kept_apart_as_without_marks(mark):
    """An optimisation barrier keeps the compiler from saving what is to be computed again."""

    def barriers(fun):
        return jax.jit(fun).lower(X).as_text().count("optimization_barrier")

    gradient = jax.grad(lambda x: _layers(x, mark))
    assert barriers(gradient) == 3
    assert barriers(lambda x: lox.spool(gradient)(x)) == 3
    assert barriers(lambda x: lox.spool(jax.jit(gradient))(x)) == 3
    assert barriers(lambda x: lox.tap(gradient, print)(x)) == 3
    assert barriers(jax.grad(lambda x: lox.spool(lambda x: _layers(x, mark))(x)[0])) == 3


@pytest.mark.parametrize("policy", [None, "everything_saveable", "dots_saveable"])
def test_a_mean_in_a_checkpoint_can_be_linearized(policy):
    """A running mean is kept in a complex number, which JAX before 0.11 cannot save."""
    chosen = None if policy is None else getattr(jax.checkpoint_policies, policy)

    @functools.partial(jax.checkpoint, policy=chosen)
    def loop(x):
        def goes_on(state):
            lox.log({"i": state[0]})
            return state[0] < 2

        return jax.lax.while_loop(goes_on, lambda state: (state[0] + 1, jnp.sin(state[1])), (0, x))[1]

    y, push, logs = jax.linearize(jax.jit(lox.spool(loop, reduce="mean")), 1.0, has_aux=True)
    assert_close((y, push(1.0)), jax.jvp(loop, (1.0,), (1.0,)))
    assert float(logs["i"]) == 1.0


def test_a_policy_is_still_asked_about_all_else_where_there_is_a_mean():
    asked = set()

    def policy(primitive, *avals, **params):
        asked.add(primitive.name)
        return primitive.name == "sin"

    @functools.partial(jax.checkpoint, policy=policy)
    def f(x):
        lox.log({"x": x})
        return jnp.cos(jnp.sin(x))

    expected = jax.value_and_grad(f)(1.0)
    without_lox = set(asked)  # with jax_remat3 JAX decides without it
    assert getattr(jax.config, "jax_remat3", False) or {"sin", "cos"} <= without_lox
    asked.clear()
    (y, logs), derivative = jax.value_and_grad(lox.spool(f, reduce="mean"), has_aux=True)(1.0)
    assert_close((y, derivative, logs["x"]), (*expected, jnp.float32(1.0)))
    assert without_lox <= asked


def test_a_checkpoint_may_keep_some_arguments_apart():
    def scaled(x, y):
        lox.log({"x": x})
        return (jnp.sin(x) * lox.log_grad(y, "dy")).sum()

    some = jax.checkpoint(scaled, prevent_cse=(True, False))
    expected = jax.grad(scaled, (0, 1))(X, 2 * X)
    assert_close(lox.spool(some)(X, X)[0], scaled(X, X))
    assert_close(tapped(some, X, X)[0], scaled(X, X))
    for fun in (jax.grad(some, (0, 1)), jax.jit(jax.grad(some, (0, 1)))):
        out, logs = lox.spool(fun)(X, 2 * X)
        assert_close(out, expected)
        assert_close(dict(logs), {"x": X, "dy": jnp.sin(X)})
    out, logs = jax.grad(lox.spool(some), (0, 1), has_aux=True)(X, 2 * X)
    assert_close((out, dict(logs)), (expected, {"x": X}))


def test_a_ref_may_be_closed_over_by_a_checkpointed_scan():
    @jax.custom_vjp
    def stash(ref, x):
        return x

    def backward(ref, g):
        ref[...] = g
        return None, g

    stash.defvjp(lambda ref, x: (x, ref), backward)

    def gradient(ref, mark):
        def body(x, _):
            if mark:
                lox.log({"x": x})
            return jnp.sin(stash(ref, jnp.sin(x))), ()

        return jax.grad(lambda x: jax.lax.scan(jax.checkpoint(body), x, None, length=2)[0])

    x, ref = jnp.float32(1), jax.new_ref(jnp.float32(0))
    expected, stashed = gradient(ref, False)(x), ref[...]
    for transform in (lambda f: lambda x: lox.spool(f)(x)[0], lambda f: lox.tap(f, lambda logs: None)):
        ref[...] = jnp.float32(0)
        assert_close(transform(gradient(ref, True))(x), expected)
        assert_close(ref[...], stashed)


# --- solvers ---------------------------------------------------------------------------------------------------------


def test_marks_in_an_operator_that_the_solver_does_not_call_are_no_records():
    matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])

    def solve(b):
        def operator(x):
            lox.log({"operator": x})
            return matrix @ x

        def direct(_, b):
            lox.log({"solve": b})
            return jnp.linalg.solve(matrix, b)

        return jax.lax.custom_linear_solve(operator, b, direct, direct, symmetric=True)

    b = jnp.ones(2)
    expected = jnp.linalg.solve(matrix, b)
    out, logs = lox.spool(solve)(b)
    assert_close((out, dict(logs)), (expected, {"solve": b}))
    assert_close(tapped(solve, b)[0], expected)
    out, logs = lox.spool(jax.grad(lambda b: solve(b).sum()))(b)
    assert_close((out, list(logs)), (expected, ["solve"]))
    assert_close(jax.grad(lambda b: lox.spool(solve)(b)[0].sum())(b), expected)


@pytest.mark.parametrize("options", [{}, {"batch": 2}, {"interval": 2}], ids=str)
def test_marks_in_the_operator_of_an_iterative_solver_are_tapped(options):
    """JAX transposes the operator, whose marks depend on the operand, before it solves anything."""

    def fun(b):
        def operator(v):
            lox.log({"v": v.sum()})
            return 2 * v

        return jax.scipy.sparse.linalg.gmres(operator, b)[0].sum()

    rows = lox.spool(fun, capacity=20)(X)[1].trim()["v"][:: options.get("interval", 1)]
    for run in (lox.tap, lambda fun, *args, **options: jax.grad(lox.tap(fun, *args, **options))):
        received: list[lox.logdict] = []
        run(fun, received.append, **options)(X)
        jax.effects_barrier()
        assert_close(np.concatenate([np.atleast_1d(logs["v"]) for logs in received]), rows)


TRANSPOSED = {
    "jit": jax.jit,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "cond": lambda f: lambda x: jax.lax.cond(True, f, f, x),
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("around", TRANSPOSED.values(), ids=TRANSPOSED)
def test_a_linear_function_with_marks_can_be_transposed(around):
    def linear(x):
        lox.log({"x": x.sum()})
        return 3 * x

    fun = around(linear)
    try:
        expected = jax.linear_transpose(fun, X)(X)[0]
    except NotImplementedError:
        assert getattr(jax.config, "jax_remat3", False)
        pytest.skip("JAX itself cannot transpose a checkpoint with jax_remat3")
    for transformed in (lox.tap(fun, print), lox.nolog(fun), lambda x: lox.spool(fun, reduce="mean")(x)[0]):
        assert_close(jax.linear_transpose(transformed, X)(X)[0], expected)
    for transform in (lox.spool, lox.find_nonfinite):
        assert_close(transform(lambda x: jax.linear_transpose(fun, x)(x)[0])(X)[0], expected)
    assert_close(tapped(lambda x: jax.linear_transpose(fun, x)(x)[0], X)[0], expected)
