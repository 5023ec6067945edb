"""Arrays that are split between devices, in programs that speak of whole values: `jit`, automatic and explicit."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lox
from tests.devices.meshes import arriving, mesh, put

X = jnp.arange(3 * 16 * 4, dtype=jnp.float32).reshape(3, 16, 4) / 100
MODES = [AxisType.Auto, AxisType.Explicit]


def train(w, xs):
    """A replicated number and a value that is split, in each of three steps."""

    def step(w, x):
        errors = x @ w
        loss = jnp.mean(errors**2)
        lox.log({"loss": loss, "errors": errors}, step=jnp.int32(x.shape[0]))
        return w * 0.9, loss

    return jax.lax.scan(step, w, xs)


def count_up(x):
    """A dynamic number of records of a split value."""

    def body(c):
        c = c + 1
        lox.log({"c": c, "total": c.sum()})
        return c

    return jax.lax.while_loop(lambda c: c.sum() < 200, body, x)


@pytest.fixture(params=MODES, ids=["auto", "explicit"])
def devices(request):
    made = mesh(request.param, d=8)
    with jax.set_mesh(made):
        yield made


@pytest.fixture
def split(devices):
    return put(X, devices, P(None, "d"))


def test_spool_gives_what_one_device_gives(split):
    w = jnp.ones(4)
    out, expected = lox.spool(train)(w, X)
    for spooled in (lox.spool(train), lox.spool(jax.jit(train)), jax.jit(lox.spool(train))):
        (last, losses), logs = spooled(w, split)
        np.testing.assert_allclose(logs["loss"], expected["loss"], rtol=1e-5)
        np.testing.assert_allclose(logs["errors"], expected["errors"], rtol=1e-5)
        np.testing.assert_allclose(losses, out[1], rtol=1e-5)
        assert logs.step["loss"].tolist() == [16] * 3


def test_spooled_logs_keep_the_sharding_of_the_program(split):
    _, logs = jax.jit(lox.spool(train))(jnp.ones(4), split)
    assert logs["loss"].sharding.is_fully_replicated
    assert logs["errors"].sharding.shard_shape((3, 16)) == (3, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"reduce": "mean"},
        {"reduce": ("max", "last")},
        {"reduce": "first"},
        {"reduce": "std", "interval": 2},
        {"interval": 2},
    ],
)
def test_bounded_logs_keep_it_too(split, options):
    _, expected = lox.spool(train, **options)(jnp.ones(4), X)
    _, logs = jax.jit(lox.spool(train, **options))(jnp.ones(4), split)
    for ours, theirs in zip(jax.tree.leaves(dict(logs)), jax.tree.leaves(dict(expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for leaf in jax.tree.leaves(logs["errors"]):
        assert leaf.sharding.shard_shape(leaf.shape)[-1] == 2


def test_finished_logs_are_reduced(split):
    def reduced(w, xs):
        return lox.spool(train)(w, xs)[1].reduce(("mean", "first"))

    expected = reduced(jnp.ones(4), X)
    for fun in (reduced, jax.jit(reduced)):
        logs = fun(jnp.ones(4), split)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), dict(logs), dict(expected))
        assert logs["errors"]["mean"].sharding.shard_shape((16,)) == (2,)


def test_a_key_that_is_split_in_one_place_only(devices):
    def f(x):
        lox.log({"x": jnp.ones(16)})
        lox.log({"x": x})

    x = put(jnp.arange(16.0), devices, P("d"))
    for fun in (lox.spool(f), jax.jit(lox.spool(f))):
        np.testing.assert_array_equal(fun(x)[1]["x"], [np.ones(16), np.arange(16.0)])


def test_a_dynamic_number_of_records(devices):
    x = put(jnp.arange(16.0), devices, P("d"))
    _, logs = jax.jit(lox.spool(count_up, capacity=3))(x)
    assert logs.counts["c"] == 5
    np.testing.assert_array_equal(logs["c"], np.arange(16.0) + np.array([[3], [4], [5]]))
    assert len(arriving(jax.jit(count_up), x)) == 5


def test_a_tapped_record_arrives_once_and_whole(split):
    expected = lox.spool(train)(jnp.ones(4), X)[1]
    for tapped in (train, jax.jit(train)):
        records = arriving(tapped, jnp.ones(4), split)
        assert [type(record["errors"]) for record in records] == [np.ndarray] * 3
        for i, record in enumerate(records):
            np.testing.assert_allclose(record["errors"], expected["errors"][i], rtol=1e-5)
            np.testing.assert_allclose(record["loss"], expected["loss"][i], rtol=1e-5)


def test_batches_and_intervals_of_split_values(split):
    records = arriving(jax.jit(train), jnp.ones(4), split, batch=2)
    assert [record["errors"].shape for record in records] == [(2, 16), (1, 16)]
    records = arriving(jax.jit(train), jnp.ones(4), split, interval=2)
    assert [record["errors"].shape for record in records] == [(16,)] * 2


def test_order_cannot_be_promised_on_several_devices(split):
    with pytest.raises(lox.LoxError, match="ordered=True does not work on more than one device"):
        arriving(jax.jit(train), jnp.ones(4), split, ordered=True)


def test_a_part_of_a_program_that_leaves_shardings_to_the_compiler():
    explicit = mesh(AxisType.Explicit, d=8)

    def f(x):
        total = jax.sharding.auto_axes(lambda x: jnp.cumsum(x)[::2], out_sharding=P())(x)
        lox.log({"total": total})
        return total

    with jax.set_mesh(explicit):
        x = put(jnp.arange(16.0), explicit, P("d"))
        for fun in (f, jax.jit(f)):
            out, logs = lox.spool(fun)(x)
            np.testing.assert_array_equal(out, f(x))
            np.testing.assert_array_equal(logs["total"], f(x))


def test_lanes_that_are_split_between_devices():
    devices = mesh(d=8)

    def f(x):
        lox.log({"x": x.sum()})
        return x * 2

    x = put(jnp.arange(32.0).reshape(8, 4), devices, P("d"))
    _, logs = jax.jit(jax.vmap(lox.spool(f), spmd_axis_name="d"))(x)
    assert logs["x"].sharding.shard_shape((8,)) == (1,)
    got = []
    jax.jit(jax.vmap(lox.tap(f, got.append), spmd_axis_name="d"))(x)
    jax.effects_barrier()
    np.testing.assert_array_equal([record["x"] for record in got], logs["x"])


TRANSFORMS = {
    "spool": lambda f: lambda *args: lox.spool(f)(*args)[0],
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "nolog": lox.nolog,
}


@pytest.mark.parametrize("in_context", [True, False], ids=["in the mesh", "outside"])
@pytest.mark.parametrize("kind", MODES, ids=["auto", "explicit"])
def test_jitted_functions_place_their_arguments_as_they_do_without_lox(kind, in_context):
    devices = mesh(kind, d=8)
    split, whole = NamedSharding(devices, P("d")), NamedSharding(devices, P())

    def f(x):
        lox.log({"x": x})
        return x + 1

    fun = jax.jit(f, in_shardings=split, out_shardings=whole)
    arguments = {
        "numpy": np.arange(8, dtype=np.float32),
        "uncommitted": jnp.arange(8.0),
        "committed": jax.device_put(jnp.arange(8.0), split),
    }
    with jax.set_mesh(devices) if in_context else contextlib.nullcontext():
        for what, x in arguments.items():
            expected = fun(x)
            for name, transform in TRANSFORMS.items():
                out = transform(fun)(x)
                np.testing.assert_array_equal(out, expected, err_msg=f"{name} of {what}")
                assert (jax.typeof(out), out.sharding, out.committed) == (
                    jax.typeof(expected),
                    expected.sharding,
                    expected.committed,
                )
            logs = lox.spool(fun)(x)[1]
            np.testing.assert_array_equal(logs["x"], np.arange(8.0))


# --- sums that are not added up yet ----------------------------------------------------------------------------------


def _partial_sums(add_up_first):
    def f(a, b):
        h = jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"d"}))
        whole = jax.reshard(h, P())
        lox.log({"h": whole if add_up_first else h, "a": a.sum()})
        return whole

    return f


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_sum_that_is_not_added_up_is_an_error_with_the_way_out(jit):
    devices = mesh(AxisType.Explicit, d=8)
    with jax.set_mesh(devices):
        a, b = put(jnp.ones((4, 8)), devices, P(None, "d")), put(jnp.ones((8, 4)), devices, P("d", None))
        fun = jit(_partial_sums(add_up_first=False))
        np.testing.assert_array_equal(fun(a, b), np.full((4, 4), 8.0))
        message = r"'h' \(.*test_sharded_arrays.py:\d+\) is unreduced over 'd'.* jax.reshard"
        for transformed in (
            lox.spool(fun),
            lox.spool(fun, reduce="mean"),
            lox.spool(fun, interval=2),
            lox.tap(fun, lambda logs: None),
        ):
            with pytest.raises(lox.LoxError, match=message):
                transformed(a, b)
        np.testing.assert_array_equal(lox.nolog(fun)(a, b), fun(a, b))
        # Another key of the same call can be selected, and what is added up can be logged.
        assert lox.spool(fun, "a")(a, b)[1]["a"] == 32
        logs = lox.spool(jit(_partial_sums(add_up_first=True)))(a, b)[1]
        np.testing.assert_array_equal(logs["h"], np.full((4, 4), 8.0))


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="JAX 0.9 has no such values in a shard_map")
@pytest.mark.parametrize("logged", ["a part of a sum", "the sum"])
def test_a_sum_that_is_not_added_up_in_a_shard_map(logged):
    devices = mesh(AxisType.Explicit, d=4)

    @functools.partial(jax.shard_map, mesh=devices, in_specs=P("d"), out_specs=P())
    def fun(x):
        part = jax.lax.pcast(x.sum(), "d", to="unreduced")
        whole = jax.lax.psum(part, "d")
        lox.log({"h": part if logged == "a part of a sum" else whole})
        return whole

    with jax.set_mesh(devices):
        x = put(jnp.arange(8.0), devices, P("d"))
        assert fun(x) == lox.nolog(fun)(x) == 28
        if logged == "the sum":
            out, logs = lox.spool(fun)(x)
            assert out == 28
            np.testing.assert_array_equal(logs["h"], np.full(4, 28.0))
            return
        for transformed in (lox.spool(fun), lox.spool(fun, reduce="mean"), lox.tap(fun, lambda logs: None, batch=2)):
            with pytest.raises(lox.LoxError, match=r"'h' .* is unreduced over 'd'.* jax.lax.psum in a shard_map"):
                transformed(x)


def test_a_loop_may_carry_a_sum_that_is_not_added_up():
    devices = mesh(AxisType.Explicit, d=4)

    def product(a, b):
        return jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"d"}))

    def fun(a, b):
        def body(h, _):
            lox.log({"h": jax.reshard(h, P()).sum()})
            return product(a, b), None

        return jax.reshard(jax.lax.scan(body, product(a, b), None, length=3)[0], P())

    with jax.set_mesh(devices):
        a, b = put(jnp.ones((4, 8)), devices, P(None, "d")), put(jnp.ones((8, 4)), devices, P("d", None))
        for options, expected in (({}, [128.0] * 3), ({"reduce": "mean"}, 128.0), ({"capacity": 2}, [128.0] * 3)):
            out, logs = lox.spool(fun, **options)(a, b)
            np.testing.assert_array_equal(out, fun(a, b))
            np.testing.assert_array_equal(logs["h"], expected)
