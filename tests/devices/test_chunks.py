"""`tap` with `interval=` and `batch=`, built as for a GPU: loops in and around `shard_map`, and loops over arrays with explicit
shardings, send after chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lox
from lox._storage import packing
from tests.devices.meshes import arriving, mesh, on_each, put

LINE, GRID = mesh(d=4), mesh(a=2, b=2)
X = jnp.arange(8.0)
STEPS = 10


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Loops are cut into chunks, as for devices that wait for the host at each condition."""
    gpu = packing._ELSEWHERE
    cpu = dataclasses.replace(packing._PACKING["cpu"], intervals=gpu.intervals, batches=gpu.batches)
    monkeypatch.setitem(packing._PACKING, "cpu", cpu)


def lowered(fun, *args):
    return jax.jit(fun).lower(*args).as_text()


def conditions(fun, *args, **options):
    return lowered(lox.tap(fun, lambda logs: None, **options), *args).count("stablehlo.case")


def host_calls(fun, *args, **options):
    text = lowered(lox.tap(fun, lambda logs: None, **options), *args)
    return text.count("custom_call @xla_ffi_python_cpu_callback")


def one_mark(c, i):
    lox.log({"own": c.sum(), "vector": c}, step=i)
    return c + i


def two_marks(c, i):
    lox.log({"own": c.sum(), "key": jax.random.key(i.astype(int)), "narrow": c.astype(jnp.bfloat16)}, step=i)
    lox.log({"i": i, "large": c.sum() > 9})
    return c + i


def of_all_devices(c, i):
    total = jax.lax.psum(c.sum(), "d")
    lox.log({"total": total, "constant": 1})
    return c + i / total


def several_calls(c, i):
    lox.log({"before": c.sum()})
    c = jax.jit(two_marks)(c, i)
    lox.log({"after": jnp.full(100, c.sum())})
    return c


BODIES = [one_mark, two_marks, of_all_devices, several_calls]


def loop(body, reverse=False):
    return lambda x: jax.lax.scan(lambda c, i: (body(c, i), c), x, jnp.arange(1.0, 1.0 + STEPS), reverse=reverse)[0]


def map_of_scan(body, on_devices):
    return on_devices(loop(body))


def map_of_reverse_scan(body, on_devices):
    return on_devices(loop(body, reverse=True))


def scan_of_map(body, on_devices):
    step = on_devices(body, P())
    return loop(step)


def scan_of_function_with_map(body, on_devices):
    step = jax.jit(on_devices(body, P()))
    return loop(lambda c, i: jax.checkpoint(step)(c, i))


PLACES = [map_of_scan, map_of_reverse_scan, scan_of_map, scan_of_function_with_map]


def on_line(check_vma):
    def on_devices(fun, *others):
        return jax.shard_map(fun, mesh=LINE, in_specs=(P("d"), *others), out_specs=P("d"), check_vma=check_vma)

    return on_devices


def check_rows(fun, x, interval, **options):
    """A tap delivers every nth row that a spool returns, and calls arrive in program order."""
    expected, logs = jax.jit(lox.spool(fun))(x)
    every = arriving(jax.jit(fun), x, **options)
    some = arriving(jax.jit(fun), x, interval=interval, **options)
    np.testing.assert_array_equal(jax.jit(lox.tap(fun, lambda logs: None, interval=interval))(x), expected)
    for key in logs:
        found = [record for record in some if key in record]
        assert len(found) == len(logs[key][::interval])
        for record, row in zip(found, logs[key][::interval], strict=True):
            row = jax.random.key_data(row) if jnp.issubdtype(row.dtype, jax.dtypes.prng_key) else row
            assert record[key].shape == row.shape
            np.testing.assert_array_equal(record[key], row)
        if "step" in logs.steps and key in logs.steps["step"]:
            steps = [record.step[key] for record in found]
            np.testing.assert_array_equal(steps, logs.step[key][::interval])
    calls = len(every) // STEPS
    assert [list(record) for record in some] == [list(record) for record in every[:calls]] * -(-STEPS // interval)


@pytest.mark.every(13)
@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "unchecked"])
@pytest.mark.parametrize("interval", [2, 4, 64])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("place", PLACES)
def test_devices_send_the_first_record_of_each_chunk(place, body, interval, check_vma):
    fun = place(body, on_line(check_vma))
    assert conditions(fun, X, interval=interval) == 0
    check_rows(fun, X, interval)


@pytest.mark.parametrize("place", [map_of_scan, scan_of_map])
def test_what_a_chunk_sends_is_one_call_of_each_device(place):
    fun = place(two_marks, on_line(True))
    assert host_calls(fun, X, interval=5) == 1
    assert host_calls(fun, X, interval=4) == 2  # one for the iterations that are left


# --- several mesh axes -----------------------------------------------------------------------------------------------


def in_two_maps(fun):
    inner = jax.shard_map(fun, in_specs=P("b"), out_specs=P("b"), axis_names={"b"})
    return jax.shard_map(inner, mesh=GRID, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})


def between_two_maps(body):
    inner = jax.shard_map(body, in_specs=(P("b"), P()), out_specs=P("b"), axis_names={"b"})
    return jax.shard_map(loop(inner), mesh=GRID, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})


def around_two_maps(body):
    inner = jax.shard_map(body, in_specs=(P("b"), P()), out_specs=P("b"), axis_names={"b"})
    return loop(jax.shard_map(inner, mesh=GRID, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}))


SEVERAL = {
    "one map of two axes": lambda body: on_each(GRID, P(("a", "b")), P(("a", "b")))(loop(body)),
    "a loop of a map of two axes": lambda body: loop(on_each(GRID, (P(("a", "b")), P()), P(("a", "b")))(body)),
    "two maps": lambda body: in_two_maps(loop(body)),
    "between two maps": between_two_maps,
    "around two maps": around_two_maps,
}


@pytest.mark.every(7)
@pytest.mark.parametrize("interval", [2, 4])
@pytest.mark.parametrize("body", [two_marks, several_calls])
@pytest.mark.parametrize("name", SEVERAL)
def test_each_mesh_axis_leads(name, body, interval):
    if "two maps" in name and jax.__version_info__ < (0, 10):
        pytest.skip("JAX 0.9 cannot lower axis_index of the outer map inside the inner one")
    fun = SEVERAL[name](body)
    assert conditions(fun, X, interval=interval) == 0
    check_rows(fun, X, interval)


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("place", ["map of scan", "scan of map"])
@pytest.mark.parametrize("interval", [2, 4])
def test_some_axes_are_left_to_the_compiler(kind, place, interval):
    grid = mesh(kind, a=2, b=2)
    with jax.set_mesh(grid):
        x = put(jnp.arange(16.0).reshape(4, 4), grid, P("a", "b"))
        if place == "map of scan":
            fun = jax.shard_map(loop(one_mark), in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
        else:
            fun = loop(jax.shard_map(one_mark, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"}))
        if kind == AxisType.Auto:
            # The condition that is left is in the host call: one device calls for those along the other axis.
            assert conditions(fun, x, interval=interval) == host_calls(fun, x, interval=interval)
        check_rows(fun, x, interval)


@pytest.mark.every(3)
@pytest.mark.parametrize("place", [map_of_scan, scan_of_map])
@pytest.mark.parametrize("spec", [P("d"), P()], ids=["split", "whole"])
def test_a_mesh_with_explicit_axes(place, spec):
    line = mesh(AxisType.Explicit, d=4)

    def on_devices(fun, *others):
        return jax.shard_map(fun, mesh=line, in_specs=(spec, *others), out_specs=spec)

    with jax.set_mesh(line):
        fun, x = place(two_marks, on_devices), put(X, line, spec)
        assert conditions(fun, x, interval=4) == 0
        check_rows(fun, x, 4)
        check_rows(fun, x, 5)


# --- what else is around ---------------------------------------------------------------------------------------------


def test_marks_inside_and_outside_of_a_map_in_one_loop():
    inside = on_each(LINE, (P("d"), P()), P("d"))(one_mark)

    def both(c, i):
        lox.log({"outside": c.sum()})
        return inside(c, i)

    fun = loop(both)
    assert conditions(fun, X, interval=4) == 0
    _, logs = lox.spool(fun)(X)
    records = arriving(jax.jit(fun), X, interval=4)
    for key in ("outside", "own", "vector"):
        np.testing.assert_array_equal([record[key] for record in records if key in record], logs[key][::4])


def test_a_loop_of_whole_chunks_in_a_loop_whose_length_differs_between_devices():
    def repeat(x):
        return jax.lax.while_loop(lambda x: x.sum() < 115, loop(one_mark), x)

    fun = on_each(LINE, P("d"), P("d"))(repeat)
    assert conditions(fun, X, interval=5) == 0
    _, logs = lox.spool(fun, capacity=200, interval=5)(X)
    assert len(set(logs.counts["own"].tolist())) > 1
    counts = logs.counts["own"].tolist()
    expected = [value for device in range(4) for value in logs["own"][: counts[device], device].tolist()]
    records = arriving(jax.jit(fun), X, interval=5)
    assert {record["own"].shape for record in records} == {(1,)}  # each device delivers its own
    assert sorted(record["own"].item() for record in records) == sorted(expected)


def test_a_loop_of_whole_chunks_in_a_branch_that_some_devices_take():
    fun = on_each(LINE, P("d"), P("d"))(lambda x: jax.lax.cond(x[0] > 3, loop(one_mark), lambda x: x, x))
    _, logs = lox.spool(loop(one_mark))(X[4:6])
    records = arriving(jax.jit(fun), X, interval=5)
    assert len(records) == 2 * 2
    own = [record["own"].item() for record in records]
    np.testing.assert_array_equal([value for value in own if value in logs["own"][::5]], logs["own"][::5])


def test_a_loop_of_maps_that_runs_until_a_condition_holds():
    once = scan_of_map(one_mark, on_line(True))

    def fun(x):
        return jax.lax.while_loop(lambda x: x.sum() < 1000, once, x)

    assert conditions(fun, X, interval=5) == 0
    _, logs = lox.spool(fun, capacity=200, interval=5)(X)
    records = arriving(jax.jit(fun), X, interval=5)
    own = sorted(value for record in records for value in record["own"].tolist())
    assert own == sorted(logs["own"][: logs.counts["own"][0]].ravel().tolist())


@pytest.mark.parametrize("place", [map_of_scan, scan_of_map])
def test_lanes_around_the_devices(place):
    fun = place(two_marks, on_line(True))
    lanes = jnp.stack([X, -X, 2 * X])
    expected = jax.vmap(lambda x: lox.spool(fun, argnames="own")(x)[1]["own"])(lanes)
    got = []
    jax.jit(jax.vmap(lox.tap(fun, got.append, interval=4)))(lanes)
    jax.effects_barrier()
    rows = np.asarray([record["own"] for record in got if "own" in record])
    np.testing.assert_array_equal(rows.reshape(3, 3, 4), np.moveaxis(expected, 0, 1)[::4])


@pytest.mark.parametrize("place", [map_of_scan, scan_of_map])
def test_derivatives_of_the_loop(place):
    def body(c, i):
        lox.log({"own": c.sum()}, step=i)
        return jnp.sin(c) * i

    fun = place(body, on_line(True))

    def loss(x):
        return fun(x).sum()

    expected, rows = jax.grad(loss)(X), lox.spool(fun)(X)[1]["own"][::4]
    for transform in (
        lambda tap: jax.grad(tap(loss)),
        lambda tap: tap(jax.grad(loss)),
        lambda tap: jax.grad(jax.checkpoint(tap(loss))),
    ):
        got = []
        gradient = jax.jit(transform(lambda f, got=got: lox.tap(f, got.append, interval=4)))(X)
        jax.effects_barrier()
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)
        np.testing.assert_allclose([record["own"] for record in got], rows, rtol=1e-6)


def test_pmap():
    fun = jax.pmap(loop(lambda c, i: of_all_devices(c, i)), axis_name="d", devices=jax.devices()[:4])
    x = X.reshape(4, 2)
    _, logs = lox.spool(fun)(x)
    np.testing.assert_array_equal([r["total"] for r in arriving(fun, x, interval=4)], logs["total"][::4])


def test_a_tap_in_a_map_of_a_tap():
    inner = []
    fun = on_each(LINE, P("d"), P("d"))(lox.tap(loop(one_mark), inner.append, interval=5))
    _, logs = lox.spool(fun)(X)
    inner.clear()
    records = arriving(jax.jit(fun), X, interval=4)
    np.testing.assert_array_equal([record["own"] for record in records], logs["own"][::4])
    assert sorted(record["own"].item() for record in inner) == sorted(logs["own"][::5].ravel().tolist())


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.every(3)
@pytest.mark.parametrize("check_vma", [True, False], ids=["check_vma", "unchecked"])
@pytest.mark.parametrize("options", [{"batch": 5}, {"batch": 4}, {"batch": 2, "interval": 3}, {"batch": 64}], ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_devices_collect_batches(place, options, check_vma):
    fun = place(two_marks, on_line(check_vma))
    assert conditions(fun, X, **options) == 0
    _, logs = lox.spool(fun)(X)
    records, size = arriving(jax.jit(fun), X, **options), options["batch"]
    for key in ("own", "narrow", "i", "large"):
        rows = np.asarray(logs[key])[:: options.get("interval", 1)]
        found = [record for record in records if key in record]
        assert [record[key].shape for record in found] == [rows[i : i + size].shape for i in range(0, len(rows), size)]
        np.testing.assert_array_equal(np.concatenate([record[key] for record in found]), rows)
    steps = np.concatenate([record.step["own"] for record in records if "own" in record])
    np.testing.assert_array_equal(steps, logs.step["own"][:: options.get("interval", 1)])


def test_devices_collect_batches_of_their_own():
    def sometimes(c, i):
        lox.log({"own": c.sum()}, where=c.sum() % 3 < 2)
        return c + i

    fun = on_each(LINE, P("d"), P("d"))(loop(sometimes))
    assert conditions(fun, X, batch=4) == 0
    every, batches = arriving(jax.jit(fun), X), arriving(jax.jit(fun), X, batch=4)
    assert {record["own"].shape[1:] for record in batches} == {(1,)}
    found = sorted(value for record in batches for value in record["own"].ravel().tolist())
    assert found == sorted(value for record in every for value in record["own"].ravel().tolist())


@pytest.mark.parametrize("place", [map_of_scan, scan_of_map])
def test_batches_of_devices_in_lanes(place):
    fun = place(one_mark, on_line(True))
    lanes = jnp.stack([X, -X, 2 * X])
    expected = jax.vmap(lambda x: lox.spool(fun, argnames="own")(x)[1]["own"])(lanes)
    got = []
    jax.jit(jax.vmap(lox.tap(fun, got.append, batch=4)))(lanes)
    jax.effects_barrier()
    for lane in range(3):
        np.testing.assert_array_equal(np.concatenate([record["own"] for record in got[lane::3]]), expected[lane])


def test_outside_of_loops_nothing_is_collected_on_devices():
    fun = on_each(LINE, P("d"), P("d"))(lambda x: (lox.log({"own": x.sum()}), x)[1])
    (record,) = arriving(jax.jit(fun), X, batch=4)
    assert record["own"].shape == (1, 4)


# --- arrays with explicit shardings ----------------------------------------------------------------------------------


def scan_over_split(x):
    def body(c, row):
        lox.log({"sum": c.sum(), "row": row}, step=row.sum())
        lox.log({"some": row.max()}, where=row.max() % 3 == 0)
        return c + row, row * 2

    return jax.lax.scan(body, x[0], x)


@pytest.mark.parametrize(
    "options", [{"interval": 4}, {"interval": 5}, {"batch": 4}, {"batch": 2, "interval": 3}], ids=str
)
@pytest.mark.parametrize("spec", [P(None, "d"), P()], ids=["split", "whole"])
def test_a_loop_over_arrays_with_explicit_shardings(spec, options):
    line = mesh(AxisType.Explicit, d=4)
    with jax.set_mesh(line):
        x = put(jnp.arange(80.0).reshape(10, 8), line, spec)
        assert conditions(scan_over_split, x, **options) == 0
        expected, logs = jax.jit(lox.spool(scan_over_split, interval=options.get("interval")))(x)
        got = []
        out = jax.jit(lox.tap(scan_over_split, got.append, **options))(x)
        jax.effects_barrier()
        jax.tree.map(np.testing.assert_array_equal, out, expected)
        assert jax.tree.map(jax.typeof, out) == jax.tree.map(jax.typeof, jax.jit(scan_over_split)(x))
        for key in ("sum", "row", "some"):
            found = [record[key] for record in got if key in record]
            rows = np.concatenate(found) if "batch" in options else np.stack(found)
            np.testing.assert_array_equal(rows, np.asarray(logs.trim()[key]))
