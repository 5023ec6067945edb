"""How much is packed depends on where a program will run, and not on the machine that traces it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import lox
from lox._storage.packing import NO_PACKING, packing_for

pytestmark = pytest.mark.compiled_as_by_users


def mesh_of(number):
    return jax.sharding.Mesh(jax.devices()[:number], ("d",))


def on(number):
    return jax.device_put(jnp.zeros(8), NamedSharding(mesh_of(number), PartitionSpec()))


def test_vectors_are_packed_on_a_mesh_of_one_device_though_there_are_more():
    assert jax.device_count() > 1
    assert packing_for([on(1)]).rows > 1


@pytest.mark.parametrize("arrays", [[on(4)], [jnp.zeros(8), on(4)]], ids=["all", "one of them"])
def test_on_a_mesh_of_several_devices_only_scalars_are_packed(arrays):
    assert packing_for(arrays).rows == packing_for(arrays).folds == packing_for(arrays).host == 1


def test_the_mesh_that_is_set_counts_where_no_argument_has_one():
    with jax.set_mesh(mesh_of(1)):
        assert packing_for([]).rows > 1
    with jax.set_mesh(mesh_of(4)):
        assert packing_for([]).rows == 1


def test_types_tell_the_mesh_as_arrays_do():
    """What ``lower`` is given for a machine that is not there."""
    shape = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh_of(4), PartitionSpec()))
    packings = []
    jax.jit(lambda x: packings.append(packing_for([x]))).lower(shape)
    assert packings == [packing_for([on(4)])]


def test_a_program_that_closes_over_split_arrays_gathers_nothing():
    weights = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh_of(4), PartitionSpec("d")))

    def f(x):
        def body(x, _):
            y = weights @ x
            lox.log({"y": y, "z": 2 * y})
            return x + y.sum(), None

        return jax.lax.scan(body, x, None, length=3)[0]

    def by_hand(x):
        def body(x, _):
            y = weights @ x
            return x + y.sum(), (y, 2 * y)

        return jax.lax.scan(body, x, None, length=3)

    assert count_gathers(jax.jit(lox.spool(f))) == count_gathers(jax.jit(by_hand))


def count_gathers(fun):
    return fun.lower(jnp.ones(8)).compile().as_text().count("all-gather(")


def test_without_a_policy_nothing_is_packed():
    assert (NO_PACKING.rows, NO_PACKING.folds, NO_PACKING.host, NO_PACKING.fused) == (0, 0, 0, 0)
