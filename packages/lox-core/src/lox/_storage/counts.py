"""Counting records, on the device.

There are two kinds of counters. What is returned to the user is an int32, which ends at ``MAX_RECORDS`` and stays there: it then
means "that many, or more". What a mean is divided by is the sum of two floats, which is exact to 2**48 for float32. Both are one
array of one element: a second one would be carried through every loop.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._types import Array

MAX_RECORDS = 2**31 - 1
# A counter that went back by a period must still be beyond the first one.
MAX_PERIOD = 2**30


def period(records: int) -> int:
    """How far a full counter of something that repeats after so many records goes back.

    Where that would be too far, the plan has seen to it that the number of records is known, and no counter is ever full.
    """
    return records if records <= MAX_PERIOD else 1


def one_more(seen: Array, keep: Array | None = None, period: int = 1) -> Array:
    """``seen`` and the next record; where ``keep`` is false, there is none.

    A full counter goes back by ``period``, so that whatever repeats after so many records goes on as before.
    """
    back = np.int32(MAX_RECORDS - period)
    following = lax.add(lax.select(lax.eq(seen, np.int32(MAX_RECORDS)), lax.full_like(seen, back), seen), np.int32(1))
    return following if keep is None else lax.select(keep, following, seen)


def is_due(seen: Array, every: int, keep: Array | None) -> Array | None:
    """Whether the next record is one of ``every``; None: yes."""
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
    """The number of records of two logs together. Numbers of Python have no end."""
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return numpy.minimum(first, MAX_RECORDS - second) + second


# --- wide counts: the parts of a complex number ----------------------------------------------------------------------


def no_records(dtype: Any) -> Array:
    """A wide count for values of a real ``dtype``."""
    return jnp.zeros((), jnp.result_type(dtype, np.complex64))


def count_up(count: Array) -> Array:
    high, low = lax.real(count), lax.imag(count)
    term = lax.add(low, np.ones((), low.dtype))
    new_high = lax.add(high, term)
    return lax.complex(new_high, lax.sub(term, lax.sub(new_high, high)))


def rounded(count: Array) -> Array:
    """A wide count as one float."""
    return lax.real(count)
