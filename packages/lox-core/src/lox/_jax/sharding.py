"""How values are spread over devices: by explicit sharding, and in shard_map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from lox._jax.compat import ShapedArray


def varying_axes(array: Any) -> frozenset[str]:
    """The mesh axes along which devices differ: ``vma`` in JAX < 0.10, then part of ``manual_axis_type``."""
    aval = array if isinstance(array, ShapedArray) else jax.typeof(array)
    manual = getattr(aval, "manual_axis_type", None)
    return manual.varying if manual is not None else getattr(aval, "vma", frozenset())


def unreduced_axes(aval: Any) -> frozenset[str]:
    """The mesh axes over which values of a type are sums that are not added up yet. In shard_map, from 0.10 on."""
    spec = getattr(getattr(aval, "sharding", None), "spec", None)
    manual = getattr(aval, "manual_axis_type", None)
    return frozenset(getattr(spec, "unreduced", ())) | frozenset(getattr(manual, "unreduced", ()))


def manual_axes_here() -> tuple[str, ...]:
    """The mesh axes of the shard_maps around the code that is being traced."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def vary_over(array: Any, axes: Iterable[str]) -> Any:
    """The array, typed as varying between the devices along ``axes``."""
    here = varying_axes(array)
    missing = tuple(axis for axis in axes if axis not in here)
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def vary_like(array: Any, *like: Any) -> Any:
    return vary_over(array, sorted(frozenset[str]().union(*map(varying_axes, like))))


def split_of(aval: Any) -> Any:
    """How the arrays of a type are split between devices, if that is part of the type (explicit sharding); otherwise None."""
    sharding = getattr(aval, "sharding", None)
    spec = getattr(sharding, "spec", ())
    return sharding if spec and any(part is not None for part in spec) else None


def split_of_rows(rows: Any) -> Any:
    """How each of the rows along axis 0 is split."""
    sharding = split_of(jax.typeof(rows))
    along = () if sharding is None else tuple(sharding.spec)[1:]
    return sharding.update(spec=along) if any(part is not None for part in along) else None


def is_split(leaf: Any) -> bool:
    return split_of(jax.typeof(leaf) if isinstance(leaf, jax.Array) else leaf) is not None


def zeros_split(shape: Sequence[int], dtype: Any, like: Any) -> Any:
    """Zeros that are split like ``like``, along their last axes."""
    if like is None:
        return jax.numpy.zeros(shape, dtype)
    leading = (None,) * (len(shape) - len(like.spec))
    return jax.numpy.zeros(shape, dtype, out_sharding=like.update(spec=(*leading, *like.spec)))


def split_like(array: Any, like: Any) -> Any:
    """The array, split between devices like ``like``."""
    wanted, given = getattr(like, "sharding", None), jax.typeof(array).sharding
    return array if wanted is None or wanted == given else jax.sharding.reshard(array, wanted)


def spread_over(mesh: Any, axes: Sequence[str]) -> Any:
    """How values with one entry for each device along ``axes`` lie on a mesh with explicit axes; None for other meshes."""
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if all(kinds[axis] != AxisType.Explicit for axis in axes):
        return None
    return NamedSharding(mesh, PartitionSpec(*axes))


def spread(array: Any, how: Any) -> Any:
    return array if how is None else jax.sharding.reshard(array, how)


def for_each_device(array: Any, sizes: tuple[int, ...], how: Any) -> Any:
    """The array once for each device of a mesh of these sizes, spread over it."""
    return spread(jax.numpy.broadcast_to(array, sizes + array.shape), how) if sizes else array


def manual_axes_of(eqn: Any) -> frozenset[str]:
    """The mesh axes a shard_map is manual over. The parameter was renamed in 0.10."""
    params = eqn.params
    return params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]


def mesh_of(arrays: Iterable[Any]) -> Any:
    """The mesh of these arrays or types, or else the mesh that is set; None if there is neither."""
    for array in arrays:
        mesh = getattr(getattr(_type_of(array), "sharding", None), "mesh", None)
        if mesh is not None and not mesh.empty:
            return mesh
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def _type_of(array: Any) -> Any:
    return jax.typeof(array) if isinstance(array, jax.Array) else array


def platform_of(mesh: Any) -> str:
    """The platform of a mesh, or of the default device; ``cpu``, ``tpu``, ``cuda``, ``rocm``."""
    device = getattr(mesh, "abstract_device", None)
    if device is not None:
        # JAX < 0.10 has only the kind of device: "cpu", "TPU v5 lite", "NVIDIA H100 80GB HBM3".
        kind = device.device_kind.lower()
        return getattr(device, "platform", None) or ("tpu" if kind.startswith("tpu") else kind)
    chosen = jax.config.jax_default_device  # a device, a name, or None
    if chosen is None:
        return jax.default_backend()
    return chosen if isinstance(chosen, str) else str(chosen.platform)


def device_count(mesh: Any) -> int:
    """The most devices that a program can be split over: all of them, if there is no mesh."""
    return jax.device_count() if mesh is None else int(mesh.size)
