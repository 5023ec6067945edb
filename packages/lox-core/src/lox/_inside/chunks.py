"""Splitting the first axis of an array into two, and merging them again, without moving the lanes of a ``vmap``.

For a reshape, JAX moves the lane axis to the front. The values are the same, but a sum over them may then be computed in
another order, and a progress bar must not change the last bit of a result.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import compat, lowering
from lox._types import Array


def split(array: Array, size: int) -> Array:
    """Split the rows into chunks of ``size`` rows."""
    return split_p.bind(jnp.asarray(array), size=size)


def merge(array: Array) -> Array:
    """Merge the chunks into rows again."""
    return merge_p.bind(array)


split_p, merge_p = compat.Primitive("lox_split"), compat.Primitive("lox_merge")


def _split(x: Any, *, size: int) -> Any:
    return jax.lax.reshape(x, _split_shape(x.shape, size))


def _merge(x: Any) -> Any:
    return jax.lax.reshape(x, _merged_shape(x.shape))


def _split_shape(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return (shape[0] // size, size, *shape[1:])


def _merged_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0] * shape[1], *shape[2:])


def _batch_split(axis_data: Any, operands: Any, dims: Any, *, size: int) -> Any:
    del axis_data
    (x,), (dim,) = operands, dims
    if dim is None:
        return split(x, size), None
    x, dim = (jnp.moveaxis(x, 0, 1), 1) if dim == 0 else (x, dim)
    return split(x, size), dim + 1


def _batch_merge(axis_data: Any, operands: Any, dims: Any) -> Any:
    del axis_data
    (x,), (dim,) = operands, dims
    if dim is None:
        return merge(x), None
    x, dim = (jnp.moveaxis(x, dim, 2), 2) if dim < 2 else (x, dim)
    return merge(x), dim - 1


split_p.def_impl(_split)
merge_p.def_impl(_merge)
split_p.def_abstract_eval(lambda aval, *, size: compat.reshaped(aval, _split_shape(aval.shape, size)))
merge_p.def_abstract_eval(lambda aval: compat.reshaped(aval, _merged_shape(aval.shape)))
compat.define_linear(split_p, lambda cotangent, x, *, size: [merge(cotangent)])
compat.define_linear(merge_p, lambda cotangent, x: [split(cotangent, compat.type_of(x).shape[1])])
compat.define_batching(split_p, _batch_split)
compat.define_batching(merge_p, _batch_merge)
lowering.define_lowering(split_p, lowering.lower_fun(_split, multiple_results=False))
lowering.define_lowering(merge_p, lowering.lower_fun(_merge, multiple_results=False))
