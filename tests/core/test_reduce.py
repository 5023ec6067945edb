"""Reductions against numpy: values, dtypes, numerics, empty logs, custom ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import assert_close

pytestmark = pytest.mark.compiled_as_by_users

ROWS = np.array([[1.0, -2.0], [4.0, 0.5], [-3.0, 2.5], [2.0, 2.0]], np.float32)

NUMPY = {
    "mean": lambda rows: rows.mean(0),
    "sum": lambda rows: rows.sum(0),
    "min": lambda rows: rows.min(0),
    "max": lambda rows: rows.max(0),
    "std": lambda rows: rows.std(0),
    "count": len,
    "first": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "replace": lambda rows: rows[-1],
}


def scanned(rows, **options):
    def step(i, row):
        lox.log({"v": row}, step=i, **options)
        return i + 1, None

    return jax.lax.scan(step, 0, rows)[0]


def straight(rows, **options):
    for i, row in enumerate(rows):
        lox.log({"v": row}, step=i, **options)
    return rows


def dynamic(rows, **options):
    def body(i):
        lox.log({"v": rows[i]}, step=i, **options)
        return i + 1

    return jax.lax.while_loop(lambda i: i < len(rows), body, 0)


shapes_of_program = pytest.mark.parametrize("program", [scanned, straight, dynamic], ids=lambda f: f.__name__)


@shapes_of_program
@pytest.mark.parametrize("how", NUMPY)
def test_each_reduction_is_that_of_numpy(program, how):
    logs = jax.jit(lox.spool(program, reduce=how))(ROWS)[1]
    np.testing.assert_allclose(logs["v"], NUMPY[how](ROWS), rtol=1e-6)
    assert "v" not in logs.stacked
    assert int(logs.counts["v"]) == 4
    assert int(logs.step["v"]) == (0 if how == "first" else 3)


@shapes_of_program
def test_the_choice_of_the_call_wins_over_that_of_spool(program):
    logs = jax.jit(lox.spool(lambda rows: program(rows, reduce="max"), reduce="mean"))(ROWS)[1]
    np.testing.assert_allclose(logs["v"], ROWS.max(0))


@shapes_of_program
def test_several_reductions_come_under_their_names(program):
    logs = jax.jit(lox.spool(program, reduce=("mean", "max", "count")))(ROWS)[1]
    assert sorted(logs["v"]) == ["count", "max", "mean"]  # JAX sorts the keys of a dict
    for how, value in logs["v"].items():
        np.testing.assert_allclose(value, NUMPY[how](ROWS), rtol=1e-6)


def test_append_keeps_all_beside_the_rest():
    logs = lox.spool(scanned, reduce=("append", "mean"))(ROWS)[1]
    np.testing.assert_array_equal(logs["v"]["append"], ROWS)
    np.testing.assert_allclose(logs["v"]["mean"], ROWS.mean(0))
    np.testing.assert_array_equal(lox.spool(scanned, reduce="append")(ROWS)[1]["v"], ROWS)
    mixed = lox.spool(lambda rows: scanned(rows, reduce="append"), reduce="mean")(ROWS)[1]
    np.testing.assert_array_equal(mixed["v"], ROWS)


def test_pytrees_reduce_leaf_by_leaf():
    def f(rows):
        jax.lax.map(lambda row: lox.log({"p": {"a": row[0], "b": (row, row[1] > 0)}})["p"]["a"], rows)

    logs = lox.spool(f, reduce="mean")(ROWS)[1]
    assert_close(logs["p"], {"a": ROWS[:, 0].mean(), "b": (ROWS.mean(0), (ROWS[:, 1] > 0).mean(dtype=np.float32))})


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "float32", "complex64"]
)
@pytest.mark.parametrize("how", ["mean", "sum", "std", "min", "max", "first", "last"])
def test_dtypes(dtype, how):
    values = jnp.array([3, 1, 2, 5]).astype(dtype)
    if dtype == "complex64":
        if how in ("min", "max"):
            pytest.skip("complex numbers have no order")
        values = values + jnp.array([1j, 0, -2j, 0.5j], jnp.complex64)
    result = np.asarray(jax.jit(lox.spool(scanned, reduce=how))(values)[1]["v"])
    wide = np.asarray(values).astype("complex128" if dtype == "complex64" else "float64")
    np.testing.assert_allclose(result, NUMPY[how](wide), rtol=1e-2 if dtype in ("float16", "bfloat16") else 1e-6)
    is_whole = dtype in ("bool", "int8", "uint8", "int32", "uint32")
    if how in ("mean", "std") and is_whole:
        assert result.dtype == np.float32  # whole numbers average as floats
    if how in ("min", "max", "first", "last"):
        assert result.dtype == values.dtype
    if how == "std":
        assert result.dtype.kind != "c"


# --- numerics --------------------------------------------------------------------------------------------------------


def hash_noise(i):
    """A number in [0, 1) for each i, the same in numpy and in JAX."""
    i = i.astype("uint32") * np.uint32(2654435761)
    return (i >> np.uint32(8)).astype("float32") / np.float32(2**24)


def fold_many(n, value, how):
    def f():
        jax.lax.fori_loop(0, n, lambda i, c: c + 0 * lox.log({"v": value(jnp.uint32(i))})["v"].astype(int), 0)

    return jax.tree.map(np.asarray, jax.jit(lox.spool(f, reduce=how))()[1]["v"])


def test_mean_and_std_of_a_million_values_near_10000():
    n = 10**6
    values = (np.float32(1e4) + hash_noise(np.arange(n))).astype(np.float32)
    result = fold_many(n, lambda i: jnp.float32(1e4) + hash_noise(i), ("mean", "std", "sum"))
    exact = values.astype(np.float64)
    np.testing.assert_allclose(result["mean"], exact.mean(), rtol=1e-7)
    np.testing.assert_allclose(result["std"], exact.std(), rtol=1e-5)
    np.testing.assert_allclose(result["sum"], exact.sum(), rtol=1e-7)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
def test_half_floats_neither_overflow_nor_stall(dtype):
    n = 100_000
    result = fold_many(n, lambda i: (100 + 100 * hash_noise(i)).astype(dtype), ("mean", "sum", "std"))
    values = (100 + 100 * hash_noise(np.arange(n))).astype(dtype).astype(np.float64)
    np.testing.assert_allclose(result["mean"].astype(float), values.mean(), rtol=1e-2)
    np.testing.assert_allclose(result["sum"].astype(float), values.sum(), rtol=1e-4)
    np.testing.assert_allclose(result["std"].astype(float), values.std(), rtol=1e-2)


def test_a_mean_of_huge_values_does_not_overflow():
    values = np.full(10, 3e38, np.float32)
    np.testing.assert_allclose(lox.spool(scanned, reduce="mean")(values)[1]["v"], 3e38, rtol=1e-6)


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max"])
@pytest.mark.parametrize("special", [[1.0, np.inf, 2.0], [1.0, np.nan, 2.0], [np.inf, -np.inf, 1.0]], ids=str)
def test_inf_and_nan_go_through_as_in_numpy(how, special):
    values = np.array(special, np.float32)
    with np.errstate(invalid="ignore"):
        expected = NUMPY[how](values)
    np.testing.assert_array_equal(jax.jit(lox.spool(scanned, reduce=how))(values)[1]["v"], expected)


def test_whole_numbers_are_averaged_exactly_enough():
    values = jnp.arange(2**20, dtype=jnp.int32)
    np.testing.assert_allclose(jax.jit(lox.spool(scanned, reduce="mean"))(values)[1]["v"], (2**20 - 1) / 2, rtol=1e-6)


# --- no record at all ------------------------------------------------------------------------------------------------


def test_reductions_of_no_record():
    how = ("mean", "std", "sum", "count", "first", "last", "min", "max")

    def f(x, n):
        def body(i):
            lox.log({"f": x, "i": n}, step=i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    logs = jax.jit(lox.spool(f, reduce=how))(jnp.float32(1), jnp.int32(0))[1]
    values = jax.tree.map(float, dict(logs))
    assert np.isnan(values["f"]["mean"])
    assert np.isnan(values["f"]["std"])
    assert np.isnan(values["i"]["mean"])
    assert {k: values["f"][k] for k in ("sum", "count", "first", "last")} == dict(sum=0, count=0, first=0, last=0)
    assert (values["f"]["min"], values["f"]["max"]) == (np.inf, -np.inf)
    assert (values["i"]["min"], values["i"]["max"]) == (np.iinfo(np.int32).max, np.iinfo(np.int32).min)
    assert int(logs.counts["f"]) == 0


# --- reducers of one's own -------------------------------------------------------------------------------------------


class Median3(lox.Reducer):
    """The median of the last three records: a state that is no single array, and not element by element."""

    def init(self, aval):
        return {"last": jnp.zeros((3, *aval.shape), aval.dtype), "n": jnp.zeros((), jnp.int32)}

    def update(self, state, value):
        return {"last": jnp.roll(state["last"], 1, 0).at[0].set(value), "n": state["n"] + 1}

    def finish(self, state):
        return {"median": jnp.median(state["last"], axis=0), "n": state["n"]}


@shapes_of_program
def test_a_reducer_of_ones_own(program):
    logs = jax.jit(lox.spool(program, reduce=Median3()))(ROWS)[1]
    np.testing.assert_allclose(logs["v"]["median"], np.median(ROWS[-3:], axis=0))
    assert int(logs["v"]["n"]) == 4
    assert_close(lox.spool(straight)(ROWS)[1].reduce(Median3())["v"], logs["v"])


def test_a_reducer_of_ones_own_among_others_has_its_name():
    logs = lox.spool(scanned, reduce=("mean", Median3()))(ROWS)[1]
    assert list(logs["v"]) == ["mean", "median3"]


def test_reducers_in_lanes_and_gradients():
    def loss(rows):
        def step(c, row):
            c = c + (row**2).sum()
            lox.log({"c": c}, reduce=("mean", "last"))
            return c, None

        return jax.lax.scan(step, 0.0, rows)[0]

    gradient, logs = jax.grad(lox.spool(loss), has_aux=True)(ROWS)
    np.testing.assert_allclose(gradient, 2 * ROWS)
    np.testing.assert_allclose(logs["c"]["last"], (ROWS**2).sum(), rtol=1e-6)
    lanes = jax.vmap(lox.spool(loss))(np.stack([ROWS, 2 * ROWS]))[1]
    np.testing.assert_allclose(lanes["c"]["mean"], [logs["c"]["mean"], 4 * logs["c"]["mean"]], rtol=1e-6)


# --- memory ----------------------------------------------------------------------------------------------------------


def compiled_bytes(fun, *args):
    analysis = jax.jit(fun).lower(*args).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def long_loop(length):
    def f(x):
        def step(c, _):
            c = jnp.sin(c) + 1
            lox.log({"c": c, "norm": c.sum()}, step=c[0])
            return c, None

        return jax.lax.scan(step, x, None, length=length)[0]

    return f


@pytest.mark.parametrize("how", ["mean", ("sum", "std", "min", "max", "count", "first", "last")], ids=str)
def test_memory_of_reductions_does_not_grow_with_the_number_of_steps(how):
    x = jnp.ones(8)
    sizes = [compiled_bytes(lox.spool(long_loop(n), reduce=how), x) for n in (1_000, 1_000_000)]
    assert sizes[0] == sizes[1]
    assert sizes[0] < 4096


def test_gradients_keep_no_residuals_of_accumulators():
    def hand_written(length):
        def f(x):
            def step(carry, _):
                c, mean, n = carry
                c = jnp.sin(c) + 1
                mean = mean + (jax.lax.stop_gradient(c) - mean) / (n + 1)
                return (c, mean, n + 1), None

            (c, mean, _), _ = jax.lax.scan(step, (x, jnp.zeros(8), jnp.int32(0)), None, length=length)
            return c.sum(), mean

        return f

    def logged(length):
        def f(x):
            def step(c, _):
                c = jnp.sin(c) + 1
                lox.log({"c": c}, reduce="mean")
                return c, None

            return jax.lax.scan(step, x, None, length=length)[0].sum()

        return lox.spool(f)

    ours, theirs = (compiled_bytes(jax.grad(f(10_000), has_aux=True), jnp.ones(8)) for f in (logged, hand_written))
    assert ours <= theirs + 1024


def test_an_elementwise_reducer_may_return_several_things():
    class Ends(lox.Reducer):
        elementwise = True

        def init(self, aval):
            return jnp.full(aval.shape, jnp.inf), jnp.full(aval.shape, -jnp.inf)

        def update(self, state, value):
            return jnp.minimum(state[0], value), jnp.maximum(state[1], value)

        def finish(self, state):
            return {"low": state[0], "high": state[1]}

    def f(xs):
        jax.lax.map(lambda x: lox.log({"a": x, "b": jnp.stack([x, -x])}), xs)

    logs = lox.spool(f, reduce=Ends())(jnp.array([3.0, 1.0, 2.0]))[1]
    assert jax.tree.map(lambda x: x.tolist(), dict(logs)) == {
        "a": {"high": 3.0, "low": 1.0},
        "b": {"high": [3.0, -1.0], "low": [1.0, -3.0]},
    }


@pytest.mark.parametrize("how", ["mean", "first", "max", "count"])
def test_logs_without_a_record_are_reduced(how):
    def f(xs):
        jax.lax.map(lambda x: lox.log({"x": x}), xs)

    nothing = jnp.zeros((0, 2))
    reduced, folded = lox.spool(f)(nothing)[1].reduce(how), lox.spool(f, reduce=how)(nothing)[1]
    np.testing.assert_array_equal(reduced["x"], folded["x"])
    assert reduced.counts == folded.counts == {"x": 0}


def test_the_deviation_is_right_in_the_range_that_the_docs_name():
    base = np.random.default_rng(0).standard_normal(1000)
    powers = np.array([-20, -15, -12, 0, 12, 18.4, 19.5])
    rows = (base[:, None] * 10.0**powers).astype(np.float32)
    found = np.asarray(jax.jit(lox.spool(scanned, reduce="std"))(rows)[1]["v"], np.float64)
    np.testing.assert_allclose(found[1:-1], rows.astype(np.float64).std(0)[1:-1], rtol=1e-6)
    assert (found[0], found[-1]) == (0, np.inf)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.bool_])
def test_sums_of_small_whole_numbers_do_not_wrap_at_their_own_type(dtype):
    largest = 1 if dtype == np.bool_ else np.iinfo(dtype).max
    logs = jax.jit(lox.spool(scanned, reduce=("sum", "mean")))(np.full(1000, largest, dtype))[1]
    assert int(logs["v"]["sum"]) == 1000 * largest
    assert float(logs["v"]["mean"]) == largest


@pytest.mark.parametrize("how", ["mean", "std"])
def test_an_infinite_part_of_a_complex_number_leaves_the_other_alone(how):
    values = np.array([np.inf + 1j, 1 + 2j, 1 + 3j], np.complex64)

    def f(xs):
        jax.lax.scan(lambda c, x: (c, lox.log({"x": x}) and None), 0, xs)

    found = lox.spool(f, reduce=how)(jnp.asarray(values))[1]["x"]
    if how == "mean":
        assert complex(found) == complex(np.inf, 2)
    else:
        assert not np.isfinite(found)
    finite = values.imag + 1j * values.imag[::-1]
    np.testing.assert_allclose(
        lox.spool(f, reduce=how)(jnp.asarray(finite))[1]["x"], getattr(np, how)(finite), rtol=1e-6
    )
