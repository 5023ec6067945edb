"""The marks that ``lox.log`` and ``lox.log_grad`` leave in a traced program.

A mark is bound only while a lox transformation traces (``marking``): any effect in a jaxpr turns off jit's fast
dispatch path, so a program without a transformation must not have one. ``marking`` is a JAX user context, which is part of
the keys of JAX's trace caches. So a function that was jitted before is traced again under a transformation, and its plain
cache entry does not change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

# True while a transformation traces the function that it was given.
marking = jax.make_user_context(default_value=None)

# What `lox.nolog(f, argnames=..., tags=...)` takes out: functions of a mark and a key that are true for what is dropped.
muting = jax.make_user_context(default_value=())


def marks_are_wanted() -> bool:
    return bool(marking.value)


@dataclasses.dataclass(frozen=True)
class Mark:
    """What is static about one ``lox.log`` call. Operands: ``where`` if masked, the steps, the leaves of each key."""

    site: str
    keys: tuple[str, ...]
    trees: tuple[Any, ...]
    axes: tuple[str, ...]
    tags: tuple[str, ...]
    reduce: Any
    explicit: bool
    masked: bool

    def pick(self, keys: tuple[str, ...]) -> Mark:
        """The same call with only some of its keys."""
        if keys == self.keys:
            return self
        trees = tuple(tree for key, tree in zip(self.keys, self.trees, strict=True) if key in keys)
        return dataclasses.replace(self, keys=keys, trees=trees)


def unmuted(mark: Mark, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of a mark that no surrounding ``lox.nolog`` takes out."""
    muted = muting.value
    return tuple(key for key in keys if not any(drops(mark, key) for drops in muted)) if muted else keys


class Record(NamedTuple):
    """The operands of a mark, or their types, with names."""

    mark: Mark
    where: Any  # None if the mark is not masked
    steps: dict[str, Any]
    leaves: dict[str, list[Any]]

    @classmethod
    def of(cls, mark: Mark, operands: Sequence[Any]) -> Record:
        where = operands[0] if mark.masked else None
        place = int(mark.masked) + len(mark.axes)
        steps = dict(zip(mark.axes, operands[int(mark.masked) : place], strict=True)) if mark.axes else {}
        leaves = {}
        for key, tree in zip(mark.keys, mark.trees, strict=True):
            end = place + tree.num_leaves
            leaves[key] = list(operands[place:end])
            place = end
        return cls(mark, where, steps, leaves)
