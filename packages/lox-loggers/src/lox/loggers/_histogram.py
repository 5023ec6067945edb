"""`Histogram`: a value that can be logged, with the number of values in each of some fixed bins.

The edges of the bins are part of its type, like the shape of an array, and not of its data. All records of a key have the
same edges, so counts can be added up over records, lanes and devices, and a record is no larger than its counts.

Each value is compared with thresholds of its own dtype, which are computed on the host (`_thresholds`). So the counts are those
of `numpy.histogram` in double precision, whatever the dtype of the values.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lox._errors import LogTypeError, OptionError

Floats = npt.NDArray[np.float64]

FIELDS = ("counts", "below", "above", "nan", "inf")
SUMMARY = ("mean", "std", "min", "max", "count", "nonfinite")
_MOST_SHOWN = 16  # bins whose counts a repr lists


@jax.tree_util.register_pytree_with_keys_class
class Histogram:
    """How many values lie in each bin, counted on the device.

    Bins are half open except for the last one, as in `numpy.histogram`. Values outside all bins, and values that are not
    finite, are counted apart. Add histograms with the same edges: `a + b`, `h.sum()` over records or lanes,
    `reduce="sum"` over the records of a loop, `jax.lax.psum` over devices. Counts are int32, so a sum of more than 2**31
    values in one bin wraps around; `reduce="mean"` does not.

    Args:
      values: an array of bools, ints or floats of any shape, or a pytree of them, which are counted together.
      bins: the edges of the bins, rising; or a number of bins of equal width, with `range`. Without it, four bins for each
        power of two from 2**-24 to 2**16 on either side of zero, and one around zero.
      range: the first and the last edge.

    >>> h = lox.loggers.Histogram(jnp.array([0.1, 0.2, 0.9, 7.0, jnp.nan]), bins=4, range=(0, 1))
    >>> h
    Histogram(4 bins from 0 to 1, counts=[2, 0, 0, 1], above=1, nan=1)
    >>> (h + h).counts.tolist()
    [4, 0, 0, 2]
    """

    counts: Any
    """The number of values in each bin, along the last axis."""
    below: Any
    """The number of finite values below the first edge."""
    above: Any
    """The number of finite values above the last edge."""
    nan: Any
    inf: Any
    """The number of infinite values, of either sign."""

    def __init__(
        self,
        values: Any,
        bins: int | Sequence[float] | npt.NDArray[Any] | None = None,
        range: tuple[float, float] | None = None,
    ) -> None:
        self._edges = _edges_of(bins, range)
        parts = _parts(values)
        if not parts:
            raise LogTypeError(f"Histogram: {values!r} holds no arrays or numbers")
        tally = functools.reduce(operator.add, [_tally(part, self._edges) for part in parts])
        number = len(self._edges.numbers) - 1
        self.below, self.counts = tally[0], tally[1 : number + 1]
        self.above, self.nan, self.inf = (tally[number + place] for place in (1, 2, 3))

    @classmethod
    def of_counts(cls, edges: Iterable[float], **fields: Any) -> Self:
        """A histogram with given counts: `counts`, `below`, `above`, `nan` and `inf`."""
        return cls._make(_Edges.of(_checked_edges(list(edges))), [fields[name] for name in FIELDS])

    @classmethod
    def _make(cls, edges: _Edges, fields: Iterable[Any]) -> Self:
        new = cls.__new__(cls)
        new._edges = edges
        new.counts, new.below, new.above, new.nan, new.inf = fields
        return new

    # --- what it holds -----------------------------------------------------------------------------------------------

    @property
    def edges(self) -> Floats:
        """The edges of the bins, one more than there are bins."""
        return np.array(self._edges.numbers)

    @property
    def has_bins(self) -> bool:
        """Whether it has a number for each bin. After `reduce="count"`, or a reduction of your own, it may not."""
        return np.shape(self.counts) == (*np.shape(self.below), len(self._edges.numbers) - 1)

    def filled(self) -> tuple[npt.NDArray[Any], Floats]:
        """The counts and the edges of a single histogram, without the empty bins at both ends."""
        counts = np.asarray(self.counts)
        there = np.flatnonzero(counts)
        kept = slice(there[0], there[-1] + 1) if len(there) else slice(0, 0)
        return counts[kept], self.edges[kept.start : kept.stop + 1]

    def describe(self) -> dict[str, Any]:
        """Statistics of the values, as far as the bins show them: `mean`, `std`, `min`, `max`, `count` (of the finite values) and
        `nonfinite`. Values outside all bins count as the nearest edge. They are computed on the host, as numpy arrays."""
        edges = self.edges
        counts, below, above, nan, inf = (np.asarray(field, np.float64) for field in self._fields())
        # The bins, and one of no width at each end.
        lows, highs = np.concatenate([edges[:1], edges]), np.concatenate([edges, edges[-1:]])
        every = np.concatenate([below[..., None], counts, above[..., None]], axis=-1)
        return describe_bins(every, lows, highs) | {"nonfinite": nan + inf}

    def __lox_summary__(self) -> dict[str, Any]:
        return self.describe() if self.has_bins else dict(zip(FIELDS, self._fields(), strict=True))

    # --- arithmetic --------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        if isinstance(other, int) and other == 0:  # Python's `sum` starts with 0
            return self
        if not isinstance(other, Histogram):
            return NotImplemented
        if self._edges != other._edges:
            raise OptionError(
                f"Histogram: cannot add {self!r} and {other!r}, because their edges differ. Count with the same bins"
            )
        return self._make(self._edges, map(operator.add, self._fields(), other._fields()))

    __radd__ = __add__

    def sum(self, axis: int | Sequence[int] | None = None) -> Self:
        """Adds up several histograms along axes in front of the bins (records, lanes, devices); None for all these axes."""
        axes = len(np.shape(self.below))
        chosen = tuple(range(axes)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        if any(not -axes <= place < axes for place in chosen):
            raise OptionError(f"Histogram: there is no axis={axis!r}; it has {axes} axes in front of its bins")
        chosen = tuple(place % axes for place in chosen)
        return jax.tree_util.tree_map(lambda field: field.sum(chosen) if chosen else field, self)

    def __getitem__(self, index: Any) -> Self:
        """One of several histograms, or some of them, along the axes in front of the bins."""
        if not np.ndim(self.below):
            raise IndexError("this is a single Histogram, without records or lanes to choose from")
        return jax.tree_util.tree_map(lambda field: field[index], self)

    def __len__(self) -> int:
        if not np.ndim(self.below):
            raise TypeError("a single Histogram has no len(); the number of its bins is len(h.edges) - 1")
        return int(np.shape(self.below)[0])

    def __repr__(self) -> str:
        edges = self._edges.numbers
        bins = f"{len(edges) - 1} bins from {edges[0]:g} to {edges[-1]:g}"
        if any(isinstance(field, jax.core.Tracer) or not hasattr(field, "shape") for field in self._fields()):
            return f"Histogram({bins})"
        if not self.has_bins:
            return f"Histogram({bins}, {', '.join(f'{name}={getattr(self, name)}' for name in FIELDS)})"
        if np.ndim(self.below):
            return f"Histogram({bins}, shape={np.shape(self.below)})"
        counts = np.asarray(self.counts)
        listed = f"counts={counts.tolist()}" if len(counts) <= _MOST_SHOWN else f"count={counts.sum().item()}"
        apart = [f"{name}={number.item()}" for name in FIELDS[1:] if (number := np.asarray(getattr(self, name)))]
        return f"Histogram({', '.join([bins, listed, *apart])})"

    # --- pytree ------------------------------------------------------------------------------------------------------

    def _fields(self) -> list[Any]:
        return [getattr(self, name) for name in FIELDS]

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], _Edges]:
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in FIELDS], self._edges

    def tree_flatten(self) -> tuple[list[Any], _Edges]:
        return self._fields(), self._edges

    @classmethod
    def tree_unflatten(cls, edges: _Edges, fields: Iterable[Any]) -> Self:
        return cls._make(edges, fields)


class _Edges:
    """Edges as part of a type. JAX compares them at every call, so equal edges are one object."""

    __slots__ = ("_hash", "numbers")

    def __init__(self, numbers: tuple[float, ...]) -> None:
        self.numbers = numbers
        self._hash = hash(numbers)

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(numbers: tuple[float, ...]) -> _Edges:
        return _Edges(numbers)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Edges) and self.numbers == other.numbers)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"{len(self.numbers) - 1} bins from {self.numbers[0]:g} to {self.numbers[-1]:g}"

    def __reduce__(self) -> Any:
        return _Edges.of, (self.numbers,)


def describe_bins(counts: Floats, lows: Floats, highs: Floats) -> dict[str, Any]:
    """Statistics of the values in bins, along the last axis of `counts`; nan if there are no values."""
    total, middles = counts.sum(-1), (lows + highs) / 2
    filled = counts > 0
    first, last = filled.argmax(-1), len(highs) - 1 - filled[..., ::-1].argmax(-1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = counts @ middles / total
        variance = (counts * (middles - mean[..., None]) ** 2).sum(-1) / total
        statistics = (
            mean,
            np.sqrt(variance),
            np.where(total > 0, lows[first], np.nan),
            np.where(total > 0, highs[last], np.nan),
        )
    return dict(zip(SUMMARY, map(np.asarray, (*statistics, total)), strict=False))


# --- edges -----------------------------------------------------------------------------------------------------------


def _edges_of(bins: Any, range: Any) -> _Edges:
    if bins is None and range is None:
        return _default_edges()
    if bins is None:
        raise OptionError(f"Histogram: range={range!r} needs bins, as in Histogram(x, bins=50, range={range!r})")
    _refuse_traced("bins", bins)
    if np.ndim(bins) > 0:
        if range is not None:
            raise OptionError("Histogram: bins= already gives the edges; leave out range=")
        return _Edges.of(_checked_edges(bins))
    try:
        number = operator.index(bins)
    except TypeError:
        raise LogTypeError(f"Histogram: bins={bins!r}; it must be edges, or a number of bins") from None
    if isinstance(bins, bool) or number < 1:
        raise OptionError(f"Histogram: bins={bins!r}; there must be at least 1 bin")
    if range is None:
        raise OptionError(
            f"Histogram: bins={bins} needs a range, such as range=(-1, 1): histograms can be added up only if "
            "their edges do not depend on the values. Leave out both for bins that fit any values"
        )
    for end in range if isinstance(range, tuple | list) else (range,):
        _refuse_traced("range", end)
    if np.shape(range) != (2,):
        raise OptionError(f"Histogram: range={range!r}; it must be the first and the last edge, such as (-1, 1)")
    low, high = _checked_edges(range)
    return _Edges.of(_checked_edges(np.linspace(low, high, number + 1)))


def _refuse_traced(option: str, given: Any) -> None:
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(given)):
        raise LogTypeError(
            f"Histogram: {option} must be known when the program is traced, but the program computes it. Use numpy for it "
            "(numpy.linspace, not jax.numpy.linspace), or compute it outside jit"
        )


def _checked_edges(given: Any) -> tuple[float, ...]:
    try:
        edges = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise LogTypeError(f"Histogram: the edges must be numbers; got {given!r}") from None
    if edges.ndim != 1 or len(edges) < 2:
        raise OptionError(f"Histogram: the edges must be a vector of at least 2 numbers; got shape {edges.shape}")
    if not np.isfinite(edges).all():
        raise OptionError(
            f"Histogram: the edges must be finite; got {edges[~np.isfinite(edges)][0]}. Values beyond the last "
            "edge are counted as above, those before the first as below"
        )
    if wrong := np.flatnonzero(np.diff(edges) <= 0).tolist():
        first, second = edges[wrong[0]], edges[wrong[0] + 1]
        raise OptionError(f"Histogram: the edges must rise; got {first:g} and then {second:g}")
    return tuple(edges.tolist())


@functools.cache
def _default_edges() -> _Edges:
    """Four bins for each power of two. The edges are exact in bfloat16 and all wider types."""
    positive = [math.ldexp(1 + part / 4, power) for power in range(-24, 16) for part in range(4)] + [2.0**16]
    return _Edges.of((*[-edge for edge in reversed(positive)], *positive))


# --- counting --------------------------------------------------------------------------------------------------------


def _parts(values: Any) -> list[Any]:
    """The arrays among the values, and one more array with all single numbers."""
    leaves = jax.tree_util.tree_leaves(values)
    numbers = [leaf for leaf in leaves if isinstance(leaf, bool | int | float | np.generic)]
    arrays = [leaf for leaf in leaves if not isinstance(leaf, bool | int | float | np.generic)]
    return [*arrays, np.asarray(numbers)] if numbers else arrays


def _tally(values: Any, edges: _Edges) -> Any:
    """A vector with the number of values below, in each bin, above, nan and infinite."""
    dtype = getattr(values, "dtype", None)
    if not isinstance(values, np.ndarray | jax.Array) or dtype is None:
        raise LogTypeError(f"Histogram: takes arrays of numbers; got {type(values).__name__}: {values!r}")
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer) or dtype == np.bool_):
        raise LogTypeError(
            f"Histogram: takes bools, ints and floats; got dtype {dtype}. For complex numbers, use jnp.abs"
        )
    if isinstance(values, np.ndarray):
        return np.bincount(_places(np, values, edges).reshape(-1), minlength=len(edges.numbers) + 3).astype(np.int32)
    values = jax.lax.stop_gradient(values)
    mesh = jax.typeof(values).sharding.mesh
    if not mesh.explicit_axes:
        return _tally_on_device(values, edges)
    # With explicit sharding, JAX must know the sharding of the result. Inside, the compiler chooses shardings.
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.sharding.auto_axes(lambda values: _tally_on_device(values, edges), out_sharding=everywhere)(values)


@functools.partial(jax.jit, static_argnums=1, inline=True)
def _tally_on_device(values: jax.Array, edges: _Edges) -> jax.Array:
    # Not flattened, and scattered in one step, so that values are counted on the device they are on.
    return jnp.zeros(len(edges.numbers) + 3, jnp.int32).at[_places(jnp, values, edges)].add(1)


def _places(numpy: Any, values: Any, edges: _Edges) -> Any:
    """The place of each value in a tally."""
    dtype = _compared_dtype(values.dtype)
    always, thresholds = _thresholds(edges, np.dtype(dtype))
    compared = values.astype(dtype)
    if numpy is np:
        places = np.searchsorted(thresholds, compared, side="right") + always
    else:
        places = always + _count_not_above(thresholds, compared)
    if not np.issubdtype(dtype, np.floating):
        return places
    bins = len(edges.numbers) - 1
    return numpy.where(numpy.isnan(compared), bins + 2, numpy.where(numpy.isinf(compared), bins + 3, places))


def _count_not_above(thresholds: npt.NDArray[Any], values: jax.Array) -> jax.Array:
    """How many of the rising thresholds each value reaches."""
    if not len(thresholds):
        return jnp.zeros(values.shape, jnp.int32)
    return jnp.searchsorted(jnp.asarray(thresholds), values, side="right", method="scan_unrolled").astype(jnp.int32)


def _compared_dtype(dtype: Any) -> Any:
    """A dtype with all values of the given one, in which they are compared."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.float64 if dtype == np.float64 else np.float32
    if dtype == np.bool_ or jnp.iinfo(dtype).bits < 32:
        return np.int32
    return dtype


@functools.lru_cache(maxsize=256)
def _thresholds(edges: _Edges, dtype: np.dtype[Any]) -> tuple[int, npt.NDArray[Any]]:
    """For each edge, the least number of a dtype that is not in the bin before it.

    Edges that all numbers of the dtype reach are left out, and counted: their number is the first result. Edges that no number
    reaches are left out too. The last edge belongs to the bin before it.
    """
    *inner, last = edges.numbers
    if dtype.kind == "f":
        found = [_least_float(edge, dtype, inclusive=True) for edge in inner]
        return 0, np.asarray([*found, _least_float(last, dtype, inclusive=False)], dtype)
    limits = np.iinfo(dtype)
    whole = [*map(math.ceil, inner), math.floor(last) + 1]
    always = sum(number <= limits.min for number in whole)
    return always, np.asarray([number for number in whole if limits.min < number <= limits.max], dtype)


def _least_float(edge: float, dtype: np.dtype[Any], inclusive: bool) -> Any:
    """The least float that is at least (or, if not inclusive, above) the edge. Denormal floats are skipped, because XLA treats
    them as zero."""
    with np.errstate(over="ignore"):
        number = np.asarray(edge, dtype)[()]
    if float(number) < edge or (float(number) == edge and not inclusive):
        number = np.nextafter(number, dtype.type(np.inf))
    tiny = np.finfo(dtype).tiny
    if -tiny < number < 0:
        return dtype.type(0)
    return tiny if 0 < number < tiny else number
