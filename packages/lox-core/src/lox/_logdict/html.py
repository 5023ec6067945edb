"""Logs as a notebook shows them: a row for each leaf, with its records, steps, a few statistics and a curve."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from lox._html.curve import SvgCurve, over_lanes, sparkline
from lox._html.numbers import mean, short, span, spread
from lox._html.table import Cell, Markup, block, dim, more, table, text, title, warning
from lox._logdict.display import short_type
from lox._logdict.lanes import lane_axes_of
from lox._logdict.summary import summarized

if TYPE_CHECKING:
    from lox._logdict.mapping import logdict

Floats = npt.NDArray[np.float64]
_MOST_ROWS = 40
_MOST_AXES = 3
_MOST_ELEMENTS = 6  # the largest array that is shown in full
# A larger array would take seconds to copy from the device and to add up. Only its type is shown.
_LARGEST = 1 << 24
_COLUMNS = ("key", "records", Cell("steps", "t"), "last", "mean", "min", "max", "")


class Row(NamedTuple):
    """What a table says about a leaf."""

    label: str
    records: str = ""
    steps: str = ""
    last: str = ""
    mean: str = ""
    low: str = ""
    high: str = ""
    wrong: str = ""
    """How many elements are not finite; empty if all are."""
    curve: SvgCurve | None = None
    lanes: int = 1
    element: tuple[int, ...] = ()
    """The shape of one value. For an array, ``last``, ``mean`` and the curve show its mean."""


class _Leaf(NamedTuple):
    label: str
    key: str
    value: Any


class _Records(NamedTuple):
    """The records of a leaf: lanes, then records, then the axes of the value."""

    values: npt.NDArray[Any]
    used: npt.NDArray[np.bool_]
    """For each lane, which rows are in use."""


def show_logs(logs: logdict) -> str:
    """The logs as HTML of bounded size."""
    if not logs:
        return block(title("logdict", "empty: nothing was recorded, or nothing that was selected"))
    rows = [_row(logs, leaf) for leaf in itertools.islice(_leaves(logs), _MOST_ROWS)]
    left_out = sum(1 for _ in _leaves(logs)) - len(rows)
    lanes = max(row.lanes for row in rows)
    note = f"{lanes} lanes: mean and standard deviation" if lanes > 1 else ""
    return block(title("logdict", counted(len(logs), "key"), note), show_rows(rows), more(left_out, "rows"))


def show_rows(rows: Iterable[Row]) -> Markup:
    return table(_COLUMNS, map(_cells, rows))


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _cells(row: Row) -> list[str | Cell]:
    notes = [dim(f"[{', '.join(map(str, row.element))}]")] if row.element else []
    notes += [warning(row.wrong)] if row.wrong else []
    key = Markup(" ".join([text(row.label), *notes]))
    curve = sparkline(row.curve, row.label) if row.curve is not None else ""
    return [key, row.records, Cell(row.steps, "t"), row.last, row.mean, row.low, row.high, curve]


def _leaves(logs: logdict) -> Iterator[_Leaf]:
    for key, value in logs.items():
        paths = jax.tree_util.tree_flatten_with_path(summarized(value))[0]
        if not paths:
            yield _Leaf(str(key), key, value)
        for path, leaf in paths:
            inner = jax.tree_util.keystr(path, simple=True, separator="/")
            yield _Leaf(f"{key}/{inner}" if path else str(key), key, leaf)


def _row(logs: logdict, leaf: _Leaf) -> Row:
    """What is known about a leaf. For tracers, PRNG keys and arrays on other machines, that is only the type."""
    array, count = _on_host(leaf.value), _on_host(logs.counts.get(leaf.key, 1))
    steps = {axis: _on_host(step) for axis, step in logs._steps_of(leaf.key).items()}
    if array is None or count is None or any(step is None for step in steps.values()):
        return Row(leaf.label, "" if count is None else _count_text(count, None), last=_type_text(leaf.value))
    records = _records(logs, leaf.key, array, count)
    kept = records.values.shape[1] if leaf.key in logs._bounds else None
    row = Row(leaf.label, _count_text(count, kept), _steps_text(steps, records.used))
    row = row._replace(lanes=len(records.values), element=records.values.shape[2:])
    numbers = _numbers(records.values)
    if numbers is None or not numbers.size or not records.used.any():
        return row._replace(last=_last_text(records, None))
    return _with_statistics(row, records, numbers, steps)


def _with_statistics(row: Row, records: _Records, numbers: npt.NDArray[Any], steps: dict[str, Any]) -> Row:
    used = records.used
    centers = _centers(numbers)
    there = numbers if used.all() else numbers[used]
    good = np.isfinite(there)
    finite = there if good.all() else there[good]
    row = row._replace(last=_last_text(records, centers), wrong=_wrong_text(there, good))
    if there.size == row.lanes == 1 or not finite.size:
        return row
    return row._replace(
        mean=short(mean(centers[used & np.isfinite(centers)])),
        low=_number_text(finite.min()),
        high=_number_text(finite.max()),
        curve=_curve(centers, used, steps),
    )


def _centers(numbers: npt.NDArray[Any]) -> Floats:
    """One number for each record: for an array, its mean."""
    if numbers.ndim == 2:
        return numbers.astype(np.float64)
    with np.errstate(all="ignore"):
        means: Floats = numbers.reshape(*numbers.shape[:2], -1).mean(2, dtype=np.float64)
        return means


def _records(logs: logdict, key: str, array: npt.NDArray[Any], count: npt.NDArray[Any]) -> _Records:
    axes = min(lane_axes_of(logs, key) or 0, array.ndim)
    stacked = key in logs.stacked and array.ndim > axes
    lanes, number = int(np.prod(array.shape[:axes])), array.shape[axes] if stacked else 1
    values = array.reshape(lanes, number, *array.shape[axes + stacked :])
    kept = np.full(lanes, number)
    if stacked and key in logs._bounds:
        kept = np.minimum(kept, count.reshape(-1) if count.size == lanes else count.max(initial=0))
    return _Records(values, np.arange(number) < kept[:, None])


def _on_host(value: Any) -> npt.NDArray[Any] | None:
    """The value as numpy; None if it is not known, has no numbers or is too large."""
    if isinstance(value, jax.Array):
        if isinstance(value, jax.core.Tracer) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
            return None
        if value.is_deleted() or not value.is_fully_addressable or value.size > _LARGEST:
            return None
        return np.asarray(value)
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        array = np.asarray(value)
        return array if array.size <= _LARGEST else None
    return None


def _numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Values that can be added and compared. Complex numbers become their magnitudes; None for text and dates."""
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind == "c":
        return np.abs(values)
    if values.dtype.kind == "V" and values.dtype.type is not np.void:  # bfloat16 and similar types
        return values.astype(np.float32)
    return None


def _curve(centers: Floats, used: npt.NDArray[np.bool_], steps: dict[str, Any]) -> SvgCurve | None:
    values = centers if used.all() else np.where(used, centers, np.nan)[:, used.any(0)]
    if values.shape[1] < 2:
        return None
    x = _common_steps(steps, used)
    if not (np.isfinite(x).all() and (np.diff(x) >= 0).all()):  # some steps go back, or are not finite
        order = np.argsort(x, kind="stable")
        order = order[np.isfinite(x[order])]
        x, values = x[order], values[:, order]
    return over_lanes(x, values)


def _common_steps(steps: dict[str, Any], used: npt.NDArray[np.bool_]) -> Floats:
    """The steps along the first axis, if all lanes have the same; otherwise the numbers of the records."""
    rows, first = used.any(0), next(iter(steps.values()), None)
    if first is not None and first.size == used.size and first.dtype.kind in "biuf":
        each: Floats = first.reshape(used.shape).astype(np.float64)
        longest = each[used.sum(1).argmax()]
        if len(used) == 1 or (~used | (each == longest)).all():
            return np.asarray(longest[rows])
    return np.arange(float(rows.sum()))


# --- text ----------------------------------------------------------------------------------------------------------


def _count_text(count: npt.NDArray[Any], kept: int | None) -> str:
    if not count.size:
        return ""
    low, high = int(count.min()), int(count.max())
    return f"last {kept} of {span(low, high)}" if kept is not None and kept < low else span(low, high)


def _steps_text(steps: dict[str, Any], used: npt.NDArray[np.bool_]) -> str:
    parts = []
    for axis, step in itertools.islice(steps.items(), _MOST_AXES):
        there = step.reshape(used.shape)[used] if step.size == used.size else step
        if there.size and there.dtype.kind in "biuf":
            parts.append(f"{dim(axis)} {text(span(float(there.min()), float(there.max())))}")
    return Markup("<br>".join(parts + ["…"] * (len(steps) > _MOST_AXES)))


def _last_text(records: _Records, centers: Floats | None) -> str:
    values, used = records
    lanes = np.flatnonzero(used.any(1))
    if not len(lanes):
        return short_type(values.dtype, values.shape[2:])
    last = used[lanes].sum(1) - 1
    if len(used) == 1 or centers is None:
        return _value_text(values[lanes[-1], last[-1]])
    return spread(centers[lanes, last])


def _value_text(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return _number_text(array[()])
    if array.ndim == 1 and array.size <= _MOST_ELEMENTS:
        return f"[{', '.join(map(_number_text, array))}]"
    return short_type(array.dtype, array.shape)


def _number_text(number: Any) -> str:
    kind = np.asarray(number).dtype.kind
    if kind in "fV" and np.asarray(number).dtype.type is not np.void:
        return short(float(number))
    return f"{complex(number):.4g}" if kind == "c" else str(number)


def _wrong_text(numbers: npt.NDArray[Any], good: npt.NDArray[np.bool_]) -> str:
    bad = numbers[~good]
    nans = int(np.isnan(bad).sum())
    return ", ".join(f"{number} {what}" for number, what in ((nans, "nan"), (bad.size - nans, "inf")) if number)


def _type_text(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return short_type(value.dtype, value.shape)
    return repr(value)
