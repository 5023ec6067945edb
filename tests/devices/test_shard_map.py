"""`shard_map` and `pmap`: each device has records of its own, and the mesh axes lead."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lox
from lox._storage import packing
from lox.loggers import Histogram
from tests.devices.meshes import arriving, both_ways, mesh, on_each, put, shapes

LINE, GRID = mesh(d=8), mesh(a=4, b=2)
X = jnp.arange(16.0)


def once(x):
    total = jax.lax.psum(x.sum(), "d")
    lox.log({"own": x.sum(), "total": total}, step=jnp.int32(3))
    return x * total


def scanned(x):
    def body(c, i):
        c = c + i
        lox.log({"own": c.sum(), "mean": jax.lax.pmean(c.sum(), "d")}, step=i)
        lox.log({"large": c.sum()}, where=c.sum() > 15)
        return c, None

    return jax.lax.scan(body, x, jnp.arange(4.0))[0]


def looped(x):
    def body(c):
        c = c + 1
        lox.log({"c": c.sum()})
        return c

    return jax.lax.while_loop(lambda c: c.sum() < 10, body, x)


@pytest.fixture(params=[True, False], ids=["check_vma", "unchecked"])
def line(request):
    return on_each(LINE, P("d"), P("d"), check_vma=request.param)


def test_values_lead_with_the_mesh_axis(line):
    expected = X.reshape(8, 2).sum(1)
    for fun in both_ways(line(once)):
        for spooled in (lox.spool(fun), jax.jit(lox.spool(fun))):
            out, logs = spooled(X)
            np.testing.assert_array_equal(out, X * 120)
            np.testing.assert_array_equal(logs["own"], expected)
            np.testing.assert_array_equal(logs["total"], [120.0] * 8)
            np.testing.assert_array_equal(logs.step["own"], [3] * 8)
        (record,) = arriving(fun, X)
        np.testing.assert_array_equal(record["own"], expected)
        np.testing.assert_array_equal(record.step["total"], [3] * 8)


@pytest.mark.parametrize(
    "options, own, large",
    [
        ({}, (4, 8), (4, 8)),
        ({"reduce": "mean"}, (8,), (8,)),
        ({"interval": 2}, (2, 8), (2, 8)),
        ({"capacity": 2}, (4, 8), (2, 8)),
    ],
)
def test_records_come_first_and_then_the_mesh(line, options, own, large):
    _, logs = lox.spool(jax.jit(line(scanned)), **options)(X)
    assert shapes(logs) == {"own": own, "mean": own, "large": large}
    by_device = X.reshape(8, 2).sum(1)
    sums = np.asarray(by_device) + 2 * np.cumsum(np.arange(4.0))[:, None]
    assert logs.counts["large"].tolist() == (-(-(sums > 15).sum(0) // options.get("interval", 1))).tolist()
    if not options:
        np.testing.assert_array_equal(logs["own"], sums)
    if options.get("reduce"):
        np.testing.assert_allclose(logs["own"], sums.mean(0))


def test_dynamic_loops_on_devices(line):
    counts = [5, 3, 1, 0, 0, 0, 0, 0]
    for fun in both_ways(line(looped)):
        _, logs = lox.spool(fun, capacity=3)(X)
        assert logs["c"].shape == (3, 8)
        assert logs.counts["c"].tolist() == counts
        _, logs = lox.spool(fun, reduce="last")(X)
        assert logs["c"].tolist() == [11, 11, 11, 0, 0, 0, 0, 0]
        # Devices make different numbers of records, so that each delivers its own.
        records = arriving(fun, X)
        assert [record["c"].shape for record in records] == [(1,)] * sum(counts)
        assert sorted(record["c"].item() for record in records) == [3, 5, 7, 7, 9, 9, 11, 11, 11]


def test_a_tap_puts_the_devices_together_where_all_make_the_same_records(line):
    _, logs = lox.spool(line(scanned), argnames=("own", "mean"))(X)
    for options, rows in [({}, [0, 1, 2, 3]), ({"interval": 2}, [0, 2])]:
        records = arriving(jax.jit(line(scanned)), X, argnames=("own", "mean"), **options)
        np.testing.assert_array_equal([record["own"] for record in records], logs["own"][np.array(rows)])
        np.testing.assert_array_equal([record.step["own"] for record in records], [[i] * 8 for i in rows])
    records = arriving(jax.jit(line(scanned)), X, argnames="large")
    # Not every device makes these.
    assert {record["large"].shape for record in records} == {(1,)}
    assert len(records) == lox.spool(line(scanned))(X)[1].counts["large"].sum()


def test_what_a_device_logs_in_an_iteration_is_one_host_call(line):
    fun = jax.jit(line(scanned))
    text = jax.jit(lox.tap(fun, lambda logs: None)).lower(X).as_text()
    assert text.count("custom_call @xla_ffi_python_cpu_callback") == 1
    records = arriving(fun, X)
    _, logs = lox.spool(fun)(X)
    np.testing.assert_array_equal([record["own"] for record in records if "own" in record], logs["own"])
    assert sum("large" in record for record in records) == logs.counts["large"].sum()


def test_a_batch_keeps_its_record_axis_on_devices(line):
    records = arriving(jax.jit(line(scanned)), X, argnames="own", batch=3)
    assert sum(len(record["own"]) for record in records) == 4
    assert all(record["own"].shape[1:] == (8,) and record.stacked == {"own"} for record in records)


def test_loops_outside_do_not_take_devices_apart():
    @on_each(LINE, P("d"), P("d"))
    def step(x):
        lox.log({"x": x[0]})
        return x + 1

    fun = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0] < 3, step, x))
    np.testing.assert_array_equal([record["x"] for record in arriving(fun, X)], X[::2] + np.arange(3)[:, None])


def test_devices_that_take_different_branches():
    @on_each(LINE, P("d"), P("d"))
    def fun(x):
        def even(x):
            lox.log({"y": x.sum(), "z": x[0]})
            return x

        def odd(x):
            lox.log({"y": -x.sum()})
            lox.log({"z": x[0]})
            return x

        return jax.lax.cond(jax.lax.axis_index("d") % 2 == 0, even, odd, x)

    y = [1, -5, 9, -13, 17, -21, 25, -29]
    assert lox.spool(fun)(X)[1]["y"].tolist() == y
    # No device waits for a record that the others do not make.
    records = arriving(jax.jit(fun), X)
    assert sorted(r["y"].item() for r in records if "y" in r) == sorted(y)
    assert sorted(r["z"].item() for r in records if "z" in r) == X[::2].tolist()


def test_several_mesh_axes():
    x = jnp.arange(32.0).reshape(8, 4)

    @on_each(GRID, P("a", "b"), P("a", "b"))
    def fun(x):
        lox.log({"corner": x[0, 0], "sum": jax.lax.psum(x[0, 0], "a")})
        return x

    for way in both_ways(fun):
        _, logs = lox.spool(way)(x)
        np.testing.assert_array_equal(logs["corner"], x[::2, ::2])
        np.testing.assert_array_equal(logs["sum"], np.broadcast_to(x[::2, ::2].sum(0), (4, 2)))
        (record,) = arriving(way, x)
        np.testing.assert_array_equal(record["corner"], x[::2, ::2])


@pytest.mark.parametrize("axis, spec, size", [("a", P("a"), 4), ("b", P(None, "b"), 2)])
def test_axes_that_are_left_to_the_compiler_do_not_lead(axis, spec, size):
    x = put(jnp.arange(32.0).reshape(8, 4), GRID, P("a", "b"))

    @on_each(GRID, spec, spec, axis_names={axis})
    def fun(x):
        lox.log({"sum": x.sum(), "x": x * 2})
        return x

    _, logs = lox.spool(jax.jit(fun))(x)
    assert logs["sum"].shape == (size,)
    # What the compiler split stays split.
    assert logs["x"].sharding.shard_shape(logs["x"].shape) == (1, 2, 2)
    (record,) = arriving(jax.jit(fun), x)
    np.testing.assert_array_equal(record["sum"], logs["sum"])
    np.testing.assert_array_equal(record["x"], logs["x"])


def test_shard_maps_inside_each_other():
    def inner(x):
        lox.log({"inner": x.sum()})
        return x

    def outer(x):
        lox.log({"outer": x.sum()})
        return jax.shard_map(inner, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"})(x)

    fun = jax.jit(on_each(GRID, P("a"), P("a"), axis_names={"a"})(outer))
    x = jnp.arange(32.0).reshape(8, 4)
    with jax.set_mesh(GRID):
        _, logs = lox.spool(fun)(x)
        records = arriving(fun, x)
    assert shapes(logs) == {"outer": (4,), "inner": (4, 2)}
    np.testing.assert_array_equal(logs["inner"], x.reshape(4, 2, 2, 2).sum((1, 3)))
    together = {key: value for record in records for key, value in record.items()}
    assert len(records) == 2
    np.testing.assert_array_equal(together["inner"], logs["inner"])
    np.testing.assert_array_equal(together["outer"], logs["outer"])


def test_gradients_through_and_inside():
    @on_each(LINE, (P(), P("d")), P())
    def loss(w, x):
        y = jax.lax.psum(jnp.sum((x * w) ** 2), "d")
        lox.log({"y": y, "own": x.sum()})
        return y

    w = jnp.float32(2.0)
    for fun in both_ways(loss):
        expected = jax.grad(fun)(w, X)
        for gradient, logs in (jax.grad(lox.spool(fun), has_aux=True)(w, X), lox.spool(jax.grad(fun))(w, X)):
            np.testing.assert_allclose(gradient, expected)
            np.testing.assert_allclose(logs["y"], [4960.0] * 8)
            np.testing.assert_allclose(logs["own"], X.reshape(8, 2).sum(1))
        (record,) = arriving(jax.grad(fun), w, X)
        np.testing.assert_allclose(record["own"], X.reshape(8, 2).sum(1))


def test_training_with_a_gradient_on_each_device_in_a_scan():
    @on_each(LINE, (P(), P("d")), P())
    def step(w, x):
        def loss(w):
            y = jnp.sum((x * w) ** 2)
            lox.log({"loss": y})
            return y

        gradient = jax.lax.pmean(jax.grad(loss)(w), "d")
        lox.log({"gradient": gradient})
        return w - 0.1 * gradient

    def train(w, x):
        return jax.lax.scan(lambda w, _: (step(w, x), None), w, None, length=3)[0]

    _, logs = lox.spool(jax.jit(train))(jnp.float32(1.0), X / 16)
    assert shapes(logs) == {"loss": (3, 8), "gradient": (3, 8)}
    records = arriving(jax.jit(train), jnp.float32(1.0), X / 16)
    assert [list(record) for record in records] == [["loss"], ["gradient"]] * 3
    np.testing.assert_array_equal([record["loss"] for record in records[::2]], logs["loss"])


def test_lanes_and_devices():
    @on_each(LINE, P("d"), P("d"))
    def fun(x):
        lox.log({"x": x.sum()})
        return x

    x = jnp.arange(48.0).reshape(3, 16)
    expected = x.reshape(3, 8, 2).sum(-1)
    np.testing.assert_array_equal(jax.vmap(lox.spool(fun))(x)[1]["x"], expected)
    np.testing.assert_array_equal(lox.spool(jax.vmap(fun))(x)[1]["x"], expected.T)
    got = []
    jax.vmap(lox.tap(jax.jit(fun), got.append))(x)
    jax.effects_barrier()
    np.testing.assert_array_equal([record["x"] for record in got], expected)


def test_transformations_inside_are_those_of_one_device(line):
    def plain(x):
        lox.log({"x": x.sum()})
        return x

    def spooled(x):
        return lox.spool(plain)(x)[1]["x"][None]

    np.testing.assert_array_equal(line(spooled)(X), X.reshape(8, 2).sum(1))
    got = []
    jax.jit(line(lox.tap(plain, got.append)))(X)
    jax.effects_barrier()
    assert sorted(record["x"].item() for record in got) == X.reshape(8, 2).sum(1).tolist()


def test_pmap():
    def fun(x):
        total = jax.lax.psum(x, "i")
        lox.log({"x": x.sum(), "total": total.sum()})
        return x + total

    mapped, x = jax.pmap(fun, axis_name="i"), X.reshape(8, 2)
    out, logs = lox.spool(mapped)(x)
    np.testing.assert_array_equal(out, mapped(x))
    np.testing.assert_array_equal(logs["x"], x.sum(1))
    (record,) = arriving(mapped, x)
    np.testing.assert_array_equal(record["total"], [120.0] * 8)
    _, logs = jax.pmap(lox.spool(fun), axis_name="i")(x)
    np.testing.assert_array_equal(logs["x"], x.sum(1))


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "options",
    [{"reduce": ("mean", "first", "last", "count")}, {"reduce": ("append", "max")}, {"interval": 2}, {"capacity": 3}],
    ids=str,
)
@pytest.mark.parametrize("fun", [scanned, looped])
def test_a_spool_inside_keeps_the_records_of_its_device(line, fun, options):
    if fun is looped and ("interval" in options or "append" in str(options)):
        options = {**options, "capacity": 3}

    @line
    def inside(x):
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], lox.spool(fun, **options)(x))

    outside, expected = lox.spool(line(fun), **options)(X)
    out, logs = jax.jit(inside)(X)
    np.testing.assert_array_equal(out.reshape(-1), outside)
    for key in expected:
        counts = np.broadcast_to(logs.counts[key], 8)
        np.testing.assert_array_equal(counts, np.broadcast_to(expected.counts[key], 8))
        records_first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1) if leaf.ndim > 1 else leaf, logs[key])
        jax.tree.map(np.testing.assert_allclose, records_first, expected[key])


def test_a_spool_inside_says_what_is_the_same_on_all_devices():
    def f(x):
        def body(c, i):
            lox.log({"total": jax.lax.psum(c.sum(), "d")}, where=i > 0, step=i)
            return c + 1, None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    for options, expected in (({"reduce": "mean"}, 152.0), ({"capacity": 2}, [152.0, 168.0]), ({}, [136, 152, 168, 0])):
        # Without `check_vma`, JAX would not mind. With it, `out_specs=P()` is refused unless the value is known to agree.
        inside = on_each(LINE, P("d"), P())(lambda x, options=options: lox.spool(f, **options)(x)[1]["total"])
        np.testing.assert_array_equal(inside(X), expected)


def test_logs_are_reduced_inside(line):
    inside = line(lambda x: lox.spool(scanned, argnames="own")(x)[1].reduce("max")["own"][None])
    np.testing.assert_array_equal(inside(X), X.reshape(8, 2).sum(1) + 12)


@pytest.mark.every(3, 1)
@pytest.mark.parametrize("options", [{}, {"batch": 3}, {"interval": 2}, {"batch": 3, "interval": 2}], ids=str)
@pytest.mark.parametrize("fun", [scanned, looped])
def test_a_tap_inside_delivers_the_records_of_each_device(line, fun, options):
    def numbers(got, key):
        return sorted(value for logs in got if key in logs for value in np.ravel(logs[key]).tolist())

    got = []
    jax.block_until_ready(jax.jit(line(lox.tap(fun, got.append, **options)))(X))
    jax.effects_barrier()
    by_device = X.reshape(8, 2)
    if fun is looped:
        alone = [record for x in by_device for record in arriving(fun, x, **options)]
        assert numbers(got, "c") == numbers(alone, "c")
    else:  # alone, a device has no axis to average over
        sums = np.asarray(by_device.sum(1)) + 2 * np.cumsum(np.arange(4.0))[:, None]
        assert numbers(got, "own") == sorted(sums[:: options.get("interval", 1)].ravel().tolist())


@pytest.mark.parametrize("options", [{"batch": 3}, {"interval": 2}, {"interval": 3}], ids=str)
@pytest.mark.parametrize("place", ["inside", "outside", "in the loop"])
def test_devices_send_after_chunks_of_a_loop_as_on_a_gpu(monkeypatch, line, place, options):
    monkeypatch.setitem(packing._PACKING, "cpu", dataclasses.replace(packing._PACKING["cpu"], intervals=2**31))

    def body(c, i):
        lox.log({"own": c.sum()}, step=i)
        lox.log({"i": i})
        return c + i, None

    def loop(x):
        return jax.lax.scan(body, x, jnp.arange(4.0))[0]

    def loop_of_maps(x):
        return jax.lax.scan(lambda x, i: (line(lambda x: body(x, i)[0])(x), None), x, jnp.arange(4.0))[0]

    got = []
    fun = {
        "inside": lambda x: line(lox.tap(loop, got.append, **options))(x),
        "outside": lox.tap(line(loop), got.append, **options),
        "in the loop": lox.tap(loop_of_maps, got.append, **options),
    }[place]
    np.testing.assert_array_equal(jax.jit(fun)(X), X + 6)
    jax.effects_barrier()
    sums = np.asarray(X.reshape(8, 2).sum(1)) + 2 * np.cumsum([0.0, 0, 1, 2])[:, None]
    found = sorted(value for logs in got if "own" in logs for value in np.ravel(logs["own"]).tolist())
    assert found == sorted(sums[:: options.get("interval", 1)].ravel().tolist())


def test_stores_and_chains_of_a_mesh_with_explicit_axes():
    devices = mesh(AxisType.Explicit, d=8)
    with jax.set_mesh(devices):
        fun = jax.shard_map(once, in_specs=P("d"), out_specs=P("d"))
        looping = jax.shard_map(looped, in_specs=P("d"), out_specs=P("d"))
        x = put(X, devices, P("d"))
        for each in both_ways(fun):
            logs = lox.spool(each, reduce="mean")(x)[1]
            np.testing.assert_array_equal(logs["own"], X.reshape(8, 2).sum(1))
            (record,) = arriving(each, x, interval=2)
            np.testing.assert_array_equal(record["own"], X.reshape(8, 2).sum(1))
        counts = lox.spool(looping, capacity=2)(x)[1].counts["c"]
    automatic = on_each(LINE, P("d"), P("d"))(looped)
    np.testing.assert_array_equal(counts, lox.spool(automatic, capacity=2)(X)[1].counts["c"])


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("marks", [1, 2])
def test_taps_of_several_marks_where_some_axes_are_left_to_the_compiler(kind, marks):
    devices = mesh(kind, a=4, b=2)

    def several(x):
        for i in range(marks):
            lox.log({f"x{i}": x})
        return x * 2

    with jax.set_mesh(devices):
        x = put(jnp.arange(16.0).reshape(8, 2), devices, P("a", "b"))
        fun = jax.shard_map(several, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
        for each in both_ways(fun):
            records = arriving(each, x)
            assert [list(record) for record in records] == [[f"x{i}"] for i in range(marks)]
            for record in records:
                (value,) = record.values()
                np.testing.assert_array_equal(value, np.arange(16.0).reshape(4, 2, 2))


def test_devices_count_their_parts_of_a_histogram(line):
    def counted(x):
        mine = Histogram(x, 4, (0, 16))
        lox.log({"mine": mine, "all": jax.lax.psum(mine, "d")})
        return x

    for fun in both_ways(line(counted)):
        _, logs = lox.spool(fun)(X)
        assert logs["mine"].counts.shape == (8, 4)
        assert logs["mine"].sum().counts.tolist() == [4, 4, 4, 4]
        assert logs["all"].counts.tolist() == [[4, 4, 4, 4]] * 8


@pytest.mark.parametrize("in_context", [True, False])
def test_a_histogram_of_an_array_whose_type_has_a_sharding(in_context):
    explicit = mesh(AxisType.Explicit, d=4)
    x = put(X, explicit, P("d"))

    def counted(x):
        lox.log({"h": Histogram(x, 4, (0, 16))})
        return x

    with jax.set_mesh(explicit) if in_context else contextlib.nullcontext():
        for fun in both_ways(counted):
            assert lox.spool(fun)(x)[1]["h"].counts.tolist() == [4, 4, 4, 4]


# --- derivative rules on devices -------------------------------------------------------------------------------------


def _with_jvp():
    @jax.custom_jvp
    def double(x):
        lox.log({"x": x.sum()})
        return 2.0 * x

    double.defjvp(lambda primals, tangents: (2.0 * primals[0], 2.0 * tangents[0]))
    return double


def _with_vjp():
    @jax.custom_vjp
    def double(x):
        lox.log({"x": x.sum()})
        return 2.0 * x

    double.defvjp(lambda x: (2.0 * x, None), lambda _, cotangent: (2.0 * cotangent,))
    return double


INSIDE = {
    "spool": lambda f: lambda x: lox.spool(f)(x)[0],
    "spool, reduced": lambda f: lambda x: lox.spool(f, reduce="mean")(x)[0],
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "nolog": lox.nolog,
}


@pytest.mark.every(3)
@pytest.mark.parametrize("make", [_with_jvp, _with_vjp])
@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_function_with_its_own_derivative_is_transformed_inside(line, make, run):
    double = make()
    expected = run(jax.grad(lambda x: line(double)(x).sum()))(X)
    for name, transform in INSIDE.items():
        mapped = line(transform(double))
        found = run(jax.grad(lambda x, f=mapped: f(x).sum()))(X)
        np.testing.assert_allclose(found, expected, err_msg=name)


@pytest.mark.every(3)
@pytest.mark.parametrize("make", [_with_jvp, _with_vjp])
@pytest.mark.parametrize("run", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_function_with_its_own_derivative_is_transformed_outside(line, make, run):
    def loss(x):
        return line(make())(x).sum()

    expected, sums = run(jax.grad(loss))(X), X.reshape(8, 2).sum(1)
    for options in ({}, {"reduce": "mean"}):
        for gradient, logs in (
            run(jax.grad(lox.spool(loss, **options), has_aux=True))(X),
            lox.spool(run(jax.grad(loss)), **options)(X),
        ):
            np.testing.assert_allclose(gradient, expected)
            if logs:  # the rules of these functions record nothing, so those of grad(f) are none
                np.testing.assert_allclose(logs["x"], sums)
    assert "x" in jax.grad(lox.spool(loss), has_aux=True)(X)[1]
    np.testing.assert_allclose(run(jax.grad(lox.nolog(loss)))(X), expected)
    got = []
    np.testing.assert_allclose(run(jax.grad(lox.tap(loss, got.append)))(X), expected)
    jax.effects_barrier()
    np.testing.assert_allclose([record["x"] for record in got], [sums])
