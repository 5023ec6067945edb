"""What a transformed function returns is what the function returns: value, dtype, weak type, sharding and layout."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

import lox
from tests.core import runs
from tests.core.checks import assert_close, tapped
from tests.core.runs import ARGUMENT
from tests.corpus import PROGRAMS

TRANSFORMS = {
    "spool": lambda f: lambda *args: lox.spool(f, reduce="last")(*args)[0],
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "nolog": lox.nolog,
}

# Outside jit, though not in it, JAX commits what a scan of jax_scan3 returns to a device. Scans that lox makes do not.
SCANS_COMMIT = getattr(jax.config, "jax_scan3", False)

transformed = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


def assert_same(actual: Any, expected: Any) -> None:
    """The same in all that later code can tell apart."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(e)
        if isinstance(e, jax.Array):
            assert jax.typeof(a) == jax.typeof(e)
            assert (a.weak_type, a.sharding) == (e.weak_type, e.sharding)
            assert a.committed == e.committed or SCANS_COMMIT
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.every(3, 1)
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_results_are_of_the_same_type(program):
    expected = program.fun(ARGUMENT)
    assert_same(runs.spool(program)[0], expected)
    assert_same(tapped(program.fun, ARGUMENT)[0], expected)
    assert_same(lox.nolog(program.fun)(ARGUMENT), expected)
    assert_same(runs.jit_of_spool(program)[0], runs.plain(program))


# --- weak types ------------------------------------------------------------------------------------------------------


def _logged(x):
    lox.log({"x": x})
    return x


def _loop(x):
    def body(x, _):
        return _logged(x) + 1, None

    return jax.lax.scan(body, x, None, length=3)[0]


@jax.custom_jvp
def _sum(x, y):
    return _logged(x) + y * 0.1


_sum.defjvp(lambda p, t: jax.jvp(lambda x, y: x + y * 0.1, p, t))

WEAK = {
    "constant": lambda x: (_logged(x), 2.0 * jnp.asarray(1.0))[1],
    "gradient": jax.grad(lambda x: _logged(x) * 2.0),
    "gradient of custom_jvp": jax.grad(lambda x: _sum(x, 2.0)),
    "scan": _loop,
    "cond": lambda x: jax.lax.cond(x > 1, _logged, lambda x: x, x),
    "while": lambda x: jax.lax.while_loop(lambda x: x < 5, lambda x: x + 1, _logged(x)),
    "nothing happens": _logged,
}


@transformed
@pytest.mark.parametrize("fun", WEAK.values(), ids=WEAK)
def test_weak_types_stay_weak_and_strong_ones_strong(fun, transform):
    changed = transform(fun)
    for x in (1.0, jnp.asarray(1.0), jnp.float32(1.0)):
        assert_same(jnp.asarray(changed(x)), jnp.asarray(fun(x)))
        assert_same(jax.jit(lambda x: changed(x))(x), jax.jit(lambda x: fun(x))(x))


@transformed
def test_a_weak_result_does_not_widen_what_it_meets(transform):
    half = jnp.ones(3, jnp.bfloat16)
    assert (transform(WEAK["gradient of custom_jvp"])(1.0) * half).dtype == jnp.bfloat16


@transformed
def test_gradients_of_whole_numbers(transform):
    gradient = jax.grad(lambda x, n: _logged(x) * n, argnums=(0, 1), allow_int=True)
    for x, n in ((3.0, 2), (jnp.float32(3), jnp.int32(2))):
        for fun in (gradient, jax.jit(gradient)):
            dx, dn = transform(fun)(x, n)
            expected = fun(x, n)
            assert_same(dx, expected[0])
            assert type(dn) is type(expected[1])
            assert dn.dtype == jax.dtypes.float0


# --- options of jit --------------------------------------------------------------------------------------------------


@transformed
def test_compiler_options(transform):
    fun = jax.jit(lambda x: _logged(x) + 1, compiler_options={"xla_embed_ir_in_executable": True})
    x = jnp.ones(2)
    assert_same(transform(fun)(x), fun(x))
    assert_same(transform(fun)(x), fun(x))


@transformed
def test_layouts_of_arguments_and_results(transform):
    by_column = Format(Layout(major_to_minor=(1, 0)), SingleDeviceSharding(jax.devices()[0]))
    x = jnp.arange(6.0).reshape(2, 3)
    fun = jax.jit(lambda x: _logged(x) * 2, out_shardings=by_column)
    assert fun(x).format.layout.major_to_minor == (1, 0)
    assert transform(fun)(x).format == fun(x).format
    nested = transform(lambda x: fun(x))
    assert nested(x).format == fun(x).format
    fun = jax.jit(lambda x: _logged(x) * 2, in_shardings=by_column)
    placed = jax.device_put(x, by_column)
    assert_same(transform(fun)(placed), fun(placed))


@transformed
def test_static_and_donated_arguments_beside_shardings(transform):
    here = SingleDeviceSharding(jax.devices()[0])
    fun = jax.jit(
        lambda x, power, y: _logged(x) ** power + y,
        static_argnums=1,
        donate_argnums=2,
        in_shardings=here,
        out_shardings=here,
    )
    x = jnp.arange(3.0)
    expected = fun(x, 2, jnp.ones(3))
    donated = jnp.ones(3)
    assert_same(transform(fun)(x, 2, donated), expected)
    assert donated.is_deleted()
    assert_same(transform(fun)(np.arange(3, dtype=np.float32), 2, jnp.ones(3)), expected)


@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("logs_inside", [False, True])
@transformed
def test_a_donated_value_may_be_logged(transform, logs_inside, placed):
    """Without lox nothing uses the value once more, so outside ``jit`` it may be given away."""
    options = {"in_shardings": SingleDeviceSharding(jax.devices()[0])} if placed else {}

    def fun(x):
        def inner(y):
            if logs_inside:
                lox.log({"x": x})
            return y + 1

        y = jax.jit(inner, donate_argnums=0, **options)(x)
        if not logs_inside:
            lox.log({"x": x})
        return y

    assert_same(transform(fun)(jnp.arange(3.0)), fun(jnp.arange(3.0)))
    assert lox.spool(fun)(jnp.arange(3.0))[1]["x"].tolist() == [0, 1, 2]
    assert [logs["x"].tolist() for logs in tapped(fun, jnp.arange(3.0))[1]] == [[0, 1, 2]]


def test_shardings_of_a_jitted_function_hold_where_it_is_called_in_another_and_by_itself():
    """The two are traced apart: by itself, the outermost jit has the options."""
    here = SingleDeviceSharding(jax.devices()[0])
    fun = jax.jit(lambda x: _logged(x) + 1, in_shardings=here, out_shardings=here)
    x = jnp.ones(2)
    for _ in range(2):
        assert lox.spool(fun)(x)[1]["x"].tolist() == [1, 1]
        jaxpr = jax.make_jaxpr(lambda x: lox.spool(fun)(x))(x)
        assert "SingleDeviceSharding" in str(jaxpr)


# --- x64 mode in a part of the program -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("jit", [False, True])
def test_a_function_may_log_in_x64_mode_alone(jit):
    def fun(x):
        def body(c, i):
            with jax.enable_x64(True):
                y = jnp.float64(1) / 3 + i
                lox.log({"y": y, "n": jnp.int64(2**40) + i}, step=i)
                lox.log({"w": y}, where=i > 0)
            return c, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    fun = jax.jit(fun) if jit else fun
    x, thirds = jnp.float32(1), np.arange(3) + 1 / 3
    rows = lox.spool(fun)(x)[1]
    np.testing.assert_array_equal(rows["y"], thirds)
    np.testing.assert_array_equal(rows.trim()["w"], thirds[1:])
    np.testing.assert_array_equal(rows["n"], 2**40 + np.arange(3))
    assert {rows[key].dtype.itemsize for key in rows} == {8}
    how = ("mean", "sum", "min", "last", "count")
    logs = lox.spool(fun, reduce=how)(x)[1]
    assert logs["y"]["mean"].dtype == np.float64
    np.testing.assert_allclose(logs["y"]["mean"], thirds.mean(), rtol=1e-15)
    assert int(logs["n"]["sum"]) == 3 * 2**40 + 3
    reduced = rows.reduce(how)
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.item()), dict(reduced)) == jax.tree.map(
        lambda leaf: (leaf.dtype, leaf.item()), dict(logs)
    )
    np.testing.assert_array_equal(lox.spool(fun, interval=2)(x)[1]["y"], thirds[::2])
    for options in ({}, {"batch": 2}):
        received = tapped(fun, x, **options)[1]
        assert {logs[key].dtype.itemsize for logs in received for key in logs} == {8}


@pytest.mark.parametrize("where", ["scan", "straight"])
def test_numbers_of_python_in_x64_mode_are_wide(where):
    def body(c, _):
        with jax.enable_x64(True):
            lox.log({"big": 2**40, "third": 1 / 3, "array": np.float64(1 / 3)})
        lox.log({"third": 0.5})
        return c, None

    def fun(x):
        return jax.lax.scan(body, x, None, length=2)[0] if where == "scan" else body(x, None)[0]

    x, times = jnp.float32(1), 2 if where == "scan" else 1
    for run in (lox.spool(fun), lox.spool(jax.jit(fun)), jax.jit(lox.spool(fun))):
        logs = run(x)[1]
        assert np.ravel(logs["big"]).tolist() == [2**40] * times
        assert np.ravel(logs["array"]).tolist() == [1 / 3] * times
        # One call is wide, the other is not: together they are.
        assert logs["third"].tolist() == [1 / 3, 0.5] * times
    received = tapped(fun, x)[1]
    assert [float(logs["third"]) for logs in received] == [1 / 3, 0.5] * times
    assert [int(logs["big"]) for logs in received if "big" in logs] == [2**40] * times


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("how", [None, "last"])
def test_a_derivative_rule_may_record_in_x64_mode(how):
    """What a loop has packed is unpacked again, outside that mode, to compare the rule with its function."""

    @jax.custom_jvp
    def function(x):
        def body(c, i):
            with jax.enable_x64(True):
                lox.log({"third": jnp.float64(1) / 3 + i, "n": jnp.int64(2**40) + i})
            return c, None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    function.defjvp(lambda primals, tangents: (function(*primals), 2 * tangents[0]))
    gradient, logs = jax.grad(lox.spool(function, reduce=how), has_aux=True)(1.0)
    assert gradient == 2
    np.testing.assert_array_equal(logs["third"], (np.arange(3) + 1 / 3)[-1 if how else slice(None)])
    np.testing.assert_array_equal(logs["n"], (2**40 + np.arange(3))[-1 if how else slice(None)])


# --- modes of JAX ------------------------------------------------------------------------------------------------------


def wide_and_weak(x):
    """A scan in x64 mode, five iterations, whose results are weakly typed."""
    with jax.enable_x64(True):

        def body(carry, _):
            lox.log({"carry": carry})
            return carry * 2, (2**40, 0.1)

        return jax.lax.scan(body, x, None, length=5)[1]


@pytest.mark.parametrize("options", [{"batch": 2}, {"batch": 4}, {"batch": 5}, {}], ids=str)
def test_results_of_a_loop_in_chunks_stay_wide_and_weak(options):
    expected, found = (f(jnp.float32(1)) for f in (wide_and_weak, lox.tap(wide_and_weak, lambda logs: None, **options)))
    assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, expected)
    assert jax.tree.map(np.array_equal, found, expected) == (True, True)
    jax.effects_barrier()


@pytest.mark.parametrize("transform", [lambda f: lambda x: lox.spool(f)(x)[0], lox.nolog], ids=["spool", "nolog"])
def test_zero_and_minus_zero_are_two_numbers(transform):
    """Outside jit, operations that are alike share a compiled function."""
    for divide in (jax.lax.div, lambda x, zero: x / jnp.full(2, zero)):
        for zero in (0.0, -0.0):
            found = transform(lambda x, divide=divide, zero=zero: divide(x, zero))(jnp.float32(1))
            assert np.array_equal(found, divide(jnp.float32(1), zero))


def test_a_report_of_a_function_that_enters_x64_mode():
    def f(x):
        with jax.enable_x64(True):
            return jnp.log(jax.lax.convert_element_type(x, jnp.float64))

    out, report = lox.find_nonfinite(f)(jnp.float32(0))
    assert out.dtype == jnp.float64
    assert bool(report)


@pytest.mark.parametrize("reduce", ["mean", "std", "sum", "max", "count", "last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_reductions_where_promotion_is_forbidden(reduce, dtype):
    def f(xs):
        return jax.lax.map(lambda x: lox.log({"x": x})["x"], xs)

    xs = jnp.arange(3).astype(dtype)
    expected = lox.spool(f, reduce=reduce)(xs)[1]
    with jax.numpy_dtype_promotion("strict"):
        found = lox.spool(f, reduce=reduce)(xs)[1]
    assert_close(found["x"], expected["x"])
