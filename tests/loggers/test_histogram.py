"""`Histogram`: counts that are those of numpy, can be added up, and reach every backend."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import Histogram, RecordError, create, load
from lox.loggers.kinds import KindError, Kinds

KEY = jax.random.key(0)
EDGES = [-1.0, -0.3, 0.0, 0.1, 0.7, 2.0]
VALUES = np.array([-5, -1, -0.5, -0.3, -0.0, 0.0, 0.05, 0.1, 0.7, 1.9999999, 2.0, 2.1, np.nan, np.inf, -np.inf, np.nan])


def told(h):
    return {name: np.asarray(getattr(h, name)).tolist() for name in ("counts", "below", "above", "nan", "inf")}


def expected(values, edges):
    """By numpy, in double precision."""
    values = np.asarray(values, np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    return {
        "counts": np.histogram(finite, edges)[0].tolist(),
        "below": int((finite < edges[0]).sum()),
        "above": int((finite > edges[-1]).sum()),
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
    }


# --- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2"])
def test_floats_of_any_size_are_counted_as_numpy_counts_them_in_double_precision(dtype):
    near_edges = np.concatenate([np.nextafter(np.float32(EDGES), np.float32(end)) for end in (-9, 9)])
    near_edges[np.abs(near_edges) < 1e-38] = 0  # as XLA takes them
    values = jnp.asarray(np.concatenate([VALUES, near_edges, EDGES]), dtype)
    exact = np.asarray(values.astype(np.float32), np.float64)
    assert told(Histogram(values, EDGES)) == expected(exact, EDGES)
    assert told(jax.jit(lambda x: Histogram(x, EDGES))(values)) == expected(exact, EDGES)
    assert told(Histogram(np.asarray(values), EDGES)) == expected(exact, EDGES)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int4", "bool"])
def test_whole_numbers_are_counted_exactly_up_to_the_ends_of_their_type(dtype):
    ends = [0, 1] if dtype == "bool" else [jnp.iinfo(dtype).min, 0, 1, 2, jnp.iinfo(dtype).max]
    values = jnp.asarray(ends, dtype)
    edges = [-1e12, -3e9, -128, -0.5, 0.5, 1, 1.5, 7, 127.5, 256, 2.0**31 - 1, 2.0**32, 1e11]
    assert told(Histogram(values, edges)) == expected(ends, edges)
    assert told(Histogram(np.asarray(values), edges)) == expected(ends, edges)
    assert told(Histogram(values, [0, 1])) == expected(ends, [0, 1])
    assert told(Histogram(values, [1e20, 2e20])) == expected(ends, [1e20, 2e20])


def test_numbers_of_64_bits():
    values = np.array([2**53, 2**53 + 1, -(2**62), 5])
    edges = [0.0, 6.0, 2.0**53, 2.0**53 + 2]
    assert told(Histogram(values, edges)) == {"counts": [1, 0, 2], "below": 1, "above": 0, "nan": 0, "inf": 0}
    with jax.enable_x64(True):
        assert told(Histogram(jnp.asarray(values), edges)) == told(Histogram(values, edges))
        assert told(Histogram(jnp.asarray(VALUES), EDGES)) == expected(VALUES, EDGES)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 0.0), (-1e-40, 1e-40), (-3.5e38, 3.5e38), (0.1, 0.3)])
def test_ranges_that_end_at_zero_among_denormals_or_beyond_a_type(low, high):
    values = np.array([-3.4e38, -1, -1e-3, 0, 0.1, 0.2, 0.3, 1, 3.4e38], np.float32)
    edges = np.linspace(low, high, 8)
    assert told(Histogram(jnp.asarray(values), 7, (low, high))) == expected(values, edges)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 5)])
def test_arrays_of_any_shape(shape):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    assert told(Histogram(jnp.asarray(values), EDGES)) == expected(values, EDGES)
    assert told(Histogram(values, EDGES)) == expected(values, EDGES)


def test_a_pytree_is_counted_as_one():
    params = {"w": jnp.ones((2, 3)), "b": [np.zeros(4, np.float32), 0.5, True]}
    assert told(Histogram(params, EDGES)) == expected([1] * 7 + [0] * 4 + [0.5], EDGES)


def test_bins_that_fit_any_values():
    h = Histogram(jnp.array([0.0, 1e-30, -1e-30, 1.0, 1.1, -3.0, 60000.0, 1e30, -1e30]))
    assert len(h.counts) == 321
    assert int(h.counts[160]) == 3  # around zero
    assert (int(h.counts.sum()), int(h.above), int(h.below)) == (7, 1, 1)
    exact = np.asarray(h.edges, jnp.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(exact, h.edges)
    ratios = h.edges[162:] / h.edges[161:-1]
    assert ratios.max() == pytest.approx(1.25)


def test_what_the_bins_tell_about_the_values():
    values = np.random.default_rng(0).normal(3, 0.5, 10_000)
    summary = Histogram(values, 200, (0, 6)).describe()
    assert summary["mean"] == pytest.approx(values.mean(), abs=1e-3)
    assert summary["std"] == pytest.approx(values.std(), abs=1e-3)
    assert summary["min"] <= values.min() < summary["min"] + 0.03
    assert summary["max"] - 0.03 < values.max() <= summary["max"]
    assert summary["count"] == 10_000
    apart = Histogram([9.0, -9.0, np.nan, -np.inf], 4, (0, 1)).describe()
    assert [apart[name].item() for name in ("min", "max", "mean", "count", "nonfinite")] == [0, 1, 0.5, 2, 2]
    empty = Histogram(np.zeros(0), 4, (0, 1)).describe()
    assert np.isnan([empty[name] for name in ("mean", "std", "min", "max")]).all()
    assert empty["count"] == 0


@pytest.mark.parametrize(
    ("bins", "range", "error", "message"),
    [
        (4, None, ValueError, "bins=4 needs a range"),
        (None, (0, 1), ValueError, r"needs bins, as in Histogram\(x, bins=50, range=\(0, 1\)\)"),
        (0, (0, 1), ValueError, "bins=0; there must be at least 1"),
        (True, (0, 1), ValueError, "bins=True"),
        (2.5, (0, 1), TypeError, "bins=2.5; it must be edges, or a number of bins"),
        ("auto", None, TypeError, "bins='auto'"),
        (4, (1, 0), ValueError, "must rise; got 1 and then 0"),
        (4, (0, 0), ValueError, "must rise; got 0 and then 0"),
        (4, (0, np.inf), ValueError, "must be finite; got inf"),
        (4, 3, ValueError, "range=3; it must be the first and the last edge"),
        ([0, 1], (0, 1), ValueError, "leave out range"),
        ([0, 2, 1], None, ValueError, "must rise; got 2 and then 1"),
        ([0, 1, 1], None, ValueError, "must rise; got 1 and then 1"),
        ([0, np.nan], None, ValueError, "must be finite; got nan"),
        ([1], None, ValueError, "at least 2 numbers"),
        ([[0, 1]], None, ValueError, r"shape \(1, 2\)"),
        (["a", "b"], None, TypeError, "must be numbers"),
    ],
)
def test_bad_bins(bins, range, error, message):
    with pytest.raises(error, match=message) as caught:
        Histogram(jnp.ones(3), bins, range)
    assert isinstance(caught.value, lox.LoxError)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (jnp.ones(3, jnp.complex64), "dtype complex64. For complex numbers, use jnp.abs"),
        (np.array(["a"]), "takes bools, ints and floats; got dtype <U1"),
        ("text", "got str: 'text'"),
        (jax.random.key(0), "got dtype key<fry>"),
        (None, "None holds no arrays or numbers"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(TypeError, match=message):
        Histogram(values)


def test_edges_that_the_program_computes_are_an_error_that_says_what_to_write():
    with pytest.raises(TypeError, match=r"the program computes it. Use numpy for it \(numpy.linspace"):
        jax.jit(lambda x: Histogram(x, jnp.linspace(0, 1, 5) + x[0]).counts)(jnp.ones(3))
    with pytest.raises(TypeError, match="range must be known when the program is traced"):
        jax.jit(lambda x: Histogram(x, 4, (0, x.max())).counts)(jnp.ones(3))


# --- as a value ------------------------------------------------------------------------------------------------------


def test_histograms_of_the_same_bins_add_up():
    parts = [jnp.asarray(VALUES[:7]), jnp.asarray(VALUES[7:])]
    one, other = (Histogram(part, EDGES) for part in parts)
    assert told(one + other) == told(sum([one, other])) == told(Histogram(parts, EDGES))
    many = jax.vmap(lambda x: Histogram(x, EDGES))(jnp.asarray(VALUES).reshape(4, 4))
    assert len(many) == 4
    assert told(many.sum()) == told(many.sum(0)) == told(sum(many[i] for i in range(4)))
    assert told(many[1:3].sum(-1)) == told(many[1] + many[2])
    with pytest.raises(ValueError, match="cannot add .*because their edges differ"):
        one + Histogram(parts[1], EDGES[:-1])
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 1
    with pytest.raises(ValueError, match="it has 0 axes in front of its bins"):
        one.sum(0)
    with pytest.raises(TypeError, match="single Histogram"):
        len(one)
    with pytest.raises(IndexError, match="single Histogram"):
        one[0]


def program(x):
    def step(x, i):
        lox.log({"h": Histogram(x * i, EDGES), "x": x.sum()}, step=i)
        return x, None

    return jax.lax.scan(step, x, jnp.arange(4))[0]


X = jnp.linspace(-1, 1, 11)


def test_every_transformation_has_the_same_counts():
    wanted = [told(Histogram(X * i, EDGES)) for i in range(4)]
    _, logs = lox.spool(program)(X)
    assert [told(h) for h in map(logs["h"].__getitem__, range(4))] == wanted
    assert "Histogram(5 bins from -1 to 2, shape=(4,))" in str(logs)
    rows = []
    jax.jit(lox.tap(program, rows.append))(X)
    jax.effects_barrier()
    assert [told(row["h"]) for row in rows] == wanted
    _, lanes = jax.vmap(lox.spool(program))(jnp.stack([X, 2 * X]))
    assert told(lanes["h"][0]) == told(logs["h"])
    _, swapped = lox.spool(jax.vmap(program))(jnp.stack([X, 2 * X]))
    assert told(swapped["h"][:, 0]) == told(logs["h"])


def test_a_sum_over_records_is_the_histogram_of_all_values():
    everything = told(Histogram([X * i for i in range(4)], EDGES))
    _, logs = jax.jit(lox.spool(program, reduce="sum"))(X)
    assert told(logs["h"]) == everything
    assert told(lox.spool(program)(X)[1].reduce("sum")["h"]) == everything
    _, last = lox.spool(program, reduce=("sum", "last"))(X)
    assert told(last["h"]["sum"]) == everything
    assert told(last["h"]["last"]) == told(Histogram(X * 3, EDGES))


def test_reductions_that_leave_no_bins_are_plain_numbers(tmp_path):
    _, logs = lox.spool(program, reduce="count")(X)
    assert "counts=4, below=4" in str(logs)
    with create(["console", f"save:path={tmp_path}"]) as logger:
        logger.spool(program, logger.init(KEY), reduce="count")(X)
    (frame,) = [logs.to_pandas() for logs in load(tmp_path).values()]
    assert frame["h/counts"].tolist() == [4]
    (counts, *_) = Kinds({}, backend="Mine", supported=("scalar", "binned")).columns(logs.table())
    assert (counts.name, counts.kind) == ("h/counts", "scalar")


def test_under_grad_and_checkpoint():
    def loss(x):
        y = jnp.sin(x)
        lox.log({"h": Histogram(y, EDGES)})
        return (y**2).sum()

    for fun in (loss, jax.checkpoint(loss)):
        gradient, logs = jax.grad(lox.spool(fun), has_aux=True)(X)
        np.testing.assert_allclose(gradient, jax.grad(loss)(X), rtol=1e-6)
        assert told(logs["h"]) == told(Histogram(jnp.sin(X), EDGES))
        assert told(lox.spool(jax.grad(fun))(X)[1]["h"]) == told(logs["h"])


def test_branches_and_loops_that_end_early():
    def run(n):
        def body(state):
            i, x = state
            lox.log({"h": Histogram(x, EDGES)}, step=i)
            return i + 1, x * 0.5

        return jax.lax.while_loop(lambda state: state[0] < n, body, (0, X))

    _, logs = lox.spool(run, capacity=5)(3)
    assert told(logs.trim()["h"]) == told(jax.vmap(lambda i: Histogram(X * 0.5**i, EDGES))(jnp.arange(3)))


def test_two_sites_with_other_bins_are_an_error_that_names_both():
    def two(x):
        lox.log({"h": Histogram(x, EDGES)})
        lox.log({"h": Histogram(x, EDGES[1:])})

    with pytest.raises(lox.LoxError, match=r"test_histogram.py:\d+.*test_histogram.py:\d+"):
        lox.spool(two)(X)


# --- loggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["save", "csv", "jsonl"])
def test_files_give_histograms_back(backend, tmp_path):
    with create(backend, path=tmp_path, name="run") as logger:
        state = logger.init(KEY)
        logger.spool(program, state)(X)
        logger.log(state, {"nested": {"h": Histogram(VALUES, EDGES)}}, step=0)
    logs = load(tmp_path)["run"]
    _, spooled = lox.spool(program)(X)
    assert isinstance(logs["h"], Histogram)
    assert told(logs["h"]) == told(spooled["h"])
    assert logs["h"].edges.tolist() == EDGES
    assert told(logs["nested"]["h"][0]) == expected(VALUES, EDGES)
    assert told(logs.reduce("sum")["h"]) == told(spooled["h"].sum())
    assert load(tmp_path, keys="h/mean")["run"].keys() == {"h"}


def test_counts_are_plain_arrays_in_the_folder(tmp_path):
    with create("save", path=tmp_path, name="run") as logger:
        logger.spool(program, logger.init(KEY))(X)
    (file,) = (tmp_path / "run").glob("*counts*.npy")
    assert np.load(file).shape == (4, 5)
    (values,) = [
        info["values"]
        for key, info in json.loads((tmp_path / "run" / "lox.json").read_text())["logs"].items()
        if key == "h"
    ]
    assert [json.loads(column["path"][0][0].removeprefix("histogram")) for column in values[:1]] == [EDGES]


def test_other_bins_in_the_same_file_are_an_error(tmp_path):
    with (
        pytest.raises(RecordError, match="bins from -1 to 2.*bins from 0 to 1"),
        create("save", path=tmp_path) as logger,
    ):
        state = logger.init(KEY)
        logger.log(state, {"h": Histogram(X, EDGES)}, step=0)
        logger.flush()
        logger.log(state, {"h": Histogram(X, 3, (0, 1))}, step=1)
        logger.flush()


@pytest.mark.parametrize("backend", ["save", "csv", "jsonl"])
def test_a_resumed_run_goes_on(tmp_path, backend):
    for _ in range(2):
        with create(backend, path=tmp_path, if_exists="resume", name="run") as logger:
            logger.spool(program, logger.init(KEY))(X)
    assert load(tmp_path)["run"]["h"].counts.shape == (4, 5)


def test_lanes_have_histograms_of_their_own_and_a_folder_of_runs_adds_up():
    with create("memory", name="{lane}") as logger:
        states = jax.vmap(logger.init)(jax.random.split(KEY, 2))
        jax.vmap(lambda state, x: logger.spool(program, state)(x))(states, jnp.stack([X, 2 * X]))
        logger.flush()
        logs = logger.logs
    assert told(logs["1"]["h"][1]) == told(Histogram(2 * X, EDGES))


def test_tables_and_displays_have_what_it_tells(tmp_path, capsys):
    pytest.importorskip("pandas")
    with create(["console", f"save:path={tmp_path}"], name="run") as logger:
        logger.spool(program, logger.init(KEY))(X)
    assert "h/mean=" in capsys.readouterr().out
    frame = load(tmp_path).to_pandas()
    wanted = [f"h/{name}" for name in ("mean", "std", "min", "max", "count", "nonfinite")]
    assert sorted(column for column in frame.columns if column.startswith("h/")) == sorted(wanted)
    assert frame["h/count"].tolist() == [11.0] * 4
    _, logs = lox.spool(program)(X)
    assert logs.to_pandas()["h/mean"].tolist() == frame["h/mean"].tolist()
    assert load(tmp_path, stack=True)["h"].counts.shape == (1, 4, 5)
    assert "h/mean" in logs._repr_html_()
    jax.jit(lambda x: lox.spool(program)(x)[1]._repr_html_() and x)(X)  # tracers tell nothing, and are no error


@pytest.mark.parametrize("command", ["show", "export", "plot"])
def test_the_command_knows_histograms(command, tmp_path, capsys):
    from lox.loggers._cli.main import main

    with create("save", path=tmp_path, name="run") as logger:
        logger.spool(program, logger.init(KEY))(X)
    assert main([command, str(tmp_path), "--keys", "h/mean"]) in (0, None)
    out = capsys.readouterr().out
    assert "h/mean" in out
    assert "h/std" not in out


def test_one_histogram_without_steps_is_not_a_hyperparameter(tmp_path):
    with create("save", path=tmp_path, name="run") as logger:
        logger.log(logger.init(KEY), {"h": Histogram(X, EDGES), "rate": 0.1})
    runs = load(tmp_path)
    assert runs.configs["run"] == {"rate": 0.1}
    assert runs["run"]["h"].counts.shape == (1, 5)


def test_a_backend_that_has_no_bins_gets_scalars():
    logs = lox.spool(program)(X)[1].table()
    columns = Kinds({}, backend="Mine", supported=("scalar",)).columns(logs)
    assert {column.name: column.kind for column in columns}["h/mean"] == "scalar"
    (binned, _) = Kinds({}, backend="Mine", supported=("scalar", "binned")).columns(logs)
    assert (binned.name, binned.kind, len(binned.values)) == ("h", "binned", 4)
    assert [c.name for c in Kinds({"h": "skip"}, backend="Mine", supported=("binned",)).columns(logs)] == ["x"]
    with pytest.raises(KindError, match="'h' is a lox.loggers.Histogram, which cannot be the kind 'image'"):
        Kinds({"h": "image"}, backend="Mine", supported=("image",)).columns(logs)
    with pytest.raises(KindError, match="'x' is not a lox.loggers.Histogram"):
        Kinds({"x": "binned"}, backend="Mine", supported=("binned",)).columns(logs)


def test_damaged_edges_are_an_error_that_names_the_file(tmp_path):
    with create("save", path=tmp_path, name="run") as logger:
        logger.spool(program, logger.init(KEY))(X)
    manifest = tmp_path / "run" / "lox.json"
    manifest.write_text(manifest.read_text().replace("histogram [-1.0, -0.3,", "histogram [-1.0, -3.0,"))
    with pytest.raises(lox.LoxError, match="lox.json is damaged"):
        load(tmp_path / "run")
