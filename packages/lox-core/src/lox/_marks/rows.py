"""Several records in one call of ``lox.log``: those of lanes, and those that ``lox.spool`` has collected.

They are marked in a loop over the rows, so they behave like any marks in a loop, under every transformation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import LogTypeError
from lox._jax import hi_primitives
from lox._logdict import logdict

# mark(values, where, steps) leaves one mark.
MarkOne = Callable[[dict[str, Any], Any, dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Batch:
    """Records of the same keys and step axes.

    Args:
      rows: how many there are, along axis 0 of the values; None for one record without that axis.
      where: one condition for all rows, one for each row, or None.
      steps: for each axis, one step for all rows, or one for each row.
    """

    values: dict[str, Any]
    rows: int | None
    where: Any
    steps: dict[str, Any]

    def each(self, mark: MarkOne) -> None:
        """Marks the records, one after the other."""
        if self.rows is None:
            mark(self.values, self.where, self.steps)
            return
        shared = {name: given for name, given in self._given().items() if not np.ndim(given)}
        by_row = {name: jnp.asarray(given) for name, given in self._given().items() if np.ndim(given)}

        def body(row: Any) -> None:
            values, own = row
            given = shared | own
            mark(values, given.get("where"), {axis: given[f"step {axis}"] for axis in self.steps})

        with hi_primitives.classic_scan():
            jax.lax.map(body, (jax.tree.map(jnp.asarray, self.values), by_row))

    def _given(self) -> dict[str, Any]:
        given = {f"step {axis}": step for axis, step in self.steps.items()}
        return given if self.where is None else {**given, "where": self.where}


def lane_batches(data: Any, where: Any, steps: Mapping[str, Any], site: str) -> list[Batch]:
    """The records of ``lox.log(..., lanes=True)``."""
    if not isinstance(data, Mapping) or isinstance(data, logdict):
        raise LogTypeError(f"lox.log at {site}: with lanes=True, expected a plain mapping, got {type(data).__name__}")
    lengths = set().union(*map(_lengths, data.values()))
    if len(lengths) != 1 or None in lengths:
        shapes = {key: [np.shape(leaf) for leaf in jax.tree.leaves(value)] for key, value in data.items()}
        raise LogTypeError(
            f"lox.log at {site}: with lanes=True, all values must have the same leading axis, the lanes; got the shapes "
            f"{shapes}"
        )
    (number,) = lengths
    for what, given in {"`where`": where, **{f"step axis {axis!r}": step for axis, step in steps.items()}}.items():
        if np.shape(given) not in ((), (number,)):
            raise LogTypeError(
                f"lox.log at {site}: with {number} lanes, {what} must be a scalar or have shape ({number},), got shape "
                f"{np.shape(given)}"
            )
    return [Batch(dict(data), number, where, dict(steps))]


def collected_batches(logs: logdict, where: Any, steps: Mapping[str, Any], site: str) -> list[Batch]:
    """The records of logs, each with its own steps and those given. Keys of one record stay together."""
    groups: dict[Any, list[str]] = {}
    for key in logs:
        own = tuple((axis, id(by_key[key])) for axis, by_key in logs.steps.items() if key in by_key)
        count = logs.counts[key]
        kind = (own, key in logs.stacked, count if type(count) is int else id(count))
        groups.setdefault(kind, []).append(key)
    return [_collected(logs, keys, where, steps, site) for keys in groups.values()]


def _collected(logs: logdict, keys: list[str], where: Any, steps: Mapping[str, Any], site: str) -> Batch:
    values, count = {key: logs[key] for key in keys}, logs.counts[keys[0]]
    own = {axis: by_key[keys[0]] for axis, by_key in logs.steps.items() if keys[0] in by_key}
    rows = _rows(logs, keys, site)
    if type(count) is not int:  # unused rows come last, and a reduction can be that of no records
        used = (0 if rows is None else jnp.arange(rows)) < jnp.asarray(count)
        where = used if where is None else jnp.logical_and(where, used)
    return Batch(values, rows, where, own | dict(steps))


def _rows(logs: logdict, keys: list[str], site: str) -> int | None:
    """How many rows keys have; None if they have one record, without an axis."""
    count = logs.counts[keys[0]]
    lengths = set().union(*(_lengths(logs[key]) for key in keys)) if keys[0] in logs.stacked else {None}
    steps = [by_key[keys[0]] for by_key in logs.steps.values() if keys[0] in by_key]
    of_one_run = (
        len(lengths) == 1
        and np.ndim(count) == 0
        and (type(count) is not int or lengths <= {None, count})
        and all(np.shape(step) == (() if None in lengths else (*lengths,)) for step in steps)
    )
    if not of_one_run:
        raise LogTypeError(
            f"lox.log at {site}: the logs of {', '.join(map(repr, keys))} have lanes of a vmap. Log them inside the vmap, "
            "where each lane has its own, or log the values as they are, lox.log(dict(logs))"
        )
    return next(iter(lengths))


def _lengths(value: Any) -> set[int | None]:
    return {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in jax.tree.leaves(value)} or {None}


def as_logdict(batches: list[Batch], prefix: str) -> logdict:
    """What ``lox.log`` returns: the records, with all their steps."""
    logs = logdict()
    for batch in batches:
        data = {prefix + key: value for key, value in batch.values.items()}
        shape = () if batch.rows is None else (batch.rows,)
        steps = {axis: dict.fromkeys(data, jnp.broadcast_to(step, shape)) for axis, step in batch.steps.items()}
        logs = logs | logdict(data, steps=steps, stacked=list(data) if shape else [])
    return logs
