"""Meshes of the eight devices that the tests have, and what arrives from a tapped program."""

import functools

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

import lox


def mesh(axis_type=AxisType.Auto, **sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(axis_type,) * len(sizes))


def put(x, mesh, spec):
    return jax.device_put(x, NamedSharding(mesh, spec))


def on_each(mesh, in_specs, out_specs, **options):
    """`jax.shard_map` as a decorator."""
    return functools.partial(jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def arriving(fun, *args, **options):
    """What a tap of `fun` calls back with."""
    got = []
    jax.block_until_ready(lox.tap(fun, got.append, **options)(*args))
    jax.effects_barrier()
    return got


def shapes(logs):
    return jax.tree.map(np.shape, dict(logs))


def both_ways(fun):
    """The function as it is, and jitted."""
    return [fun, jax.jit(fun)]
