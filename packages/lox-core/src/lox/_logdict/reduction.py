"""Reducing finished logs: the same result as ``spool(f, reduce=how)`` gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from lox._jax import hi_primitives, sharding
from lox._reduce import resolve
from lox._storage.packing import packing_for
from lox._storage.stores import Aval, ReduceStore, start_varying
from lox._types import Array

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict


def reduce_logs(logs: logdict, how: Any) -> logdict:
    """Fold the records of finished logs with the same stores that run inside loops."""
    reduction = resolve(how)
    if reduction is None or reduction.is_append:
        return logs
    packed = packing_for(jax.tree.leaves(logs)).folds
    values: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    counts: dict[str, Any] = {}
    for key in logs:
        leaves, tree = jax.tree.flatten(logs[key])
        axes = logs._steps_of(key)
        rows = [jnp.asarray(x) if key in logs.stacked else jnp.asarray(x)[None] for x in (*leaves, *axes.values())]
        avals = [_of_one(row) for row in rows]
        store = ReduceStore(reduction, tuple(avals[: len(leaves)]), tuple(avals[len(leaves) :]), packed=packed)
        used = jnp.minimum(logs.counts[key], len(rows[0])) if key in logs._bounds else None
        done = store.finish(_fold(store, rows, used))
        values[key] = reduction.label(
            [tree.unflatten(list(part)) for part in zip(*done.leaves, strict=True)], logs[key]
        )
        for axis, step in zip(axes, done.steps, strict=True):
            steps.setdefault(axis, {})[key] = step
        counts[key] = logs.counts[key]
    return type(logs)(values, steps, counts)


def _of_one(rows: Array) -> Aval:
    """The type of a record."""
    return Aval(rows.shape[1:], rows.dtype, sharding=sharding.split_of_rows(rows))


def _fold(store: ReduceStore, rows: list[Array], used: Array | None) -> Any:
    def step(state: Any, numbered: Any) -> Any:
        i, row = numbered
        keep = None if used is None else i < used
        after = store.add(state, row[: len(store.leaves)], row[len(store.leaves) :], keep)
        return jax.tree.map(sharding.vary_like, after, state), None

    differing = frozenset[str]().union(*map(sharding.varying_axes, [*rows, *([] if used is None else [used])]))
    start = start_varying(store, sorted(differing))
    return hi_primitives.scan(step, start, (jnp.arange(len(rows[0])), rows))[0]
