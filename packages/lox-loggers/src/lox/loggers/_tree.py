"""Taking nested values apart into named leaves, and putting them together again without knowing their classes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from lox.loggers._histogram import FIELDS, SUMMARY, Histogram

# The path to a leaf: at each level, the kind of container and the name or number in it.
Path = tuple[tuple[str, str | int], ...]

_HISTOGRAM = "histogram"  # the kind of its counts also has the edges, as JSON


def leaves_of(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """The leaves with their paths. Classes that are pytrees but not JSON are taken apart into their fields."""
    if type(value) is np.ndarray:
        return [(path, value)]
    if type(value) is dict:
        return [leaf for name in value for leaf in leaves_of(value[name], (*path, ("dict", _name(name))))]
    if type(value) in (list, tuple):
        kind = type(value).__name__
        return [leaf for i, child in enumerate(value) for leaf in leaves_of(child, (*path, (kind, i)))]
    if isinstance(value, Histogram):
        first, *others = FIELDS
        counts = ((*path, (f"{_HISTOGRAM} {json.dumps(value.edges.tolist())}", first)), value.counts)
        return [counts, *(((*path, (_HISTOGRAM, name)), getattr(value, name)) for name in others)]
    children = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)[0]
    if len(children) == 1 and not children[0][0]:
        return [(path, value)]
    return [leaf for (entry,), child in children for leaf in leaves_of(child, (*path, ("fields", _entry(entry))))]


def label(key: str, path: Path) -> str:
    """The name of a leaf of the value of a key."""
    return "/".join([key, *(str(part) for _, part in path)])


def names_of(key: str, path: Path) -> list[str]:
    """The names by which a leaf can be asked for. All leaves of a histogram have the same names, including those of its summary,
    because it is read as a whole."""
    for depth, (kind, _) in enumerate(path):
        if kind.startswith(_HISTOGRAM):
            return [label(key, (*path[:depth], (kind, name))) for name in (*FIELDS, *SUMMARY)]
    return [label(key, path)]


def tree_of(leaves: Iterable[tuple[Path, Any]]) -> Any:
    """The nested value with these leaves. An object of an unknown class becomes a dict of its fields."""
    leaves = list(leaves)
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    kind = leaves[0][0][0][0]
    groups: dict[str | int, list[tuple[Path, Any]]] = {}
    for (head, *rest), leaf in leaves:
        groups.setdefault(head[1], []).append((tuple(rest), leaf))
    children = {name: tree_of(group) for name, group in groups.items()}
    if kind.startswith(_HISTOGRAM):
        return Histogram.of_counts(
            json.loads(kind.removeprefix(_HISTOGRAM)), **{str(name): children[name] for name in FIELDS}
        )
    if kind == "list":
        return list(children.values())
    return tuple(children.values()) if kind == "tuple" else children


def describe_path(path: Path) -> str:
    """How an error names a leaf."""
    text = "".join(f"[{part!r}]" for _, part in path)
    for kind, _ in path:
        if kind.startswith(_HISTOGRAM) and kind != _HISTOGRAM:
            edges = json.loads(kind.removeprefix(_HISTOGRAM))
            text += f" (of {len(edges) - 1} bins from {edges[0]:g} to {edges[-1]:g})"
    return text or "one array"


def _name(name: Any) -> str | int:
    return name if isinstance(name, str | int) else str(name)


def _entry(entry: Any) -> str | int:
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return _name(getattr(entry, attribute))
    return str(entry)
