"""``shard_map``: the body runs on every device, and each device has its own records.

A record gets one leading axis for each mesh axis that the body is manual over. Inside, frames and stores are those of
one device. At the boundary they gain or lose leading axes of size 1, which are sharded over the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.survey import Survey, Usages, Use
from lox._jax import compat, sharding
from lox._storage.rows import Chunk, Rows
from lox._types import Array


def manual_axes(eqn: Any) -> tuple[str, ...]:
    manual = sharding.manual_axes_of(eqn)
    return tuple(axis for axis in eqn.params["mesh"].axis_names if axis in manual)


def mesh_sizes(eqn: Any) -> tuple[int, ...]:
    return tuple(eqn.params["mesh"].shape[axis] for axis in manual_axes(eqn))


def usages(eqn: Any, survey: Survey) -> Usages:
    body = survey(eqn.params["jaxpr"]).usages
    return {key: usage._replace(uses=tuple(_on_mesh(use, eqn) for use in usage.uses)) for key, usage in body.items()}


def _on_mesh(use: Use, eqn: Any) -> Use:
    sizes = mesh_sizes(eqn)
    spread = sharding.spread_over(eqn.params["mesh"], manual_axes(eqn))

    def grow(aval: Any) -> Any:
        return compat.ShapedArray(sizes + tuple(aval.shape), aval.dtype, weak_type=getattr(aval, "weak_type", False))

    steps = tuple((axis, grow(aval)) for axis, aval in use.steps)
    return use._replace(leaves=tuple(map(grow, use.leaves)), steps=steps, mesh=sizes + use.mesh, spread=spread)


def run(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    jaxpr = params["jaxpr"]
    numbers = collector.stores_in(jaxpr, folds=True)
    collector.settle(frame, numbers)
    structure: list[Any] = []

    def body(inner: Frame, args: list[Array]) -> Any:
        outs = collector.body(jaxpr, args, inner)
        arrays, tree = jax.tree.flatten(inner.rows.stack().flat())
        structure[:] = [tree]
        return outs, arrays

    specs = list(params["in_specs"]), list(params["out_specs"])
    outs, arrays = on_each_device(collector, frame, eqn, numbers, body, invals, *specs)
    frame.rows.extend(_records_first(structure[0].unflatten(arrays), len(manual_axes(eqn))))
    return outs


def on_each_device(
    collector: Collector,
    frame: Frame,
    eqn: Any,
    numbers: frozenset[int],
    body: Callable[[Frame, list[Array]], tuple[list[Array], list[Array]]],
    args: Sequence[Array] = (),
    in_specs: Sequence[Any] = (),
    out_specs: Sequence[Any] = (),
) -> tuple[list[Array], list[Array]]:
    """Run ``body`` on the devices of a shard_map, with these stores.

    Args:
      body: takes the frame of one device, and returns the results and what gets the mesh axes in front.
    """
    params, axes = eqn.params, manual_axes(eqn)

    def on_one(state: Any, context: Context, args: list[Array]) -> Any:
        local = jax.tree.map(lambda s: s.reshape(s.shape[len(axes) :]), state)
        inner = Frame(dataclasses.replace(context, state=local))
        outs, arrays = body(inner, args)

        def lead(array: Array) -> Array:
            array = array.reshape((1,) * len(axes) + array.shape)
            return sharding.vary_over(array, axes) if params["check_vma"] else array

        return outs, jax.tree.map(lead, inner.state), list(map(lead, arrays))

    over_mesh = PartitionSpec(*axes)
    mapped = jax.shard_map(
        on_one,
        mesh=params["mesh"],
        in_specs=(over_mesh, PartitionSpec(), list(in_specs)),
        out_specs=(list(out_specs), over_mesh, over_mesh),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )
    here = frame.context(
        frozenset(),
        alive=jnp.asarray(frame.alive),
        mesh=frame.mesh + tuple(zip(axes, mesh_sizes(eqn), strict=True)),
        devices=params["mesh"] if isinstance(params["mesh"], Mesh) else frame.devices,
        certain=_certain_keys(collector.survey(params["jaxpr"]).usages, frame.certain),
    )
    outs, state, arrays = mapped(frame.context(numbers).state, here, list(args))
    frame.state.update(state)
    return outs, arrays


def _certain_keys(usages: Usages, around: frozenset[str] | None) -> frozenset[str]:
    certain = frozenset(key for key, usage in usages.items() if usage.is_certain)
    return certain if around is None else certain & around


def _records_first(rows: Rows, num_axes: int) -> Rows:
    """Moves the record axis of stacked rows before the mesh axes."""
    moved: dict[int, Array] = {}

    def move(array: Array, chunk: Chunk) -> Array:
        if not chunk.lengths:
            return array
        if id(array) not in moved:
            moved[id(array)] = jnp.moveaxis(array, num_axes, 0)
        return moved[id(array)]

    return Rows(
        {
            key: tuple(chunk.replace([move(a, chunk) for a in chunk.unpacked()], chunk.lengths) for chunk in chunks)
            for key, chunks in rows.items()
        }
    )
