"""A scan as a scan of chunks: between them a bar is told how far the loop is, or records are sent.

The body does not change. The first axis of what is scanned over is split into two, and merged again in the results, without
moving the lanes of a ``vmap``. For a reshape, JAX moves the lane axis to the front. The values are the same, but a sum over them
may then be computed in another order, and watching a program must not change the last bit of its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import compat, hi_primitives, lowering
from lox._types import Array


def scan_in_chunks(
    chunk: Callable[[Any, Any], Any],
    rest: Callable[[Any, Any], Any],
    carry: Any,
    xs: Any,
    *,
    length: int,
    size: int,
    reverse: bool,
) -> tuple[Any, Any]:
    """What ``jax.lax.scan`` returns, with the iterations in chunks of ``size``.

    Args:
      chunk: ``(carry, xs) -> (carry, ys)``, a scan of ``size`` iterations.
      rest: the same for the iterations that are left at the end, fewer than ``size``.
    """
    left = length % size
    if length < size:
        return rest(carry, xs)
    whole, last = _parted(xs, left, reverse)
    split_up = jax.tree.map(lambda x: split(x, size), whole)
    after, ys = hi_primitives.scan(chunk, carry, split_up, length=length // size, reverse=reverse)
    ys = jax.tree.map(merge, ys)
    if left:
        # The body of a scan sees the types of the first carry; what it returns may be of a strong type where they are weak.
        after, more = rest(jax.tree.map(compat.weak_like, after, carry), last)
        ys = jax.tree.map(lambda a, b: _joined([b, a] if reverse else [a, b]), ys, more)
    return after, ys


def _parted(xs: Any, rest: int, reverse: bool) -> tuple[Any, Any]:
    """The inputs of a scan but for the iterations that are run last, and those."""
    if not rest:
        return xs, None
    if reverse:
        return jax.tree.map(lambda x: x[rest:], xs), jax.tree.map(lambda x: x[:rest], xs)
    return jax.tree.map(lambda x: x[:-rest], xs), jax.tree.map(lambda x: x[-rest:], xs)


def _joined(arrays: list[Array]) -> Array:
    """One array out of two of the same type, which stays theirs: weak, or wide outside x64 mode. The compiler must not join them
    inside what is computed from them: a sum over both would be computed in another order."""
    with compat.mode_for([arrays[0].dtype]):
        return jax.lax.optimization_barrier(jax.lax.concatenate(arrays, 0))


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
