"""Reductions: what the records of a key fold into.

A reducer sees one record at a time, so it runs inside a loop in constant memory. The built-in reducers work element
by element. Means are running means with a compensation term: they neither overflow nor stall, however many records
there are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._errors import LogTypeError, OptionError
from lox._storage import counts
from lox._storage.words import is_key
from lox._types import Array


class Reducer:
    """Folds records one by one. Subclass it to write your own.

    >>> class Range(lox.Reducer):
    ...     def init(self, aval):
    ...         return jnp.full(aval.shape, jnp.inf), jnp.full(aval.shape, -jnp.inf)
    ...     def update(self, state, value):
    ...         return jnp.minimum(state[0], value), jnp.maximum(state[1], value)
    ...     def finish(self, state):
    ...         return state[1] - state[0]
    >>> def f(xs):
    ...     jax.lax.map(lambda x: lox.log({"x": x}, reduce=Range()), xs)
    >>> print(lox.spool(f)(jnp.array([1.0, 5.0, 3.0]))[1])
    {'x': 4.0}
    """

    def init(self, aval: jax.ShapeDtypeStruct) -> Any:
        """The state before the first record; ``aval`` has the record's shape and dtype."""
        raise NotImplementedError

    def update(self, state: Any, value: Array) -> Any:
        """The state after one more record. Shapes and dtypes must not change."""
        raise NotImplementedError

    def finish(self, state: Any) -> Any:
        """The result."""
        return state

    # True if `update` treats each element separately. Records of several keys can then be folded as one vector.
    elementwise = False

    @property
    def name(self) -> str:
        """The name of the result, for keys with several reductions."""
        return type(self).__name__.lower()


class _Builtin(Reducer):
    elementwise = True


def _float_for(dtype: Any) -> Any:
    """The dtype in which values of ``dtype`` are averaged."""
    if jnp.issubdtype(dtype, jnp.inexact) and np.dtype(dtype).itemsize >= 4:
        return dtype
    return jnp.zeros((), jnp.float32).dtype


def _result_float(dtype: Any) -> Any:
    return dtype if jnp.issubdtype(dtype, jnp.inexact) else _float_for(dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Running:
    """A running mean, ``high + low``, of the halves of ``count`` values (a wide count).

    The difference of two halves does not overflow, as that of two large values of different signs would.

    Both parts are one array: two arrays would mean two kernels, and copies, in a loop. They are the two parts of a complex
    number, which XLA updates in place. Complex values are pairs of real ones, so one part can be infinite and the other not.
    """

    count: Any  # None while it is that of another one (`share_counts`)
    pair: Array
    dtype: Any = dataclasses.field(metadata={"static": True})

    @classmethod
    def empty(cls, aval: Any) -> _Running:
        zero = jnp.zeros((*_pair_axis(aval.dtype), *aval.shape), _real(_float_for(aval.dtype)))
        return cls(counts.no_records(zero.dtype), lax.complex(zero, zero), aval.dtype)

    @property
    def count_dtype(self) -> Any:
        """Of a wide count; states for which it is the same can share one."""
        return counts.wide_dtype(_real(_float_for(self.dtype)))

    def parts(self) -> tuple[Array, Array]:
        return lax.real(self.pair), lax.imag(self.pair)

    # This uses lax because it is traced for every record, and each operator of an array would be a jitted function of its own.

    def add(self, value: Array) -> _Running:
        high, low = self.parts()
        value = self.half(value)
        count = counts.count_up(self.count)
        number = lax.convert_element_type(counts.rounded(count), high.dtype)
        number = lax.expand_dims(number, tuple(range(np.ndim(high))))
        # `low` holds what `high` could not: without it the mean stalls once a step is below half a unit in its last
        # place.
        difference = lax.sub(value, high)
        step = lax.add(lax.div(lax.sub(difference, low), number), low)
        # Then the mean, which is between the two, is finite too. To ask it would take until the division is done.
        finite = lax.is_finite(difference)
        # A TPU sets aside more memory if the result is selected, and not the step.
        step = lax.select(finite, step, value)
        new_high = lax.add(high, step)
        # If `new_high` is not finite, the differences below would turn inf into nan.
        new_low = lax.select(finite, lax.sub(step, lax.sub(new_high, high)), lax.full_like(step, 0))
        return _Running(count, lax.complex(new_high, new_low), self.dtype)

    def half(self, value: Array) -> Array:
        """Half of a value, as the parts have it."""
        value = lax.convert_element_type(value, _float_for(self.dtype))
        if _pair_axis(self.dtype):
            value = jnp.stack([lax.real(value), lax.imag(value)])
        return lax.mul(value, lax.full_like(value, 0.5))

    def value(self) -> Array:
        high, low = self.parts()
        # Without any values this is 0 / 0. (Selecting a nan constant would trip jax_debug_nans for all others.)
        number = counts.rounded(self.count)
        one = lax.convert_element_type(lax.ne(number, lax.full_like(number, 0)), high.dtype)
        # A TPU sets aside more memory if the sum is divided, and not the low part.
        half = lax.add(high, lax.div(low, lax.expand_dims(one, tuple(range(np.ndim(low))))))
        mean = lax.add(half, half)
        return lax.complex(mean[0], mean[1]) if _pair_axis(self.dtype) else mean


def _pair_axis(dtype: Any) -> tuple[int, ...]:
    """The axis that a running mean has in front of the shape of complex values."""
    return (2,) if np.dtype(_float_for(dtype)).kind == "c" else ()


def _is_running(node: Any) -> bool:
    return isinstance(node, _Running)


def start_counts(folds: Any, wide: bool) -> Any:
    """First states, counted in 32 bits if that is enough."""

    def one(node: Any) -> Any:
        return dataclasses.replace(node, count=counts.narrowed(node.count)) if _is_running(node) else node

    return share_counts(folds if wide else jax.tree.map(one, folds, is_leaf=_is_running))


def share_counts(folds: Any) -> Any:
    """States of records that are always made together, with one count for all: each would be carried through the loop."""
    known: set[Any] = set()

    def one(node: Any) -> Any:
        if not _is_running(node):
            return node
        is_known = node.count_dtype in known
        known.add(node.count_dtype)
        return dataclasses.replace(node, count=None) if is_known else node

    return jax.tree.map(one, folds, is_leaf=_is_running)


def with_counts(folds: Any) -> Any:
    """The inverse of ``share_counts``."""
    known: dict[Any, Array] = {}

    def one(node: Any) -> Any:
        if not _is_running(node):
            return node
        count = known.setdefault(node.count_dtype, node.count)
        return node if node.count is not None else dataclasses.replace(node, count=count)

    return jax.tree.map(one, folds, is_leaf=_is_running)


def _is_finite(x: Array) -> Array:
    if np.dtype(x.dtype).kind == "c":
        return lax.bitwise_and(lax.is_finite(lax.real(x)), lax.is_finite(lax.imag(x)))
    return lax.is_finite(x)


def _real(dtype: Any) -> Any:
    return np.finfo(dtype).dtype if np.dtype(dtype).kind == "c" else dtype


class _Mean(_Builtin):
    def init(self, aval: Any) -> _Running:
        return _Running.empty(aval)

    def update(self, state: _Running, value: Array) -> _Running:
        return state.add(value)

    def finish(self, state: _Running) -> Array:
        return lax.convert_element_type(state.value(), _result_float(state.dtype))


class _Std(_Builtin):
    """Welford's algorithm; the variance is a running mean too. It is that of the halves."""

    def init(self, aval: Any) -> tuple[_Running, _Running]:
        mean = _Running.empty(aval)
        spread = jax.ShapeDtypeStruct(aval.shape, _real(_float_for(aval.dtype)))
        return mean, _Running.empty(spread)

    def update(self, state: Any, value: Array) -> Any:
        mean, variance = state
        new_mean = mean.add(value)
        (high, low), (new_high, new_low) = mean.parts(), new_mean.parts()
        value = mean.half(value)
        before = lax.sub(lax.sub(value, high), low)
        after = lax.sub(lax.sub(value, new_high), new_low)
        spread = lax.mul(before, after)
        return new_mean, variance.add(lax.add(spread[0], spread[1]) if _pair_axis(mean.dtype) else spread)

    def finish(self, state: Any) -> Array:
        mean, variance = state
        result = _result_float(mean.dtype)
        return (2 * jnp.sqrt(jnp.maximum(variance.value(), 0))).astype(_real(result))


class _Sum(_Builtin):
    """Compensated sums: what rounding drops is kept and added later. Half floats are summed, and returned, as float32."""

    def init(self, aval: Any) -> tuple[Array, Array]:
        dtype = self._dtype(aval.dtype)
        return jnp.zeros(aval.shape, dtype), jnp.zeros(aval.shape, dtype)

    @staticmethod
    def _dtype(dtype: Any) -> Any:
        if jnp.issubdtype(dtype, jnp.inexact):
            return _float_for(dtype)
        if dtype.itemsize == 1 and dtype.kind == "V":  # int4 and similar types, which jnp does not sum
            return jnp.zeros((), jnp.int32).dtype
        return jnp.sum(jnp.zeros((1,), dtype)).dtype

    def update(self, state: Any, value: Array) -> Any:
        total, rest = state
        value = lax.convert_element_type(value, total.dtype)
        if not jnp.issubdtype(total.dtype, jnp.inexact):
            return lax.add(total, value), rest
        term = lax.add(value, rest)
        new_total = lax.add(total, term)
        lost = lax.sub(term, lax.sub(new_total, total))
        return new_total, lax.select(_is_finite(new_total), lost, lax.full_like(lost, 0))

    def finish(self, state: Any) -> Array:
        return state[0]


class _Extreme(_Builtin):
    def __init__(self, largest: bool) -> None:
        self._pick = lax.max if largest else lax.min
        self._largest = largest

    def init(self, aval: Any) -> Array:
        dtype = np.dtype(aval.dtype)
        if dtype == np.bool_:
            start: Any = not self._largest
        elif jnp.issubdtype(dtype, jnp.integer):
            start = jnp.iinfo(dtype).min if self._largest else jnp.iinfo(dtype).max
        elif jnp.issubdtype(dtype, jnp.floating):
            start = -jnp.inf if self._largest else jnp.inf
            if not np.isinf(np.asarray(start).astype(dtype).astype(np.float32)):  # small types without infinities
                start = jnp.finfo(dtype).min if self._largest else jnp.finfo(dtype).max
        else:
            raise OptionError(f"lox: {'max' if self._largest else 'min'} of {dtype} values is not defined")
        return jnp.full(aval.shape, start, dtype)

    def update(self, state: Array, value: Array) -> Array:
        return self._pick(state, value)


class _Count(_Builtin):
    elementwise = False

    def init(self, aval: Any) -> Array:
        del aval
        return jnp.zeros((), jnp.int32)

    def update(self, state: Array, value: Array) -> Array:
        del value
        return counts.one_more(state)


class _First(_Builtin):
    def init(self, aval: Any) -> Any:
        return jnp.zeros((), bool), jnp.zeros(aval.shape, aval.dtype)

    def update(self, state: Any, value: Array) -> Any:
        seen, first = state
        return jnp.ones((), bool), lax.select(seen, first, value)

    def finish(self, state: Any) -> Array:
        return state[1]


class _Last(_Builtin):
    def init(self, aval: Any) -> Array:
        return jnp.zeros(aval.shape, aval.dtype)

    def update(self, state: Array, value: Array) -> Array:
        del state
        return value


FIRST = _First()

_REDUCERS: dict[str, Reducer] = {
    "mean": _Mean(),
    "sum": _Sum(),
    "min": _Extreme(largest=False),
    "max": _Extreme(largest=True),
    "std": _Std(),
    "count": _Count(),
    "first": FIRST,
    "last": (_last := _Last()),
    "replace": _last,
}
APPEND = "append"


@dataclasses.dataclass(frozen=True)
class Reduction:
    """What a key folds into: named reducers, and whether all records are kept as well."""

    reducers: tuple[tuple[str, Reducer], ...]
    keep: bool  # "append"
    single: bool  # one reduction, not a tuple of them

    @property
    def is_append(self) -> bool:
        return not self.reducers

    @property
    def keeps_first_step(self) -> bool:
        return bool(self.reducers) and all(reducer is FIRST for _, reducer in self.reducers)

    def label(self, results: list[Any], kept: Any = None) -> Any:
        if self.single:
            return results[0]
        named = {name: result for (name, _), result in zip(self.reducers, results, strict=True)}
        return {APPEND: kept, **named} if self.keep else named


KEEP_ALL = Reduction((), keep=True, single=True)


def resolve(how: Any, site: str | None = None) -> Reduction | None:
    """Checks what the user passed as ``reduce``. None stays None: no choice was made."""
    if how is None or isinstance(how, Reduction):
        return how
    names = how if isinstance(how, (tuple, list)) else (how,)
    reducers = tuple(_resolve_one(name, site) for name in names if name != APPEND)
    if not names:
        raise OptionError(f"lox{_at(site)}: reduce=() is empty; {_known()}")
    keep = APPEND in [name for name in names if isinstance(name, str)]
    if keep and not reducers:
        return KEEP_ALL
    return Reduction(reducers, keep=keep, single=not isinstance(how, (tuple, list)))


def _resolve_one(how: Any, site: str | None) -> tuple[str, Reducer]:
    if isinstance(how, Reducer):
        return how.name, how
    if not isinstance(how, str):
        raise LogTypeError(
            f"lox{_at(site)}: reduce takes a name, a lox.Reducer or a tuple of them, got {how!r}. "
            "To reduce one key, pass reduce= where it is logged: lox.log(..., reduce='mean')"
        )
    if how not in _REDUCERS:
        raise OptionError(f"lox{_at(site)}: unknown reduction {how!r}; {_known()}")
    return how, _REDUCERS[how]


def _at(site: str | None) -> str:
    return f".log at {site}" if site else ""


def _known() -> str:
    return f"use {', '.join(map(repr, (*_REDUCERS, APPEND)))}, a lox.Reducer, or a tuple of them"


def check_reducible(key: str, dtype: Any, reduction: Reduction, site: str) -> None:
    if is_key(dtype):
        raise LogTypeError(
            f"lox.log at {site}: {key!r} holds random keys, which cannot be reduced; use reduce='append'"
        )
    extremes = [name for name, reducer in reduction.reducers if isinstance(reducer, _Extreme)]
    if extremes and jnp.issubdtype(dtype, jnp.complexfloating):
        raise OptionError(
            f"lox.log at {site}: {key!r} holds complex numbers, which have no {extremes[0]}. Log their real part or "
            "their absolute value, or choose another reduction"
        )
