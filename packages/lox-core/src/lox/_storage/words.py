"""Many small arrays as one vector of words.

A scan output, a carried value or an argument of a host call costs about the same for one number as for sixty. So the
small leaves of a record travel as one vector, bit for bit, and are unpacked at the other end: on the device
(``unpack``) or on the host (``unpack_numpy``). Words have 32 bits, or 16 or 8 if no leaf is wider. Large leaves, and
dtypes that do not fit, travel as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._jax import compat, sharding

# The entry in the metadata of a numpy dtype that names the generator of the PRNG keys in these words.
KEY_IMPL = "lox_prng_key"


def is_key(dtype: Any) -> bool:
    return not isinstance(dtype, np.dtype) and bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def key_impl(leaf: Any) -> str | None:
    return compat.key_impl_name(leaf.dtype) if is_key(leaf.dtype) else None


def label_key_words(words: np.ndarray, impl: str) -> np.ndarray:
    """The words of PRNG keys on the host, with the generator in the metadata of their dtype."""
    return words.view(np.dtype(words.dtype, metadata={KEY_IMPL: impl}))


def is_small(shape: Sequence[Any], limit: int) -> bool:
    """Whether an array has up to ``limit`` elements. A dimension need not be a number (``jax.export``)."""
    return all(isinstance(size, int) for size in shape) and math.prod(shape) <= limit


def can_be_packed(dtype: Any) -> bool:
    if is_key(dtype):
        return False
    dtype = np.dtype(dtype)
    return dtype.itemsize in (2, 4, 8) or (dtype.itemsize == 1 and dtype.kind in "biu")


def _of_one_width(packable: list[bool], dtypes: Sequence[Any]) -> list[bool]:
    """Those that need words of the width that most of them need."""
    widths = [min(np.dtype(dtype).itemsize, 4) if able else 0 for able, dtype in zip(packable, dtypes, strict=True)]
    usual = max((1, 2, 4), key=widths.count)
    return [width == usual for width in widths]


_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which leaves of given shapes and dtypes are packed into the word vector, and which stay outside it."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    packed: tuple[bool, ...]
    impls: tuple[str | None, ...]  # of the leaves that are PRNG keys
    turned: bool = True  # whether all rows are transposed into columns before they are unpacked on the device

    @classmethod
    def of(
        cls,
        leaves: Sequence[Any],
        limit: int,
        apart: Collection[int] = (),
        turned: bool = True,
        impls: tuple[str | None, ...] | None = None,
        mixed: bool = True,
    ) -> Layout:
        """Leaves of up to ``limit`` elements are packed, except those whose id is in ``apart`` and those that are split between
        devices, which packing would gather.

        Args:
          impls: which leaves are the words of PRNG keys.
          mixed: whether narrow leaves are packed with wide ones, in words that are too wide for them.
        """
        shapes = tuple(tuple(np.shape(leaf)) for leaf in leaves)
        dtypes = tuple(leaf.dtype for leaf in leaves)
        packable = [
            can_be_packed(dtype)
            and is_small(shape, limit)
            and math.prod(shape) > 0
            and id(leaf) not in apart
            and not sharding.is_split(leaf)
            for leaf, shape, dtype in zip(leaves, shapes, dtypes, strict=True)
        ]
        if not mixed:
            packable = _of_one_width(packable, dtypes)
        if sum(packable) < 2:
            packable = [False] * len(packable)
        return cls(shapes, dtypes, tuple(packable), impls or tuple(map(key_impl, leaves)), turned)

    @property
    def num_arrays(self) -> int:
        """How many arrays ``pack`` makes."""
        return int(any(self.packed)) + sum(not packed for packed in self.packed)

    @functools.cached_property
    def _word(self) -> np.dtype[Any]:
        """As wide as the widest packed leaf, up to 32 bits, so narrow leaves take no extra memory."""
        widths = [np.dtype(dtype).itemsize for dtype, packed in zip(self.dtypes, self.packed, strict=True) if packed]
        return _WORDS[min(max(widths), 4)]

    @functools.cached_property
    def _places(self) -> dict[int, tuple[int, int]]:
        """Where in the words each packed leaf begins and ends."""
        small = [i for i, packed in enumerate(self.packed) if packed]
        sizes = [
            math.prod(self.shapes[i]) * max(np.dtype(self.dtypes[i]).itemsize // self._word.itemsize, 1) for i in small
        ]
        return dict(zip(small, itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True))

    def pack(self, leaves: Sequence[Any]) -> list[Any]:
        """``[words, *unpacked leaves]``, or just the leaves if nothing is packed."""
        small = [leaf for leaf, packed in zip(leaves, self.packed, strict=True) if packed]
        large = [leaf for leaf, packed in zip(leaves, self.packed, strict=True) if not packed]
        return [self.pack_words(small), *large] if small else large

    def pack_words(self, small: Sequence[Any]) -> Any:
        """The word vector of the leaves that are packed."""
        with compat.mode_for(self.dtypes):
            return _join_words([_to_words(leaf, self._word) for leaf in small])

    def unpack(self, arrays: Sequence[Any]) -> list[Any]:
        """The inverse of ``pack``; leading axes (records) are kept."""
        return self._beside(arrays, self.unpack_words)

    def unpack_words(self, words: Any) -> dict[int, Any]:
        """The packed leaves, by place."""

        def words_first(array: Any) -> Any:
            return lax.transpose(array, (array.ndim - 1, *range(array.ndim - 1)))

        def slices() -> Iterator[tuple[int, Any]]:
            if self.turned:  # a column is then contiguous
                columns = words_first(words)
                yield from ((i, lax.slice_in_dim(columns, *place)) for i, place in self._places.items())
            else:
                for i, place in self._places.items():
                    yield i, words_first(lax.slice_in_dim(words, *place, axis=words.ndim - 1))

        with compat.mode_for(self.dtypes):
            return {i: _from_words(found, self.shapes[i], self.dtypes[i]) for i, found in slices()}

    def packed_leaves(self, arrays: Sequence[Any]) -> list[Any]:
        """What ``unpack`` returns, but packed leaves are not unpacked until they are needed."""
        words = arrays[0] if any(self.packed) else None
        large = iter(arrays[1:] if any(self.packed) else arrays)
        return [PackedLeaf(words, self, i) if packed else next(large) for i, packed in enumerate(self.packed)]

    def unpack_numpy(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What ``unpack`` returns, on the host. It runs in each host call."""
        leaves = self._beside(arrays, self._unpack_words_numpy)
        if any(self.impls):
            return [
                label_key_words(leaf, impl) if impl else leaf for leaf, impl in zip(leaves, self.impls, strict=True)
            ]
        return leaves

    def _unpack_words_numpy(self, words: np.ndarray) -> dict[int, np.ndarray]:
        turned = np.ascontiguousarray(words.transpose(words.ndim - 1, *range(words.ndim - 1)))
        return {
            i: turned[start, ...].view(dtype) if dtype is not None else self._leaf_numpy(words, i)
            for (i, (start, _)), dtype in zip(self._places.items(), self._plain, strict=True)
        }

    @functools.cached_property
    def _plain(self) -> list[np.dtype[Any] | None]:
        """The dtype of each packed leaf that can be read as one word; None for the others."""
        dtypes = [(np.dtype(self.dtypes[i]), self.shapes[i]) for i in self._places]
        return [
            dtype if shape == () and dtype.itemsize == self._word.itemsize and dtype != np.bool_ else None
            for dtype, shape in dtypes
        ]

    def _leaf_numpy(self, words: np.ndarray, i: int) -> np.ndarray:
        start, end = self._places[i]
        return _from_words_numpy(words[..., start:end], self.shapes[i], self.dtypes[i])

    def _beside(self, arrays: Sequence[Any], unpack_words: Callable[[Any], dict[int, Any]]) -> list[Any]:
        """All leaves, packed and unpacked."""
        if not self._places:
            return list(arrays)
        small, large = unpack_words(arrays[0]), iter(arrays[1:])
        return [small[i] if packed else next(large) for i, packed in enumerate(self.packed)]


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLeaf:
    """A leaf that is still packed in a word vector: leaf ``place`` of ``layout``."""

    words: Any
    layout: Layout
    place: int


# --- device ----------------------------------------------------------------------------------------------------------
# This uses lax because it is traced for every scan, and each jnp function would be a jitted function of its own.


def _to_words(leaf: Any, word: np.dtype[Any]) -> Any:
    dtype = np.dtype(leaf.dtype)
    flat = lax.reshape(leaf, (math.prod(leaf.shape),))
    if dtype.kind == "c":
        parts = [lax.expand_dims(part, (1,)) for part in (lax.real(flat), lax.imag(flat))]
        flat, dtype = lax.concatenate(parts, 1), np.dtype(parts[0].dtype)
        return lax.reshape(lax.bitcast_convert_type(flat, np.uint32), (flat.size * dtype.itemsize // 4,))
    if dtype == np.bool_:
        return lax.convert_element_type(flat, word)
    if dtype.itemsize < 4:
        return lax.convert_element_type(lax.bitcast_convert_type(flat, _WORDS[dtype.itemsize]), word)
    words = lax.bitcast_convert_type(flat, word)
    return words if words.ndim == 1 else lax.reshape(words, (words.size,))


# XLA's CPU compiler makes a kernel for each operand of a longer concatenation, and runs a loop body with more than a
# few kernels several times slower: at 64 scalars, a vector built by selects is twenty times as fast.
_SELECTED_TOGETHER = 16
_FUSED_OPERANDS = 8
# In a loop inside another one, XLA computes what these selects compare before the inner loop, and then reads it in each
# iteration. A few pieces are padded instead, which takes as long in any other loop.
_PADDED_TOGETHER = 12


# Longer pieces are not worth it: each of them would be looked at for every word of the vector.
_MAX_SELECTED_WORDS = 128


def _join_words(pieces: list[Any]) -> Any:
    if any(piece.size > _MAX_SELECTED_WORDS for piece in pieces):
        return lax.concatenate(pieces, 0)
    if len(pieces) <= _PADDED_TOGETHER:
        return _overlay_words(pieces)
    size = max(_SELECTED_TOGETHER, -(-len(pieces) // _FUSED_OPERANDS))
    groups = [_merge_words(pieces[i : i + size]) for i in range(0, len(pieces), size)]
    return groups[0] if len(groups) == 1 else lax.concatenate(groups, 0)


def _overlay_words(pieces: list[Any]) -> Any:
    """One vector out of a few, each with zeros around it."""
    total, start, merged = sum(piece.size for piece in pieces), 0, None
    for piece in pieces:
        end = start + piece.size
        spread = lax.pad(piece, piece.dtype.type(0), [(start, total - end, 0)])
        merged = spread if merged is None else lax.bitwise_or(merged, spread)
        start = end
    return merged


def _merge_words(pieces: list[Any]) -> Any:
    """One vector out of a few, element by element: each place selects the piece it belongs to."""
    total = sum(piece.size for piece in pieces)
    place = lax.iota(np.int32, total)
    merged, start = None, 0
    for piece in pieces:
        end = start + piece.size
        if piece.size == 1:
            spread = lax.broadcast_in_dim(lax.squeeze(piece, (0,)), (total,), ())
        else:
            spread = lax.pad(piece, piece.dtype.type(0), [(start, total - end, 0)])
        # Pieces come in order: the next ones overwrite what is after the end of this one.
        merged = spread if merged is None else lax.select(lax.ge(place, np.int32(start)), spread, merged)
        start = end
    return merged


def _from_words(words: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    dtype, rows = np.dtype(dtype), words.shape[1:]
    elements = math.prod(shape)
    if dtype == np.bool_:
        flat = lax.ne(words, words.dtype.type(0))
    elif dtype.itemsize < 4:
        flat = lax.bitcast_convert_type(lax.convert_element_type(words, _WORDS[dtype.itemsize]), dtype)
    elif dtype.itemsize == 4:
        flat = lax.bitcast_convert_type(words, dtype)
    else:
        pairs = jnp.moveaxis(lax.reshape(words, (elements, 2, *rows)), 1, -1)
        if dtype.kind == "c":
            parts = lax.bitcast_convert_type(pairs, np.float32)
            flat = lax.complex(parts[..., 0], parts[..., 1])
        else:
            flat = lax.bitcast_convert_type(pairs, dtype)
    if elements > 1:
        flat = lax.transpose(flat, (*range(1, flat.ndim), 0))
    return lax.reshape(flat, rows + shape)


# --- host ------------------------------------------------------------------------------------------------------------


def _from_words_numpy(words: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    dtype, rows = np.dtype(dtype), words.shape[:-1]
    if dtype == np.bool_:
        flat = words.astype(bool)
    elif dtype.itemsize < 4:
        flat = words.astype(_WORDS[dtype.itemsize]).view(dtype)
    else:
        flat = np.ascontiguousarray(words).view(dtype)
    return flat.reshape(rows + shape)
