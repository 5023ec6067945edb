"""``custom_vmap_call``: functions that bring their own rule for ``vmap``.

The rebuilt function returns its rows and stores with its results, and so must its rule. The rule runs only when ``vmap`` is
outside the transformation, ``vmap(spool(f))``, and then for all lanes at once. Its records must have the structure of the
function's records, with or without a lane axis in front, and each lane gets its own. If a rule records nothing, the
function is run in each lane for its records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._errors import ConflictError
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.rules.derivatives import (
    describe_counts,
    describe_rows,
    evaluate_call,
    finish_call,
    fit,
    prepare_call,
)
from lox._interpret.silent import for_its_records
from lox._jax import compat
from lox._marks.mark import Record, marking
from lox._storage.rows import Rows
from lox._types import Array


def run_custom_vmap(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    params = eqn.params
    call = _Call(collector, params, prepare_call(collector, frame, params["call"]))
    leaves = [*jax.tree.leaves(call.context), *invals]
    if compat.is_sequential(params["rule"]):
        outs = jax.custom_batching.sequential_vmap(call.in_one_lane)(*leaves)
    else:
        function = jax.custom_batching.custom_vmap(call.in_one_lane)
        function.def_vmap(call.in_all_lanes)
        outs = function(*leaves)
    return finish_call(frame, call.structure.unflatten(outs))


class _Call:
    """A function with a rule for ``vmap``, as two functions of flat arguments: those of the context, then its own.

    They return lists, so that the structure of rows, in which leaves are shared, is made only once.
    """

    def __init__(self, collector: Collector, params: dict[str, Any], context: Context) -> None:
        self.collector = collector
        self.params = params
        self.primal = params["call"]
        self.context = context
        self.num_context = len(jax.tree.leaves(context))
        self.structure: Any = None

    def in_one_lane(self, *leaves: Array) -> list[Array]:
        context, args = self._split(leaves)
        outs, self.structure = jax.tree.flatten(evaluate_call(self.collector, self.primal, context, args))
        return outs

    def in_all_lanes(self, size: int, batched: Sequence[bool], *leaves: Array) -> tuple[list[Array], list[bool]]:
        rule, outs_batched = self._trace_rule(size, batched, leaves)
        outs, recorded = self._run_rule(rule, size, batched, leaves)
        flat = jax.tree.leaves(recorded)
        return [*outs, *flat], [*outs_batched, *[True] * len(flat)]

    def _split(self, leaves: Sequence[Any]) -> tuple[Context, list[Any]]:
        context = jax.tree.unflatten(jax.tree.structure(self.context), leaves[: self.num_context])
        return context, list(leaves[self.num_context :])

    def _trace_rule(self, size: int, batched: Sequence[bool], leaves: Sequence[Array]) -> tuple[Any, list[bool]]:
        """The rule as a jaxpr, and which of its results have lanes."""
        rule, tree = self.params["rule"], self.params["in_tree"]
        outs_batched: list[bool] = []

        def flat(*args: Array) -> list[Array]:
            out, out_batched = rule(size, list(tree.unflatten(batched[self.num_context :])), *tree.unflatten(args))
            outs_batched[:] = jax.tree.leaves(out_batched)
            return jax.tree.leaves(out)

        with self.collector.rule_context():
            return jax.make_jaxpr(flat)(*leaves[self.num_context :]), outs_batched

    def _run_rule(
        self, rule: Any, size: int, batched: Sequence[bool], leaves: Sequence[Array]
    ) -> tuple[list[Array], Any]:
        """The results of the rule, and the records, which have the structure of the function's and a lane axis in front."""
        recorded, wanted = (self.collector.survey(jaxpr).usages for jaxpr in (rule, self.primal))
        in_lanes = jax.vmap(self._records, in_axes=tuple(0 if b else None for b in batched), axis_size=size)
        context, args = self._split(leaves)
        if not recorded:
            somewhere = dataclasses.replace(context, alive=jnp.any(context.alive))
            outs = self.collector.run(rule, args, Frame(somewhere))
            return outs, in_lanes(*leaves) if wanted else ({}, Rows())
        counts = [{key: usage.records for key, usage in usages.items()} for usages in (recorded, wanted)]
        if counts[0] != counts[1]:
            raise _conflict(*map(describe_counts, counts))
        context = self._split([_spread(leaf, size, b) for leaf, b in zip(leaves, batched, strict=True)])[0]
        shapes = {key: [leaf.shape for leaf in usage.uses[0].leaves] for key, usage in wanted.items()}
        inner = Frame(context)
        outs = InLanes(self.collector, size, shapes).run(rule, args, inner)
        rows = _lanes_first(inner.rows.flat())
        expected_state, expected = jax.eval_shape(in_lanes, *leaves)
        fitting = fit(rows, expected)
        if fitting is None:
            raise _conflict(describe_rows(rows), describe_rows(expected))
        return outs, (jax.tree.map(lambda x, like: x.astype(like.dtype), inner.state, expected_state), fitting)

    def _records(self, *leaves: Array) -> Any:
        with marking(None):  # a transformation outside gets the marks of the rule, not these
            return evaluate_call(self.collector, for_its_records(self.primal), *self._split(leaves))[1]


class InLanes(Collector):
    """Collects, for each lane, what a program that computes all lanes at once records.

    The arrays in its frames lead with the lanes.

    Args:
      shapes: the shapes that one lane records under each key.
    """

    def __init__(self, collector: Collector, size: int, shapes: dict[str, list[tuple[int, ...]]]) -> None:
        super().__init__(collector.survey, collector.keep)
        self.tracks_lanes = collector.tracks_lanes
        self.stores_in = collector.stores_in  # type: ignore[method-assign]
        self.rule_context = collector.rule_context  # type: ignore[method-assign]
        self.backward_context = collector.backward_context  # type: ignore[method-assign]
        self.in_branch = collector.in_branch  # type: ignore[method-assign]
        self._each, self._size, self._shapes = collector, size, shapes

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        leaves = {key: [*map(self._in_lanes, record.leaves[key], self._shapes[key])] for key in keys}
        steps = {axis: self._in_lanes(step, ()) for axis, step in record.steps.items()}
        where = None if record.where is None else self._in_lanes(record.where, ())

        def one(frame: Frame, where: Any, steps: Any, leaves: Any) -> None:
            self._each.record(frame, Record(record.mark, where, steps, leaves), keys)

        self._in_each(frame, one, where, steps, leaves)

    def settle(self, frame: Frame, numbers: frozenset[int]) -> None:
        def one(inner: Frame, rows: Rows) -> None:
            inner.rows = rows
            self._each.settle(inner, numbers)

        pending, frame.rows = frame.rows, Rows()
        loops = Rows({key: chunks for key, chunks in pending.items() if any(chunk.lengths for chunk in chunks)})
        self._in_each(frame, one, Rows({key: chunks for key, chunks in pending.items() if key not in loops}))
        frame.rows = Rows({key: (loops | frame.rows)[key] for key in pending if key in loops or key in frame.rows})

    def _in_each(self, frame: Frame, do: Callable[..., None], *operands: Any) -> None:
        def one(context: Context, operands: Any) -> Any:
            inner = Frame(context)
            do(inner, *operands)
            return inner.state, inner.rows

        state, rows = jax.vmap(one)(frame.context(frozenset(frame.state)), operands)
        frame.state.update(state)
        frame.rows.extend(rows)

    def _in_lanes(self, value: Array, shape: tuple[int, ...]) -> Array:
        if value.shape not in (shape, (self._size, *shape)):
            raise _conflict(f"a value of shape {value.shape}", f"one of shape {shape} for each lane")
        return _spread(value, self._size, value.shape != shape)


def _spread(value: Array, size: int, batched: bool) -> Array:
    return value if batched else jnp.broadcast_to(value, (size, *jnp.shape(value)))


def _lanes_first(rows: Rows) -> Rows:
    moved: dict[int, Array] = {}

    def turn(array: Array, axis: int) -> Array:
        return moved.setdefault(id(array), jnp.moveaxis(array, axis, 0))

    return Rows(
        {
            key: tuple(
                chunk.replace([turn(array, len(chunk.lengths)) for array in chunk.unpacked()], chunk.lengths)
                for chunk in chunks
            )
            for key, chunks in rows.items()
        }
    )


def _conflict(recorded: str, expected: str) -> ConflictError:
    return ConflictError(
        f"lox: the vmap rule of a custom_vmap function records {recorded}, but the function records {expected}. Record the "
        "same in both, for each lane or for all, or write spool(vmap(f)) instead of vmap(spool(f))"
    )
