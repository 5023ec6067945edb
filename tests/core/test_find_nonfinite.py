"""``lox.find_nonfinite``: which operation made the first nan or inf."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

import lox
from tests.core.checks import assert_close
from tests.core.test_zero_cost import counting_compilations
from tests.corpus import PROGRAMS, X

ARGUMENT = jnp.asarray(X)


def report_of(fun, *args, **options):
    return lox.find_nonfinite(fun, **options)(*args)[1]


def line_of(fun, text):
    """The line of this file on which ``fun`` says ``text``."""
    lines, start = inspect.getsourcelines(fun)
    (number,) = [i for i, line in enumerate(lines) if text in line]
    return start + number


# --- laws over the corpus --------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_the_result_is_the_same_and_finite_programs_have_nothing_to_report(program):
    funs = [program.fun, jax.grad(program.fun)] if program.differentiable else [program.fun]
    looked_into = jax.jit(lambda x: [lox.find_nonfinite(fun)(x) for fun in funs])(ARGUMENT)
    expected = jax.jit(lambda x: [fun(x) for fun in funs])(ARGUMENT)
    for (out, report), plain in zip(looked_into, expected, strict=True):
        assert_close(out, plain)
        assert np.shape(report.found) == ()
        assert str(report) == "no nan or inf arose"


def test_the_marks_of_the_program_stay():
    def f(x):
        lox.log({"x": x})
        return jax.lax.scan(lambda c, v: (c + lox.log({"v": v})["v"], None), 0.0, x)[0]

    (out, report), logs = lox.spool(lox.find_nonfinite(f))(ARGUMENT)
    assert not report.found
    assert_close(logs["v"], ARGUMENT)
    assert list(logs) == ["x", "v"]
    (out, _), logs = lox.spool(jax.jit(lox.find_nonfinite(lox.probe(f, primitives="add"))))(ARGUMENT)
    assert logs["scan/add"].tolist() == jnp.cumsum(ARGUMENT).tolist()


# --- one report ------------------------------------------------------------------------------------------------------


def test_what_a_report_says():
    def f(x):
        with jax.named_scope("outer"), jax.named_scope("inner"):
            y = x - 2.0
            return jnp.log(y)  # here
        return y

    out, report = lox.find_nonfinite(f)(jnp.array([3.0, 1.0]))
    assert np.isnan(out[1])
    assert bool(report.found)
    assert bool(report.nan)
    assert (report.primitive, report.scope, report.backward) == ("log", "outer/inner", False)
    assert (report.file, int(report.line)) == (__file__, line_of(f, "# here"))
    assert report.column == 20
    assert report.loops == {}
    assert report.operands == ((-1.0, 1.0),)
    text = str(report)
    assert "\n" not in text
    assert text.startswith("nan from log at ")
    where = f"test_find_nonfinite.py:{int(report.line)}:20"
    assert text.endswith(f"{where}; in outer/inner; forward pass; operands: -1 to 1")
    assert repr(report) == text


def test_lines_in_a_function_of_jax_are_those_of_the_call():
    def f(x):
        y = jnp.linalg.norm(x - x)
        return jax.grad(lambda x: jnp.linalg.norm(x))(x * y)  # the second call

    out, report = lox.find_nonfinite(f)(ARGUMENT)
    assert np.isnan(out).all()
    assert (report.file, int(report.line)) == (__file__, line_of(f, "# the second call"))


def test_infinities_count_and_the_first_operation_is_reported():
    report = report_of(lambda x: jnp.log(jnp.exp(x) - jnp.exp(x)), jnp.float32(100.0))
    assert (report.primitive, bool(report.nan), report.operands) == ("exp", False, ((100.0, 100.0),))


def test_a_nan_made_of_infinities_counts():
    def softmax(x):
        scores = jnp.where(x > 0, x, -jnp.inf)
        shifted = scores - scores.max()
        return jnp.exp(shifted) / jnp.exp(shifted).sum()

    assert not report_of(softmax, jnp.array([1.0, -1.0])).found
    report = report_of(softmax, jnp.array([-2.0, -1.0]))  # everything is masked
    assert (report.primitive, bool(report.nan)) == ("sub", True)
    assert report.operands == ((-np.inf, -np.inf), (-np.inf, -np.inf))


def test_what_comes_in_from_outside_did_not_arise():
    def f(x, y):
        return jnp.sin(x) + jnp.sqrt(y)

    assert not report_of(f, jnp.float32(jnp.nan), jnp.float32(1.0)).found
    report = report_of(f, jnp.float32(jnp.nan), jnp.float32(-1.0))
    assert report.primitive == "sqrt"


def test_dtypes():
    for dtype in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64):
        report = report_of(lambda x: x / (x - x), jnp.ones(2, dtype))
        assert (report.primitive, len(report.operands)) == ("div", 2), dtype
    assert not report_of(lambda x: x // 2, jnp.arange(3)).found
    assert not report_of(lambda x: x, jnp.ones((0, 2))).found
    with jax.enable_x64(True):
        report = report_of(lambda x: jnp.log(x - x), jnp.float64(1e300))
        assert (report.primitive, report.operands) == ("log", ((0.0, 0.0),))
        assert not report_of(lambda x: x * 10, jnp.float64(1e300)).found


# --- where it arises -------------------------------------------------------------------------------------------------


def test_iterations_of_nested_loops():
    def f(x):
        def outer(c, i):
            def inner(c, j):
                return c + 1.0 / ((i - 2.0) ** 2 + (j - 1.0) ** 2), None

            return jax.lax.scan(inner, c, jnp.arange(3.0))

        return jax.lax.scan(outer, x, jnp.arange(4.0))[0]

    report = jax.jit(lox.find_nonfinite(f))(0.0)[1]
    assert (report.primitive, report.scope) == ("div", "scan/scan")
    assert report.loops == {"scan": 2, "scan/scan": 1}
    assert "iteration 2 of scan; iteration 1 of scan/scan" in str(report)


def test_dynamic_loops_and_branches():
    def f(x):
        def body(c):
            return jax.lax.cond(c > 5, lambda c: c / (c - c), lambda c: c * 2, c)

        return jax.lax.while_loop(lambda c: jnp.abs(c) < 1e30, body, x)

    report = report_of(f, 1.0)
    assert (report.primitive, report.scope, report.loops) == ("div", "while/cond/true", {"while": 3})


def test_a_nan_in_the_condition_of_a_loop():
    def f(x):
        return jax.lax.while_loop(lambda c: jnp.sqrt(1.5 - c) > 0, lambda c: c + 1.0, x)

    report = report_of(f, 0.0)
    assert (report.primitive, report.scope, report.loops) == ("sqrt", "while/condition", {"while": 2})


def test_the_backward_pass_and_the_iteration_it_belongs_to():
    def loss(x):
        def step(c, i):
            return jnp.sqrt(jnp.abs(c - i)) ** 2, None  # the derivative of sqrt at 0

        return jax.lax.scan(step, x, jnp.arange(4.0))[0]

    gradient, report = lox.find_nonfinite(jax.grad(loss))(1.0)
    assert np.isnan(gradient)
    assert report.loops == {"scan": 1}
    assert report.primitive == "div"


@jax.custom_vjp
def identity(x):
    return x


def identity_backward(x, ct):
    return (ct * jnp.log(x),)


identity.defvjp(lambda x: (x, x), identity_backward)


def test_the_rule_of_a_backward_pass():
    def loss(x):
        return jax.lax.scan(lambda c, i: (identity(c - i), None), x, jnp.arange(3.0))[0]  # called

    assert not report_of(loss, 3.0).found
    report = report_of(jax.grad(loss), 3.0)
    assert (report.primitive, report.backward) == ("log", True)
    assert list(report.loops.values()) == [2]
    assert "backward pass" in str(report)
    assert int(report.line) == line_of(loss, "# called")  # JAX gives a backward pass the lines of its forward pass


def test_a_gradient_outside_sees_the_forward_pass():
    def loss(x):
        return jnp.sqrt(x).sum()

    gradient, report = jax.grad(lox.find_nonfinite(loss), has_aux=True)(jnp.array([4.0, -1.0]))
    assert_close(gradient[0], jnp.float32(0.25))
    assert report.primitive == "sqrt"


@jax.custom_jvp
def root(x):
    return jnp.sqrt(x)


root.defjvp(lambda primals, tangents: (jnp.sqrt(primals[0]), tangents[0] / jnp.log(primals[0])))


@pytest.mark.parametrize(
    "call",
    [
        jax.jit,
        jax.checkpoint,
        lambda f: lambda x: jax.lax.map(f, x[None])[0],
        lambda f: lambda x: jax.jit(jax.jit(f))(x),
    ],
    ids=["jit", "checkpoint", "map", "jit of jit"],
)
def test_inside_calls(call):
    def f(x):
        return call(lambda x: root(x) * 2)(x + 1.0)

    for fun in (f, jax.jit(f), jax.vmap(f)):
        report = report_of(fun, jnp.array([-2.0, 1.0]))
        assert report.primitive == "sqrt"
        assert report.scope.endswith("root")
    gradient, report = jax.grad(lambda x: lox.find_nonfinite(lambda x: f(x).sum())(x), has_aux=True)(
        jnp.array([-2.0, 1.0])
    )
    assert report.primitive == "sqrt"


def test_what_cannot_be_looked_into_is_watched_from_outside():
    def f(x):
        return jax.lax.reduce(x, np.float32(1), lambda a, b: a / (b - b), [0]) + 1.0

    report = report_of(f, ARGUMENT)
    assert report.primitive == "reduce"
    assert "which lox cannot look into" in str(report)


# --- masked values ---------------------------------------------------------------------------------------------------


def test_masked_values_can_be_ignored():
    def f(x):
        return jnp.where(x > 0, jnp.log(x), 0.0).sum()

    assert report_of(f, jnp.array([0.0, 1.0])).primitive == "log"
    assert not report_of(f, jnp.array([0.0, 1.0]), ignore_masked=True).found


def test_a_masked_value_does_not_hide_one_that_gets_out():
    def f(x):
        def step(c, i):
            c = c + jnp.where(i > 0, jnp.log(i), 0.0)
            return c / (i - 2.0), None

        return jax.lax.scan(step, x, jnp.arange(4.0))[0]

    report = report_of(f, 1.0)
    assert (report.primitive, report.loops) == ("log", {"scan": 0})
    report = report_of(f, 1.0, ignore_masked=True)
    assert (report.primitive, report.loops) == ("div", {"scan": 2})


def test_a_value_in_a_mutable_array_gets_out():
    def f(x):
        total = jax.new_ref(x)

        def step(i, _):
            masked = jnp.where(i > 0, jnp.log(i), 0.0)
            total[...] = (total[...] + masked) / (i - 2.0)
            return i + 1, None

        jax.lax.scan(step, 0.0, None, length=4)
        return total[...]

    assert report_of(f, 1.0).primitive == "log"
    report = report_of(f, 1.0, ignore_masked=True)
    assert (report.primitive, report.loops) == ("div", {"scan": 2})


# --- lanes and devices -----------------------------------------------------------------------------------------------


def diverging(rate):
    def step(c, _):
        return c - rate * c**3, None

    return jax.lax.scan(step, 1.0, None, length=50)[0]


def test_each_lane_has_a_report():
    rates = jnp.array([0.1, 30.0, 0.2, 1e4])
    out, reports = jax.jit(jax.vmap(lox.find_nonfinite(diverging)))(rates)
    assert reports.found.tolist() == [False, True, False, True]
    assert len(reports) == 4
    for lane, rate in enumerate(rates):
        alone = lox.find_nonfinite(diverging)(rate)[1]
        assert str(reports[lane]) == str(alone)
    lines = str(reports).splitlines()
    assert lines[0] == "2 of 4 reports found a nan or inf"
    assert lines[1].startswith("[1]: inf from ")
    with pytest.raises(lox.LoxError, match=r"several reports, of shape \(4,\). Take one of them"):
        reports.primitive  # noqa: B018
    with pytest.raises(lox.LoxError, match="without lanes"):
        reports[0][0]


def test_a_report_is_true_if_something_was_found():
    def f(x):
        return jnp.log(x)

    assert not report_of(f, jnp.float32(1))
    assert report_of(f, jnp.float32(-1))
    several = jax.vmap(lox.find_nonfinite(f))(jnp.array([1.0, -1.0]))[1]
    assert several
    assert len(several) == 2
    assert not several[0]
    with pytest.raises(TypeError, match="one report"):
        len(several[0])


def test_a_lane_that_has_left_its_loop_makes_no_nan():
    def f(n):
        # One iteration more, and it would be the logarithm of a negative number.
        return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.log(n - c[0])), (0.0, 0.0))[1]

    _, reports = jax.vmap(lox.find_nonfinite(f))(jnp.array([1.0, 4.0, 2.0]))
    assert not reports.found.any()


def test_a_branch_that_a_lane_did_not_take_makes_no_nan():
    def f(x):
        return jax.lax.cond(x > 0, jnp.log, lambda x: x, x)

    _, reports = jax.vmap(lox.find_nonfinite(f))(jnp.array([1.0, -1.0]))
    assert not reports.found.any()


@pytest.mark.parametrize("jitted", [True, False], ids=["jit", "eager"])
def test_the_device_of_a_shard_map(jitted):
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def f(x):
        return jax.lax.scan(lambda c, i: (jnp.log(c - i), None), x, jnp.arange(2.0))[0]

    def outer(x):
        return jax.lax.scan(lambda c, _: (f(c) + 20.0, None), x, None, length=2)[0]

    x = jnp.full(8, 9.0)
    fun = lox.find_nonfinite(outer)
    fun = jax.jit(fun) if jitted else fun
    assert not fun(x)[1].found
    _, report = fun(x.at[5].set(1.0))
    assert int(report.device) == 5
    assert (report.primitive, report.loops) == ("log", {"scan": 0, "scan/shard_map/scan": 1})
    assert "device 5" in str(report)


def test_inside_a_shard_map():
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def f(x):
        _, report = lox.find_nonfinite(lambda x: jax.lax.scan(lambda c, _: (jnp.log(c), None), x, None, length=2)[0])(x)
        return jax.tree.map(lambda leaf: leaf[None], report)

    reports = f(jnp.full(8, 9.0).at[3].set(0.5))
    assert np.argwhere(np.asarray(reports.found)).tolist() == [[3]]


# --- a pytree like any other -----------------------------------------------------------------------------------------


def test_reports_of_a_loop_and_of_a_logger():
    def step(x, i):
        y, report = lox.find_nonfinite(lambda x: jnp.log(x - 1.0))(x)
        lox.log({"nonfinite": report}, step=i)
        return y, report

    def train(x):
        return jax.lax.scan(step, x, jnp.arange(4))

    (_, reports), logs = lox.spool(train)(jnp.float32(10.0))
    assert reports.found.tolist() == [False, False, True, False]
    assert logs["nonfinite"].found.tolist() == [False, False, True, False]
    assert str(logs["nonfinite"][2]) == str(reports[2])
    assert logs["nonfinite"].line.shape == (4,)


def test_nothing_is_traced_or_compiled_again():
    calls = []

    def f(x):
        calls.append(None)
        return jnp.log(x)

    found = lox.find_nonfinite(f)
    others = [ARGUMENT + 1, ARGUMENT * 2]
    found(ARGUMENT)
    with counting_compilations() as events:
        for other in others:
            found(other)
            lox.find_nonfinite(f)(other)
    assert events == []
    assert len(calls) == 1


def test_a_report_that_is_not_known_yet():
    def f(x):
        report = report_of(jnp.log, x)
        assert "not known yet" in str(report)
        with pytest.raises(lox.LoxError, match="no values while the program is traced"):
            report.primitive  # noqa: B018
        return report.found

    assert not jax.jit(f)(1.0)


def test_bad_input():
    with pytest.raises(lox.LoxError, match="lox.find_nonfinite: expected a function, got 3"):
        lox.find_nonfinite(3)
    compiled = jax.jit(jnp.sin).lower(1.0).compile()
    with pytest.raises(lox.LoxError, match="lox.find_nonfinite: this program is already compiled"):
        lox.find_nonfinite(compiled)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_mutable_arrays_are_looked_at_where_they_are_read(around):
    def f(x):
        ref = jax.new_ref(x)

        def step(c, v):
            ref[...] = jnp.log(ref[...] - v)
            return c, None

        jax.lax.scan(step, 0.0, jnp.arange(1.0, 3.0))
        return ref[...]

    report = report_of(around(f), 3.0)
    assert report.primitive == "log"
    assert "iteration 1" in str(report)
    assert not report_of(around(f), 30.0).found
