"""Which axes of logs are lanes. Under ``vmap`` they come first, and only the layout shows how many there are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np

from lox._errors import LogTypeError
from lox._logdict.arrays import to_numpy

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict


def lane_axes(logs: logdict, method: str) -> int:
    """How many axes of lanes the logs have: what ``vmap(spool(f))`` puts in front of counts, steps and values."""
    found = {key: number for key in logs if (number := lane_axes_of(logs, key)) is not None}
    for (one, first), (other, second) in itertools.pairwise(found.items()):
        if first != second:
            raise LogTypeError(
                f"lox: logs.{method}() cannot tell which axes are lanes: {one!r} seems to have {first} axes of them, and "
                f"{other!r} {second}. Pass the right number: logs.{method}(lanes=1)"
            )
    return next(iter(found.values()), 0)


def lane_axes_of(logs: logdict, key: str) -> int | None:
    """How many axes of lanes a key has; None if nothing shows it."""
    count, steps = logs._counts[key], [np.asarray(step) for step in logs._steps_of(key).values()]
    if np.ndim(count):
        return int(np.ndim(count))
    if key not in logs.stacked:
        return min(step.ndim for step in steps) if steps else None
    if key not in logs._bounds:
        shape = np.shape(jax.tree.leaves(logs[key])[0])
        if len(shape) > 1 and shape[0] != count:
            return shape.index(count) if count in shape else None
    if not steps:
        return None
    step = min(steps, key=lambda step: step.ndim)
    # The devices of a shard_map come after the record axis, lanes before it. The steps of a loop differ between records.
    return 0 if step.ndim == 1 or (step == step[:, :1]).all() else step.ndim - 1


def lanes_of(logs: logdict, axes: int) -> Iterator[tuple[tuple[int, ...], logdict]]:
    """The logs of each lane as numpy, with its place along each axis of lanes."""
    concrete = jax.tree.map(to_numpy, logs)
    leaves = jax.tree.leaves(concrete)
    for lane in np.ndindex(leaves[0].shape[:axes]) if leaves else ():
        yield lane, jax.tree.map(lambda leaf, lane=lane: leaf[lane], concrete)
