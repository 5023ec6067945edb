"""Records on their way out of a traced function body.

``Rows`` holds, for each key, the records so far as chunks: single records, or stacks of them that a loop returned.
It is a pytree with static structure, so it passes through ``jit``, ``scan`` and ``cond`` as an ordinary output.
Arrays that several keys share (the steps of their record, the words that a loop packed their values into) are one leaf.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax import lax

from lox._storage.words import Layout, PackedLeaf
from lox._types import Array

Leaf: TypeAlias = Array | PackedLeaf
"""What a row holds: an array (a numpy array if it is constant), or a leaf that is still packed in words."""


class Chunk(NamedTuple):
    """One record, or the records of nested loops. The leading axes of its arrays are then the iterations, outermost first.

    These axes are merged into one, and packed leaves are unpacked, once at the end and not at every level.
    """

    leaves: tuple[Leaf, ...]
    steps: tuple[tuple[str, Leaf], ...]
    where: Leaf | None = None
    lengths: tuple[int, ...] = ()

    def arrays(self) -> list[Leaf]:
        where = [] if self.where is None else [self.where]
        return [*self.leaves, *(step for _, step in self.steps), *where]

    def unpacked(self) -> list[Array]:
        """The arrays of a chunk of flat rows, in which nothing is packed."""
        arrays = [array for array in self.arrays() if not isinstance(array, PackedLeaf)]
        assert len(arrays) == len(self.arrays())
        return arrays

    def replace(self, arrays: Sequence[Leaf], lengths: tuple[int, ...]) -> Chunk:
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
        """At most one chunk per key, as a loop body or a branch returns it. Keys in ``looped`` get a record axis."""
        join = SharedJoin()

        def one(key: str, chunks: tuple[Chunk, ...]) -> Chunk:
            as_it_is = len(chunks) == 1 and (key not in looped or chunks[0].lengths)
            return chunks[0] if as_it_is else join(chunks)

        return Rows({key: (one(key, chunks),) for key, chunks in self.items()})

    def flat(self) -> Rows:
        """The rows with one record axis, to compare the rows of two functions whose loops may nest differently."""
        join = SharedJoin()

        def flat(chunk: Chunk) -> Chunk:
            return join((chunk,)) if chunk.lengths else chunk

        return Rows({key: tuple(map(flat, chunks)) for key, chunks in self.items()})

    def of_inner_loops(self) -> set[int]:
        """The ids of the arrays that loops inside have returned."""
        chunks = [chunk for chunks in self.values() for chunk in chunks if chunk.lengths]
        return {id(_carrier(array)) for chunk in chunks for array in chunk.arrays()}

    def of_iterations(self, length: int, reverse: bool) -> Rows:
        """Rows with the iterations of a loop leading, in the order in which the program made them."""
        turned: dict[int, Array] = {}

        def in_order(array: Leaf) -> Leaf:
            if not reverse:
                return array
            if isinstance(array, PackedLeaf):
                return PackedLeaf(in_order(array.words), array.layout, array.place)
            if id(array) not in turned:
                turned[id(array)] = lax.rev(array, (0,))
            return turned[id(array)]

        return Rows(
            {
                key: tuple(
                    chunk.replace([*map(in_order, chunk.arrays())], (length, *chunk.lengths)) for chunk in chunks
                )
                for key, chunks in self.items()
            }
        )


def _carrier(array: Leaf) -> Array:
    """The array that a value is, or is packed in."""
    return array.words if isinstance(array, PackedLeaf) else array


class SharedJoin:
    """Joins chunks along one record axis; keys whose chunks share their steps share the joined steps."""

    def __init__(self) -> None:
        self._joined: dict[Any, Array] = {}
        self._unpacked: dict[Any, dict[int, Array]] = {}

    def __call__(self, chunks: tuple[Chunk, ...]) -> Chunk:
        columns = zip(*(chunk.arrays() for chunk in chunks), strict=True)
        lengths = tuple(chunk.lengths for chunk in chunks)
        arrays = [self._join(column, lengths) for column in columns]
        return chunks[0].replace(arrays, (sum(chunk.rows for chunk in chunks),))

    def _join(self, column: tuple[Leaf, ...], lengths: tuple[tuple[int, ...], ...]) -> Array:
        # The arrays alone would not do: the same array can be a record and a stack of records.
        label = (tuple(map(_identity, column)), lengths)
        if label not in self._joined:
            parts = [self._with_record_axis(x, of) for x, of in zip(column, lengths, strict=True)]
            concatenate: Any = np.concatenate if all(isinstance(x, np.ndarray) for x in parts) else lax.concatenate
            self._joined[label] = parts[0] if len(parts) == 1 else concatenate(parts, 0)
        return self._joined[label]

    def _with_record_axis(self, array: Leaf, lengths: tuple[int, ...]) -> Array:
        if isinstance(array, PackedLeaf):
            label = (id(array.words), array.layout, lengths)
            if label not in self._unpacked:
                self._unpacked[label] = array.layout.unpack_words(self._with_record_axis(array.words, lengths))
            return self._unpacked[label][array.place]
        if len(lengths) == 1:
            return array
        shape = (math.prod(lengths), *np.shape(array)[len(lengths) :])
        return array.reshape(shape) if isinstance(array, np.ndarray) else lax.reshape(array, shape)


def _identity(array: Leaf) -> Any:
    return (id(array.words), array.layout, array.place) if isinstance(array, PackedLeaf) else id(array)


# --- Rows as a pytree ------------------------------------------------------------------------------------------------

# Where the value of a leaf is: the number of an array and, if that is a word vector, the place in it.
Where = tuple[int, tuple[Layout, int] | None]


def _flatten(rows: Rows) -> tuple[list[Array], Any]:
    numbers: dict[int, int] = {}
    distinct: list[Array] = []

    def where(array: Leaf) -> Where:
        carrier = _carrier(array)
        if id(carrier) not in numbers:
            numbers[id(carrier)] = len(distinct)
            distinct.append(carrier)
        return numbers[id(carrier)], (array.layout, array.place) if isinstance(array, PackedLeaf) else None

    structure = tuple(
        (
            key,
            tuple(
                (
                    len(chunk.leaves),
                    tuple(axis for axis, _ in chunk.steps),
                    chunk.where is not None,
                    chunk.lengths,
                    tuple(map(where, chunk.arrays())),
                )
                for chunk in chunks
            ),
        )
        for key, chunks in rows.items()
    )
    return distinct, structure


def _unflatten(structure: Any, arrays: Any) -> Rows:
    arrays = list(arrays)

    def at(where: Where) -> Leaf:
        number, place = where
        return arrays[number] if place is None else PackedLeaf(arrays[number], *place)

    rows = Rows()
    for key, described in structure:
        chunks = []
        for num_leaves, axes, masked, lengths, places in described:
            rest = [*map(at, places)]
            steps = tuple(zip(axes, rest[num_leaves:], strict=False))
            chunks.append(Chunk(tuple(rest[:num_leaves]), steps, rest[-1] if masked else None, lengths))
        rows[key] = tuple(chunks)
    return rows


jax.tree_util.register_pytree_node(Rows, _flatten, _unflatten)
