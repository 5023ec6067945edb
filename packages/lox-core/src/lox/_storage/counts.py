"""Counting records on the device.

There are two kinds of counters. The count that users get is an int32 that stops at ``MAX_RECORDS``, which then means "that many,
or more". The count that means are divided by is the sum of two floats, exact up to 2**48 for float32. Each is a single array of
one element, because every array is carried through all loops.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._types import Array

MAX_RECORDS = 2**31 - 1
# A full counter that goes back by one period must stay above the first period.
MAX_PERIOD = 2**30


def period(records: int) -> int:
    """How far a full counter goes back, if what it counts repeats after this many records.

    If that would be too far, the plan has made sure that the number of records is known, so no counter is ever full.
    """
    return records if records <= MAX_PERIOD else 1


def one_more(seen: Array, keep: Array | None = None, period: int = 1) -> Array:
    """``seen`` plus one, unless ``keep`` is false.

    A full counter goes back by ``period``, so that what repeats after that many records continues as before.
    """
    back = np.int32(MAX_RECORDS - period)
    following = lax.add(lax.select(lax.eq(seen, np.int32(MAX_RECORDS)), lax.full_like(seen, back), seen), np.int32(1))
    return following if keep is None else lax.select(keep, following, seen)


def one_of_few_more(seen: Array, keep: Array | None = None) -> Array:
    """``one_more`` for a counter that is known never to be full."""
    following = lax.add(seen, np.int32(1))
    return following if keep is None else lax.select(keep, following, seen)


def is_due(seen: Array, every: int, keep: Array | None) -> Array | None:
    """Whether the next record is stored: every ``every``-th one is; None if it always is."""
    if every == 1:
        return keep
    due = lax.eq(lax.rem(seen, np.int32(every)), np.int32(0))
    return due if keep is None else lax.bitwise_and(due, keep)


def kept(seen: Array, every: int) -> Array:
    """How many of the records so far were due."""
    if every == 1:
        return seen
    begun = lax.convert_element_type(lax.ne(lax.rem(seen, np.int32(every)), np.int32(0)), np.int32)
    return lax.add(lax.div(seen, np.int32(every)), begun)


def total(seen: Array, every: int, period: int) -> Array:
    """How many records were due; ``MAX_RECORDS`` if the counter was full."""
    was_full = lax.gt(seen, np.int32(MAX_RECORDS - period))
    return lax.select(was_full, lax.full_like(seen, MAX_RECORDS), kept(seen, every))


def add_counts(first: Any, second: Any, numpy: Any) -> Any:
    """The number of records of two logs together. Only arrays are limited to ``MAX_RECORDS``; Python numbers are not."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return numpy.minimum(first, MAX_RECORDS - second) + second


# --- wide counts: the parts of a complex number ----------------------------------------------------------------------


def wide_dtype(dtype: Any) -> Any:
    """Of a wide count for values of a real ``dtype``; not by promotion, which a user may have forbidden."""
    return np.dtype(np.complex128 if np.dtype(dtype).itemsize == 8 else np.complex64)


def no_records(dtype: Any) -> Array:
    """A wide count of zero, for values of a real ``dtype``."""
    return jnp.zeros((), wide_dtype(dtype))


def narrowed(count: Array) -> Array:
    """A wide count as an int32, where that is enough: it is the counter of the loop, which is there already."""
    return lax.convert_element_type(lax.real(count), np.int32)


def count_up(count: Array) -> Array:
    if np.dtype(count.dtype).kind == "i":
        return lax.add(count, np.int32(1))
    high, low = lax.real(count), lax.imag(count)
    term = lax.add(low, np.ones((), low.dtype))
    new_high = lax.add(high, term)
    return lax.complex(new_high, lax.sub(term, lax.sub(new_high, high)))


def rounded(count: Array) -> Array:
    """A wide count as one float; a narrow one as it is."""
    return count if np.dtype(count.dtype).kind == "i" else lax.real(count)
