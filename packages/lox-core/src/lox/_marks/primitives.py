"""The primitives of marks, each with all its rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lox._errors import LaneError
from lox._jax import compat, lowering
from lox._jax.primitive import EffectfulPrimitive
from lox._marks.mark import Mark, Record, marks_are_wanted, unmuted

# --- log_p -----------------------------------------------------------------------------------------------------------


class LogEffect(compat.Effect):
    """Keeps marks from being removed as dead code."""

    __str__ = lambda self: "LoxLog"  # noqa: E731


log_effect = LogEffect()
compat.allow_effect(LogEffect)

log_p = EffectfulPrimitive("lox_log")


@log_p.def_impl
def _log_impl(*operands: Any, mark: Mark) -> list[Any]:
    del operands, mark
    return []


@log_p.def_effectful_abstract_eval
def _log_abstract_eval(*avals: Any, mark: Mark) -> Any:
    del avals, mark
    return [], {log_effect}


def bind_record(record: Record, keys: tuple[str, ...]) -> None:
    """Leave a mark with these keys of the record."""
    if keys := unmuted(record.mark, keys):
        where = [] if record.where is None else [record.where]
        values = [leaf for key in keys for leaf in record.leaves[key]]
        mark = record.mark.pick(keys)
        if where and not mark.masked:
            mark = dataclasses.replace(mark, masked=True)
        log_p.bind(*where, *record.steps.values(), *values, mark=mark)


def _check_where_unbatched(mark: Mark, where: Any, dim: int | None) -> None:
    if dim is not None and where.ndim == 1:
        raise LaneError(
            f"lox: the `where` of the call at {mark.site} differs between the lanes of a vmap inside the transformed "
            "function, and only inside that vmap are the lanes known. Transform the function that is mapped: write "
            "vmap(spool(f)) or vmap(tap(f)) instead of spool(vmap(f)) or tap(vmap(f)). If the vmap is inside your function, "
            "spool there and return the logs, or log the condition as a value of its own instead of `where`"
        )


def _log_batching(axis_data: Any, operands: Any, dims: Any, *, mark: Mark) -> Any:
    if not marks_are_wanted():  # for example in a backward pass that runs outside the transformation
        return [], []
    moved = [compat.move_to_front(axis_data, operand, dim) for operand, dim in zip(operands, dims, strict=True)]
    if mark.masked:
        _check_where_unbatched(mark, operands[0], dims[0])
        # A condition for one lane has no axes. One that a loop keeps for all its lanes leads with the lane axes, as values do.
        moved[0] = moved[0] if operands[0].ndim else operands[0]
    log_p.bind(*moved, mark=mark)
    return [], []


compat.define_staging(log_p, frozenset([log_effect]))
compat.define_batching(log_p, _log_batching)
compat.define_jvp_binding_primals(log_p)
# A mark of a tangent. Reverse mode never computes it, so nothing is recorded.
compat.define_transpose(log_p, lambda cotangents, *operands, mark: [None] * len(operands))
lowering.define_lowering(log_p, lambda ctx, *operands, mark: [])

# --- watch_p: the identity whose transpose is a mark -----------------------------------------------------------------
# operands: the leaves of one value (linear), then `where` if masked, and the steps.
# spread: under vmap each lane has its own cotangent, even if the value is the same in all lanes. This does not hold for the
# primal results of a jvp: forward differentiation in lanes (jacfwd, hessian) needs them to be the same in all.

watch_p = compat.Primitive("lox_log_grad")
watch_p.multiple_results = True


def _values(mark: Mark) -> int:
    return mark.trees[0].num_leaves


watch_p.def_impl(lambda *operands, mark, spread: list(operands[: _values(mark)]))
watch_p.def_abstract_eval(lambda *avals, mark, spread: list(avals[: _values(mark)]))
lowering.define_lowering(watch_p, lambda ctx, *operands, mark, spread: list(operands[: _values(mark)]))


def _watch_batching(axis_data: Any, operands: Any, dims: Any, *, mark: Mark, spread: bool) -> Any:
    if not spread and all(dim is None for dim in dims):
        return watch_p.bind(*operands, mark=mark, spread=False), [None] * _values(mark)
    if not marks_are_wanted():  # its record, if any, was taken inside the vmap: the identity is left
        return list(operands[: _values(mark)]), list(dims[: _values(mark)])
    if mark.masked:
        _check_where_unbatched(mark, operands[_values(mark)], dims[_values(mark)])
    moved = [compat.move_to_front(axis_data, operand, dim) for operand, dim in zip(operands, dims, strict=True)]
    if mark.masked:
        moved[_values(mark)] = operands[_values(mark)]
    return watch_p.bind(*moved, mark=mark, spread=spread), [0] * _values(mark)


def _watch_jvp(primals: Any, tangents: Any, *, mark: Mark, spread: bool) -> Any:
    values, others = tangents[: _values(mark)], primals[_values(mark) :]
    outs = watch_p.bind(*primals, mark=mark, spread=False)
    if all(map(compat.is_zero_tangent, values)):
        return outs, values
    return outs, watch_p.bind(*map(compat.instantiate_zeros, values), *others, mark=mark, spread=spread)


def _watch_transpose(cotangents: Any, *operands: Any, mark: Mark, spread: bool) -> Any:
    del spread
    others = operands[_values(mark) :]
    if marks_are_wanted():
        log_p.bind(*others, *map(compat.instantiate_zeros, cotangents), mark=mark)
    return [*cotangents, *[None] * len(others)]


compat.define_batching(watch_p, _watch_batching)
compat.define_jvp(watch_p, _watch_jvp)
compat.define_transpose(watch_p, _watch_transpose)


# --- detach_p: the identity of several arrays, without their tangents ------------------------------------------------
# ``jax.lax.stop_gradient`` adds an equation for each array: a tenth of the tracing time of programs with many logs.

detach_p = compat.Primitive("lox_detach")
detach_p.multiple_results = True
detach_p.def_impl(lambda *arrays: list(arrays))
detach_p.def_abstract_eval(lambda *avals: list(avals))
compat.define_batching(detach_p, lambda axis_data, arrays, dims: (detach_p.bind(*arrays), list(dims)))
compat.define_jvp_binding_primals(detach_p)
# In a linear function that is transposed, such as the operator of a solver, nothing flows back.
compat.define_transpose(detach_p, lambda cotangents, *arrays: [None] * len(arrays))
lowering.define_lowering(detach_p, lambda ctx, *arrays: list(arrays))


def detach(arrays: Sequence[Any]) -> list[Any]:
    """The arrays without their tangents. Constants and integers have none."""
    attached = [i for i, array in enumerate(arrays) if _may_have_tangents(array)]
    detached = list(arrays)
    if attached:
        for i, array in zip(attached, detach_p.bind(*[arrays[i] for i in attached]), strict=True):
            detached[i] = array
    return detached


def _may_have_tangents(array: Any) -> bool:
    return isinstance(array, compat.Tracer) and jnp.issubdtype(array.dtype, jnp.inexact)
