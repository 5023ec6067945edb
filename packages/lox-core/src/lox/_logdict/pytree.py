"""``logdict`` as a pytree.

The children are the values in key order, then the distinct step arrays, then those counts that are arrays: keys that share
their steps go on sharing them through every transformation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

import jax

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict

_new, _update = dict.__new__, dict.update


class _Structure(tuple[Any, ...]):
    """The aux data: keys, {axis: {key: which step array}}, counts or which of the arrays they are, stacked keys, bounds.

    It is a tuple, which JAX compares and hashes fast. What each call of a compiled program needs to make its logs is prepared
    once and kept with it.
    """

    kind: ClassVar[type[logdict]]

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.keys, self._steps, counts, self.stacked, bounds, self.num_steps = parts
        self._bounds = dict(bounds)
        static = {key: count for key, (is_static, count) in zip(self.keys, counts, strict=True) if is_static}
        self._counts = {key: static.get(key) for key in self.keys}
        self._counted = [(key, i) for key, (is_static, i) in zip(self.keys, counts, strict=True) if not is_static]
        self._only_values = not self.num_steps and not self._counted

    def fill(self, children: Iterable[Any]) -> logdict:
        logs = _new(self.kind)
        logs._counts = self._counts.copy()
        logs._stacked = self.stacked
        logs._bounds = self._bounds.copy() if self._bounds else {}
        if self._only_values:  # the case that a call of a tiny program would notice
            _update(logs, zip(self.keys, children))  # noqa: B905 (JAX has counted them)
            logs._steps = {axis: {} for axis, _ in self._steps} if self._steps else {}
            return logs
        children = list(children)
        _update(logs, zip(self.keys, children, strict=False))
        num_values = len(self.keys)
        logs._steps = {axis: {key: children[num_values + i] for key, i in places} for axis, places in self._steps}
        for key, i in self._counted:
            logs._counts[key] = children[num_values + self.num_steps + i]
        return logs


def _flatten(logs: logdict) -> tuple[list[Any], _Structure]:
    step_arrays, count_arrays = _Distinct(), _Distinct()
    steps = tuple(
        (axis, tuple((key, step_arrays.place(array)) for key, array in by_key.items()))
        for axis, by_key in logs._steps.items()
    )
    counts = tuple(
        (True, count) if type(count) is int else (False, count_arrays.place(count))
        for count in (logs._counts[key] for key in logs)
    )
    bounds = tuple(logs._bounds.items())
    structure = _Structure((tuple(logs), steps, counts, logs._stacked, bounds, len(step_arrays.items)))
    return [*logs.values(), *step_arrays.items, *count_arrays.items], structure


class _Distinct:
    """Arrays in the order in which they were first seen."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[int, int] = {}

    def place(self, array: Any) -> int:
        place = self._places.setdefault(id(array), len(self.items))
        if place == len(self.items):
            self.items.append(array)
        return place


def _flatten_with_keys(logs: logdict) -> tuple[list[tuple[Any, Any]], _Structure]:
    children, structure = _flatten(logs)
    names: list[Any] = [jax.tree_util.DictKey(key) for key in logs]
    names += [jax.tree_util.GetAttrKey(f"steps[{i}]") for i in range(structure.num_steps)]
    names += [jax.tree_util.GetAttrKey(f"counts[{i}]") for i in range(len(children) - len(names))]
    return list(zip(names, children, strict=True)), structure


def register(kind: type[logdict]) -> None:
    _Structure.kind = kind
    jax.tree_util.register_pytree_with_keys(kind, _flatten_with_keys, _Structure.fill, _flatten)
