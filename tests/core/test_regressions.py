"""Programs that once went wrong, each as small as it gets."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
from lox._jax import hi_primitives

X = jnp.float32(3.0)

# --- records and stacks of them --------------------------------------------------------------------------------------


def log_whole_and_elements(xs):
    lox.log({"whole": xs})
    jax.lax.map(lambda x: lox.log({"element": x})["element"], xs)


def test_an_array_that_is_a_record_and_the_records_of_a_loop_over_it_inside_a_loop():
    def f(xss):
        jax.lax.map(log_whole_and_elements, xss)

    logs = lox.spool(f)(jnp.arange(6).reshape(2, 3))[1]
    assert logs["whole"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert logs["element"].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_array_that_is_a_record_and_the_records_of_a_loop_over_it_twice():
    def f(xs):
        log_whole_and_elements(xs)
        log_whole_and_elements(xs)

    logs = lox.spool(f)(jnp.arange(3))[1]
    assert logs["whole"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert logs["element"].tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("flag", [True, False])
def test_one_record_in_a_branch_and_a_loop_of_one_in_the_other(flag):
    def record(x):
        lox.log({"x": x}, step=1)
        return x

    def f(flag, x):
        return jax.lax.cond(flag, record, lambda x: jax.lax.fori_loop(0, 1, lambda i, x: record(x + 1), x), x)

    logs = jax.jit(lox.spool(f))(flag, X)[1]
    assert logs["x"].tolist() == [3.0 if flag else 4.0]
    assert logs.step["x"].tolist() == [1]
    assert "x" in logs.stacked


# --- what is remembered between calls --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Gather:
    """Equal to every other one of its name."""

    name: str
    got: list = dataclasses.field(compare=False, default_factory=list)

    def __call__(self, logs):
        self.got.append(float(logs["x"]))


@dataclasses.dataclass
class GatherUnhashable:
    got: list

    def __call__(self, logs):
        self.got.append(float(logs["x"]))


def log_x(x):
    lox.log({"x": x})
    return x


def test_equal_callbacks_are_not_the_same_callback():
    first, second = Gather("name"), Gather("name")
    for wrap in (lambda f: f, jax.jit):
        lox.tap(wrap(log_x), first)(jnp.float32(1.0))
        lox.tap(wrap(log_x), second)(jnp.float32(2.0))
        jax.effects_barrier()
    assert first.got == [1.0, 1.0]
    assert second.got == [2.0, 2.0]


def test_a_callback_need_not_be_hashable():
    callback = GatherUnhashable([])
    jax.jit(lox.tap(log_x, callback))(X)
    jax.effects_barrier()
    assert callback.got == [3.0]


def test_writing_to_a_returned_numpy_array_changes_no_later_call():
    spooled = lox.spool(lambda x: (x, np.zeros(2)))
    spooled(X)[0][1][:] = 1.0
    assert spooled(X)[0][1].tolist() == [0.0, 0.0]


def test_donating_a_constant_log_breaks_no_later_call():
    def f(x):
        lox.log({"rate": 0.5})
        return x

    spooled = lox.spool(f)
    spooled(X)[1]["rate"].delete()
    assert float(spooled(X)[1]["rate"]) == 0.5


def test_numpy_arrays_of_other_floats_are_traced_once():
    seen = []

    def f(x):
        seen.append(x)
        return x

    spooled = lox.spool(f)
    for _ in range(2):
        assert spooled(np.ones(2, ml_dtypes.bfloat16))[0].dtype == jnp.bfloat16
    assert len(seen) == 1


def test_checkpoints_of_one_function_keep_their_own_policies():
    policy = jax.checkpoint_policies.everything_saveable

    def f(x):
        return jax.checkpoint(log_x, policy=policy)(x) + jax.checkpoint(log_x)(x)

    params = [hi_primitives.params_of(eqn) for eqn in jax.make_jaxpr(lox.spool(f))(X).eqns]
    assert [each["policy"] for each in params if "policy" in each] == [policy, None]


def test_jits_of_one_function_keep_their_own_options():
    def f(x):
        return jax.jit(log_x, keep_unused=True)(x) + jax.jit(log_x)(x)

    jaxpr = jax.make_jaxpr(lox.spool(f))(X)
    assert [eqn.params["keep_unused"] for eqn in jaxpr.eqns if eqn.primitive.name == "jit"] == [True, False]


def test_a_call_traced_with_several_dtypes_has_a_buffer_for_each():
    got = []

    def f(x):
        for first, second in ((x, x), (x.astype(int), x), (x, x.astype(int)), (x, x)):
            lox.log({"first": first, "second": second}, step=0)
        return x

    jax.jit(lox.tap(f, got.append, batch=2))(X)
    jax.effects_barrier()
    assert all(logs.stacked == {"first", "second"} for logs in got)
    dtypes = sorted((str(logs["first"].dtype), str(logs["second"].dtype), logs.counts["first"]) for logs in got)
    assert dtypes == [("float32", "float32", 2), ("float32", "int32", 1), ("int32", "float32", 1)]


# --- derivatives -----------------------------------------------------------------------------------------------------


def square_with_rule(record, record_in_rule):
    @jax.custom_jvp
    def square(x):
        record(x)
        return x**2

    @square.defjvp
    def _(primals, tangents):
        (x,), (dx,) = primals, tangents
        record_in_rule(x)
        return x**2, 2 * x * dx

    return square


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_rule_may_record_the_keys_of_its_function_in_another_order(wrap):
    def backwards(x):
        lox.log({"b": x})
        lox.log({"a": x})

    square = square_with_rule(lambda x: lox.log({"a": x, "b": x}), backwards)
    gradient, logs = wrap(jax.grad(lox.spool(square), has_aux=True))(X)
    assert float(gradient) == 6.0
    assert {key: float(value) for key, value in logs.items()} == {"a": 3.0, "b": 3.0}


def test_marks_of_a_rule_that_are_not_selected_leave_the_records_to_the_function():
    square = square_with_rule(lambda x: lox.log({"a": x}), lambda x: lox.log({"rule": x}))
    gradient, logs = jax.grad(lox.spool(square, argnames="a"), has_aux=True)(X)
    assert float(gradient) == 6.0
    assert {key: float(value) for key, value in logs.items()} == {"a": 3.0}


def test_a_rule_that_records_other_shapes_or_fewer_keys_is_named():
    square = square_with_rule(lambda x: lox.log({"a": x}), lambda x: lox.log({"a": jnp.stack([x, x])}))
    with pytest.raises(lox.LoxError, match=r"'a' x 1 of shape \(2,\) instead of 'a' x 1"):
        jax.grad(lox.spool(square), has_aux=True)(X)

    def loop(*keys):
        return lambda x: jax.lax.map(lambda i: [lox.log({key: x}) for key in keys] and i, jnp.arange(2))

    square = square_with_rule(loop("a", "b"), loop("a"))
    with pytest.raises(lox.LoxError, match="'a' x 2 instead of 'a' x 2, 'b' x 2"):
        jax.grad(lox.spool(square, reduce="sum"), has_aux=True)(X)


def test_log_grad_in_forward_mode():
    def f(x):
        return (lox.log_grad(x, "dx") ** 3).sum()

    x = jnp.array([1.0, 2.0])
    assert lox.spool(jax.jacfwd(f))(x)[0].tolist() == [3.0, 12.0]
    hessian, logs = lox.spool(jax.hessian(f))(x)
    assert hessian.tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert logs["dx"].reshape(-1, 2).tolist() == [[3.0, 12.0]] * 2


def test_log_grad_of_a_value_that_all_lanes_share_is_one_cotangent_for_each_lane():
    def f(w):
        return jax.vmap(lambda x: lox.log_grad(w, "dw") * x)(jnp.arange(3.0)).sum()

    for wrapped in (jax.grad(f), jax.grad(jax.jit(f))):
        assert lox.spool(wrapped)(X)[1]["dw"].tolist() == [0.0, 1.0, 2.0]


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_mean_of_large_numbers_of_different_signs():
    big = np.float32(3e38)
    logs = lox.logdict({"x": np.array([big, big, -big])}, stacked=["x"]).reduce("mean")
    np.testing.assert_allclose(logs["x"], 1e38, rtol=1e-6)
    for values in ([np.inf, 1.0], [1.0, np.inf]):
        assert lox.logdict({"x": np.float32(values)}, stacked=["x"]).reduce("mean")["x"] == np.inf
    assert np.isnan(lox.logdict({"x": np.float32([np.inf, -np.inf])}, stacked=["x"]).reduce("mean")["x"])


def test_a_reduction_of_the_call_and_the_same_one_of_spool_are_no_conflict():
    def f(x):
        lox.log({"x": x}, reduce="mean")
        lox.log({"x": x + 2})
        return x

    _, logs = lox.spool(f, reduce="mean")(jnp.float32(1.0))
    assert float(logs["x"]) == 2.0
    with pytest.raises(lox.LoxError, match="different reductions"):
        lox.spool(f, reduce="max")(jnp.float32(1.0))


def test_constants_that_are_stacked_come_back_as_arrays():
    def f(x):
        for i in range(3):
            lox.log({"x": x, "c": 1.5}, step=i)
        return x

    for spooled in (lox.spool(f), jax.jit(lox.spool(f))):
        for _ in range(2):
            logs = spooled(jnp.ones(2))[1]
            assert isinstance(logs["c"], jax.Array)
            assert isinstance(logs.step["x"], jax.Array)
            assert logs.step["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("held_by", ["nothing", "jit", "cond"])
def test_marks_of_constants_in_a_checkpointed_scan_are_recorded_in_every_iteration(held_by):
    def mark(x):
        lox.log({"k": 3.0})
        return x

    holders = {
        "nothing": mark,
        "jit": lambda x: (jax.jit(lambda: mark(1.0))(), x)[1],
        "cond": lambda x: jax.lax.cond(x > -9.0, mark, mark, x),
    }

    @jax.checkpoint
    def f(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(holders[held_by](c)), None), x, length=3)[0]

    assert lox.spool(jax.grad(f))(1.0)[1]["k"].tolist() == [3.0] * 3
    assert jax.grad(lox.spool(f), has_aux=True)(1.0)[1]["k"].tolist() == [3.0] * 3


def test_the_gradient_of_a_checkpointed_jitted_function_that_closes_over_an_array():
    table = jnp.arange(3.0)

    @jax.jit
    def f(x):
        lox.log({"x": x * table.sum()})
        return (x * table).sum()

    gradient, logs = lox.spool(jax.grad(jax.checkpoint(f)))(2.0)
    assert gradient == 3.0
    assert logs["x"].tolist() == 6.0


def _loop_with_marks(x):
    """A while loop with tangents in a part of its carry, and with marks of both parts."""
    lox.log({"before": x})

    def body(carry):
        i, tangible, passive = carry
        lox.log({"i": i})
        lox.log({"tangible": tangible})
        lox.log({"passive": passive})
        return i + 1, tangible * 2, passive + 1

    start = (0, x, jax.lax.stop_gradient(x))
    _, tangible, passive = jax.lax.while_loop(lambda carry: carry[0] < 2, body, start)
    return tangible + passive


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
@pytest.mark.parametrize(
    "differentiate",
    [
        lambda f, callback: jax.jvp(lox.tap(f, callback), (1.0,), (1.0,)),
        lambda f, callback: jax.linearize(lox.tap(f, callback), 1.0)[1](1.0),
        lambda f, callback: jax.jit(lambda x: jax.linearize(lox.tap(f, callback), x)[1](1.0))(1.0),
        lambda f, callback: lox.tap(lambda x: jax.linearize(f, x)[1](1.0), callback)(1.0),
    ],
    ids=["jvp(tap)", "linearize(tap)", "jit(linearize(tap))", "tap(linearize)"],
)
def test_marks_of_a_while_loop_that_is_differentiated_forwards_arrive_once(wrap, differentiate):
    """JAX runs the loop again for its tangents: several calls of the host, in a chain, were made again with it."""
    got = []
    differentiate(wrap(_loop_with_marks), lambda logs: got.extend((key, float(logs[key])) for key in logs))
    jax.effects_barrier()
    assert sorted(got) == [
        ("before", 1.0),
        ("i", 0.0),
        ("i", 1.0),
        ("passive", 1.0),
        ("passive", 2.0),
        ("tangible", 1.0),
        ("tangible", 2.0),
    ]


def test_several_marks_of_a_while_loop_in_a_checkpoint_are_tapped_under_grad():
    """JAX would have saved the chain between them as a residual, of which a while loop has none."""

    @jax.checkpoint
    def f(x):
        passive = jax.lax.stop_gradient(x)
        lox.log({"a": x})

        def body(carry):
            lox.log({"a": carry[1]})
            return carry[0] + 1, carry[1] + 1

        return 2 * x + jax.lax.while_loop(lambda carry: carry[0] < 2, body, (0, passive))[1]

    got: list[float] = []
    assert jax.grad(lox.tap(f, lambda logs: got.append(float(logs["a"]))))(1.0) == 2.0
    jax.effects_barrier()
    assert got == [1.0, 1.0, 2.0]


def test_a_python_number_that_is_tapped_under_an_eager_jvp_is_what_it_is():
    """numpy took it for a number of 64 bits, of which 32 were delivered."""
    got = []

    def f(x):
        lox.log({"a": x})
        return x

    jax.jvp(lox.tap(f, lambda logs: got.append(float(logs["a"]))), (1.5,), (1.0,))
    assert got == [1.5]


# --- what an attack found --------------------------------------------------------------------------------------------


def test_a_logged_value_that_is_donated_afterwards_is_still_there():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x):
        y = x * 2
        lox.log({"x": x, "y": y})
        return add(x), add(y)

    out, logs = lox.spool(f)(jnp.arange(3.0))
    assert logs["x"].tolist() == [0.0, 1.0, 2.0]
    assert logs["y"].tolist() == [0.0, 2.0, 4.0]
    assert out[1].tolist() == [1.0, 3.0, 5.0]


def test_the_program_does_not_depend_on_the_hash_seed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, jax.numpy as jnp, lox\n"
        "def f(x):\n"
        "    def step(c, i):\n"
        "        for key in 'abcdefgh':\n"
        "            lox.log({key: c}, step=i + ord(key))\n"
        "        return c + 1, None\n"
        "    return jax.lax.scan(step, x, jnp.arange(3))[0]\n"
        "print(jax.jit(lox.spool(f)).lower(jnp.float32(0)).as_text())\n"
        "print(list(lox.spool(f)(jnp.float32(0))[1].step))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, script], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in "12"
    }
    assert len(printed) == 1


def _counting(length):
    return lambda x: jax.lax.scan(lambda c, _: (c + 1, lox.log({"a": c})["a"]), x, length=length)


@pytest.mark.parametrize("options", [{"reduce": ("append", "sum")}, {"interval": 2}, {"reduce": "mean"}, {}])
def test_a_rule_that_records_more_often_than_its_function_is_an_error_also_where_records_are_folded(options):
    f = jax.custom_vjp(lambda x: (_counting(2)(x), jnp.sin(x))[1])
    f.defvjp(lambda x: (_counting(3)(x), (jnp.sin(x), x))[1], lambda x, ct: (jnp.cos(x) * ct,))
    with pytest.raises(lox.LoxError, match="'a' x 3 instead of 'a' x 2"):
        jax.grad(lox.spool(f, **options), has_aux=True)(1.0)


def test_a_rule_that_records_in_a_loop_what_its_function_records_once_is_an_error_where_records_are_folded():
    f = jax.custom_vjp(lambda x: (lox.log({"a": x}), jnp.sin(x))[1])
    f.defvjp(lambda x: (_counting(1)(x), (jnp.sin(x), x))[1], lambda x, ct: (jnp.cos(x) * ct,))
    with pytest.raises(lox.LoxError, match="record different things"):
        jax.grad(lox.spool(f, reduce="mean"), has_aux=True)(1.0)


def _log_each(change=lambda x: x):
    return lambda xs: jax.lax.map(lambda x: lox.log({"a": change(x)})["a"], xs)


@pytest.mark.parametrize("options", [{"interval": 2}, {"capacity": 2}])
def test_random_keys_of_any_generator_fit_into_a_ring(options):
    def f(key):
        jax.lax.scan(lambda c, i: (c, lox.log({"key": c}, where=i < 2)), key, jnp.arange(3))

    key = jax.random.key(7, impl="rbg")
    (first, *_) = lox.spool(f, **options)(key)[1]["key"]
    assert jax.random.key_data(first).tolist() == jax.random.key_data(key).tolist()


def test_batches_of_random_keys_are_tapped():
    got = []
    keys = jnp.stack([jax.random.key(7)] * 3)
    lox.tap(_log_each(), got.append, batch=2)(keys)
    jax.effects_barrier()
    assert [logs["a"].tolist() for logs in got] == [[[0, 7]] * 2, [[0, 7]]]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_extremes_of_types_without_infinities(dtype):
    logs = lox.spool(_log_each(lambda x: x.astype(dtype)), reduce=("min", "max"))(jnp.array([2.0, 1.0, 3.0]))[1]
    assert [float(logs["a"][how]) for how in ("min", "max")] == [1.0, 3.0]


def test_four_bit_integers_are_summed():
    f = _log_each(lambda x: x.astype(jnp.int4))
    assert int(lox.spool(f, reduce="sum")(jnp.array([7, 7, 7]))[1]["a"]) == 21


def test_a_reducer_may_be_a_dataclass_and_begin_with_a_number():
    @dataclasses.dataclass
    class Average(lox.Reducer):
        decay: float = 0.5

        def init(self, aval):
            return 0.0

        def update(self, state, value):
            return state * self.decay + value

    logs = lox.spool(_log_each(), reduce=Average())(jnp.array([2.0, 1.0, 3.0]))[1]
    assert float(logs["a"]) == 4.0


def test_a_mean_without_a_nan_does_not_alarm_debug_nans():
    f = _log_each()
    with jax.debug_nans(True):
        assert lox.spool(f, reduce="mean")(jnp.ones((2, 3)))[1]["a"].tolist() == [1.0, 1.0, 1.0]
    assert np.isnan(lox.spool(f, reduce="mean")(jnp.ones((0, 3)))[1]["a"]).all()


def test_axes_come_in_the_order_in_which_they_were_given():
    """Also where one key is kept as rows and another, with fewer axes, in a store."""

    def f(x):
        def step(carry, i):
            lox.log({"loss": i * 1.0}, step=i, frame=i * 8)
            lox.log({"return": i * 1.0}, frame=i * 8, where=i > 1)
            return carry, None

        return jax.lax.scan(step, x, jnp.arange(4))[0]

    tapped = []
    lox.tap(f, lambda logs: tapped.append(list(logs.steps)))(1.0)
    jax.effects_barrier()
    assert tapped[0] == ["step", "frame"]
    for spooled in (lox.spool(f), jax.jit(lox.spool(f)), lox.spool(f, reduce="mean"), lox.spool(f, capacity=2)):
        assert list(spooled(1.0)[1].steps) == ["step", "frame"]
    assert list(jax.vmap(lox.spool(f))(jnp.ones(2))[1].steps) == ["step", "frame"]
