"""Nested values taken apart into named leaves, and put together again without knowing their classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

# The way to a leaf: at each level the kind of container and the name or number in it.
Path = tuple[tuple[str, str | int], ...]


def leaves_of(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """The leaves with their paths. Classes that JAX knows but JSON does not are taken as their fields."""
    if type(value) is dict:
        return [leaf for name in value for leaf in leaves_of(value[name], (*path, ("dict", _name(name))))]
    if type(value) in (list, tuple):
        kind = type(value).__name__
        return [leaf for i, child in enumerate(value) for leaf in leaves_of(child, (*path, (kind, i)))]
    children = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)[0]
    if len(children) == 1 and not children[0][0]:
        return [(path, value)]
    return [leaf for (entry,), child in children for leaf in leaves_of(child, (*path, ("fields", _entry(entry))))]


def label(key: str, path: Path) -> str:
    """The name of a leaf of the value of a key."""
    return "/".join([key, *(str(part) for _, part in path)])


def tree_of(leaves: Iterable[tuple[Path, Any]]) -> Any:
    """The nested value with these leaves; one whose class is unknown comes back as a dict of its fields."""
    leaves = list(leaves)
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    kind = leaves[0][0][0][0]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for (head, *rest), leaf in leaves:
        groups.setdefault(head[1], []).append((tuple(rest), leaf))
    children = {name: tree_of(group) for name, group in groups.items()}
    if kind == "list":
        return list(children.values())
    return tuple(children.values()) if kind == "tuple" else children


def _name(name: Any) -> str | int:
    return name if isinstance(name, str | int) else str(name)


def _entry(entry: Any) -> str | int:
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return _name(getattr(entry, attribute))
    return str(entry)
