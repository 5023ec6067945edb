"""Records on their way out of a traced function body.

``Rows`` holds, for each key, the records so far as chunks: single records, or stacks of them that a loop returned.
It is a pytree with static structure, so that it passes through ``jit``, ``scan`` and ``cond`` as an ordinary output.
Arrays that several keys share (the steps of their record) are one leaf.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from jax import lax

Array = Any


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One record, or those of nested loops: the first axes of its arrays are then the iterations, outermost first.

    They become one axis at the end, so that nothing is reshaped at every level.
    """

    leaves: tuple[Array, ...]
    steps: tuple[tuple[str, Array], ...]
    where: Array | None = None
    lengths: tuple[int, ...] = ()

    def arrays(self) -> list[Array]:
        where = [] if self.where is None else [self.where]
        return [*self.leaves, *(step for _, step in self.steps), *where]

    def replace(self, arrays: list[Array], lengths: tuple[int, ...]) -> Chunk:
        rest = iter(arrays)
        leaves = tuple(next(rest) for _ in self.leaves)
        steps = tuple((axis, next(rest)) for axis, _ in self.steps)
        return Chunk(leaves, steps, None if self.where is None else next(rest), lengths)

    @property
    def rows(self) -> int:
        return math.prod(self.lengths)


class Rows(dict[str, tuple[Chunk, ...]]):
    """Chunks by key, in order."""

    def append(self, key: str, chunk: Chunk) -> None:
        self[key] = (*self.get(key, ()), chunk)

    def extend(self, other: Rows) -> None:
        for key, chunks in other.items():
            self[key] = (*self.get(key, ()), *chunks)

    def stack(self, looped: Collection[str] = ()) -> Rows:
        """At most one chunk per key, what a loop body or a branch returns; for keys in ``looped`` with a record axis."""
        join = SharedJoin()

        def one(key: str, chunks: tuple[Chunk, ...]) -> Chunk:
            as_it_is = len(chunks) == 1 and (key not in looped or chunks[0].lengths)
            return chunks[0] if as_it_is else join(chunks)

        return Rows({key: (one(key, chunks),) for key, chunks in self.items()})

    def flat(self) -> Rows:
        """With one record axis: for those who compare the rows of two functions, whose loops may nest differently."""
        join = SharedJoin()

        def flat(chunk: Chunk) -> Chunk:
            return join((chunk,)) if len(chunk.lengths) > 1 else chunk

        return Rows({key: tuple(map(flat, chunks)) for key, chunks in self.items()})


class SharedJoin:
    """Joins chunks along one record axis; keys whose chunks share their steps share the joined steps."""

    def __init__(self) -> None:
        self._joined: dict[Any, Array] = {}

    def __call__(self, chunks: tuple[Chunk, ...]) -> Chunk:
        columns = zip(*(chunk.arrays() for chunk in chunks), strict=True)
        lengths = tuple(chunk.lengths for chunk in chunks)
        arrays = [self._join(column, lengths) for column in columns]
        return chunks[0].replace(arrays, (sum(chunk.rows for chunk in chunks),))

    def _join(self, column: tuple[Array, ...], lengths: tuple[tuple[int, ...], ...]) -> Array:
        # Not the arrays alone: one can be both a record and a stack of them.
        label = (tuple(map(id, column)), lengths)
        if label not in self._joined:
            numpy = all(isinstance(x, np.ndarray) for x in column)
            parts = [_with_record_axis(x, of, numpy) for x, of in zip(column, lengths, strict=True)]
            concatenate = np.concatenate if numpy else lax.concatenate
            self._joined[label] = parts[0] if len(parts) == 1 else concatenate(parts, 0)
        return self._joined[label]


def _with_record_axis(array: Array, lengths: tuple[int, ...], numpy: bool) -> Array:
    if len(lengths) == 1:
        return array
    shape = (math.prod(lengths), *np.shape(array)[len(lengths) :])
    return np.reshape(array, shape) if numpy else lax.reshape(array, shape)


def _flatten(rows: Rows) -> tuple[list[Array], Any]:
    places: dict[int, int] = {}
    distinct: list[Array] = []
    structure = []
    for key, chunks in rows.items():
        described = []
        for chunk in chunks:
            indices = []
            for array in chunk.arrays():
                if id(array) not in places:
                    places[id(array)] = len(distinct)
                    distinct.append(array)
                indices.append(places[id(array)])
            axes = tuple(axis for axis, _ in chunk.steps)
            described.append((len(chunk.leaves), axes, chunk.where is not None, chunk.lengths, tuple(indices)))
        structure.append((key, tuple(described)))
    return distinct, tuple(structure)


def _unflatten(structure: Any, arrays: Any) -> Rows:
    arrays = list(arrays)
    rows = Rows()
    for key, described in structure:
        chunks = []
        for num_leaves, axes, masked, lengths, indices in described:
            rest = [arrays[i] for i in indices]
            steps = tuple(zip(axes, rest[num_leaves:], strict=False))
            chunks.append(Chunk(tuple(rest[:num_leaves]), steps, rest[-1] if masked else None, lengths))
        rows[key] = tuple(chunks)
    return rows


jax.tree_util.register_pytree_node(Rows, _flatten, _unflatten)
