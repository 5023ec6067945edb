"""``lox.log`` and ``lox.log_grad``: check what is logged, and leave a mark."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import LogTypeError
from lox._logdict import logdict
from lox._marks.mark import Mark, Record, marks_are_wanted, unmuted
from lox._marks.primitives import bind_record, watch_p
from lox._marks.rows import as_logdict, collected_batches, lane_batches
from lox._reduce import resolve

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = ("where", "tags", "reduce", "prefix", "explicit", "lanes")

# Keywords that belong elsewhere, and where. They would be step axes otherwise.
_ELSEWHERE = {
    "argnames": "lox.spool(f, argnames=...) and lox.tap(f, callback, argnames=...)",
    "callback": "lox.tap(f, callback)",
    "capacity": "lox.spool(f, capacity=...)",
    "every": "lox.spool(f, interval=...) and lox.tap(f, callback, interval=...), or where=i % n == 0",
    "interval": "lox.spool(f, interval=...) and lox.tap(f, callback, interval=...)",
    "keep_logs": "lox.spool(f, keep_logs=...)",
    "ordered": "lox.tap(f, callback, ordered=...)",
    "reduction": "lox.log(..., reduce=...) and lox.spool(f, reduce=...)",
}
_ELSEWHERE |= dict.fromkeys(("every_n", "log_every", "log_interval"), _ELSEWHERE["every"])
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _with_one_mapping(fun: F) -> F:
    """Explains what to write instead of ``log("loss", x)`` and ``log(loss=x)``, which Python would refuse."""

    @functools.wraps(fun)
    def log(*args: Any, **options: Any) -> Any:
        if len(args) + ("data" in options) != 1:
            names = [arg for arg in args if isinstance(arg, str)] or [key for key in options if key not in _OPTIONS]
            raise LogTypeError(
                f"lox.log at {_call_site()}: expected one mapping of keys to values, "
                f'such as lox.log({{"{names[0] if names else "loss"}": value}}); got {len(args)} positional arguments. '
                "Steps are keywords: step=5"
            )
        return fun(*args, **options)

    return log  # type: ignore[return-value]


@_with_one_mapping
def log(
    data: Mapping[str, Any],
    *,
    where: Any = None,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    lanes: bool = False,
    **steps: Any,
) -> logdict:
    """Mark values, anywhere in JAX code.

    By itself this does nothing and costs nothing. ``lox.spool`` returns the marked values, ``lox.tap`` streams them.

    Args:
      data: values by key, each a pytree of arrays or numbers. If it is a logdict that ``lox.spool`` has collected, each record
        is recorded again, with its own steps and those given here.
      where: a boolean scalar. If it is false, nothing is recorded.
      tags: labels to select by.
      reduce: what the records of this call fold into when they are spooled, such as ``"mean"`` or ``("min", "max")``.
      prefix: put before every key.
      explicit: if True, the call is recorded only when ``argnames`` or ``tags`` selects it.
      lanes: if True, each entry along the leading axis of the values is a record of its own: for example, one for each of the
        environments that are stepped together. ``where`` and steps may have that axis too.
      **steps: one number for each step axis, such as ``step=i``. For an axis that has the name of an option, write
        ``steps={"capacity": 3}``.

    Returns:
      The record as a logdict.

    >>> def f(x):
    ...     lox.log({"x": x}, step=3)
    ...     return x + 1.0
    >>> y, logs = lox.spool(f)(1.0)
    >>> print(y, logs, logs.step["x"])
    2.0 {'x': 1.0} 3
    """
    steps = _all_steps(steps, _call_site)
    options = {"tags": tags, "reduce": reduce, "prefix": prefix, "explicit": explicit}
    if lanes or isinstance(data, logdict):
        return _log_rows(data, where, steps, lanes, options)
    record = _check(data, where, steps, **options)
    if marks_are_wanted():
        bind_record(record, record.mark.keys)
    values = {prefix + key: value for key, value in data.items()} if prefix else data
    axes = {axis: dict.fromkeys(values, step) for axis, step in steps.items()} if values else {}
    return logdict._make(values, axes, dict.fromkeys(values, 1), frozenset(), {})


def _log_rows(data: Any, where: Any, steps: Mapping[str, Any], lanes: bool, options: Mapping[str, Any]) -> logdict:
    """Several records in one call: one for each lane, or those of collected logs."""
    site = _call_site()
    if not isinstance(lanes, (bool, np.bool_)):
        raise LogTypeError(f"lox.log at {site}: lanes must be True or False, got {lanes!r}")
    batches = lane_batches(data, where, steps, site) if lanes else collected_batches(data, where, steps, site)
    if marks_are_wanted():
        for batch in batches:

            def mark(values: Any, where: Any, steps: Any) -> None:
                record = _check(values, where, steps, **options, site=site)
                bind_record(record, record.mark.keys)

            batch.each(mark)
    return as_logdict(batches, options["prefix"])


def log_grad(
    x: T,
    name: str,
    *,
    where: Any = None,
    tags: str | Iterable[str] = (),
    reduce: Any = None,
    prefix: str = "",
    explicit: bool = False,
    **steps: Any,
) -> T:
    """Returns ``x`` unchanged. When the program is differentiated, the cotangent of ``x`` is recorded as ``name``.

    >>> def loss(x):
    ...     return (lox.log_grad(x, "dx") ** 2).sum()
    >>> gradient, logs = lox.spool(jax.grad(loss))(jnp.array([1.0, 2.0]))
    >>> print(logs)
    {'dx': [2., 4.]}
    """
    if not isinstance(name, str):
        raise LogTypeError(
            f"lox.log_grad at {_call_site()}: the name must be a str, as in log_grad(x, 'dx'); got {name!r}"
        )
    steps = _all_steps(steps, _call_site)
    record = _check({name: x}, where, steps, tags, reduce, prefix, explicit)
    if not marks_are_wanted() or not unmuted(record.mark, record.mark.keys):
        return x
    others = ([record.where] if record.mark.masked else []) + list(record.steps.values())
    values = [leaf for leaves in record.leaves.values() for leaf in leaves]
    for value in values:
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            raise LogTypeError(
                f"lox.log_grad at {record.mark.site}: {name!r} has a value of dtype {value.dtype}, which has no gradient"
            )
    return jax.tree.structure(x).unflatten(watch_p.bind(*values, *others, mark=record.mark, spread=True))


# --- checks ----------------------------------------------------------------------------------------------------------


def _all_steps(steps: Mapping[str, Any], site: Callable[[], str]) -> dict[str, Any]:
    """The steps given as keywords, and those in the mapping ``steps=``, where a step axis may have any name."""
    for axis in steps:
        if axis in _ELSEWHERE:
            raise LogTypeError(
                f"lox.log at {site()}: {axis}= is not an option of lox.log. It belongs to {_ELSEWHERE[axis]}. For a step axis "
                f"of that name, write steps={{{axis!r}: ...}}"
            )
    if not isinstance(explicit := steps.get("steps"), Mapping):
        return dict(steps)
    return {**{axis: step for axis, step in steps.items() if axis != "steps"}, **explicit}


def _check(
    data: Any,
    where: Any,
    steps: Mapping[str, Any],
    tags: Any,
    reduce: Any,
    prefix: str,
    explicit: bool,
    site: str | None = None,
) -> Record:
    site = site or _call_site()
    if type(data) is not dict and not isinstance(data, Mapping):
        raise LogTypeError(f"lox.log at {site}: expected a mapping of keys to values, got {type(data).__name__}")
    trees, leaves = [], {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise LogTypeError(f"lox.log at {site}: keys must be str, got {key!r} of type {type(key).__name__}")
        flat, tree = jax.tree.flatten(value)
        if not flat:
            raise LogTypeError(
                f"lox.log at {site}: {key!r} has no value ({type(value).__name__}). Leave the key out instead"
            )
        trees.append(tree)
        leaves[prefix + key] = [_as_array(leaf, key, site) for leaf in flat]
    mark = Mark(
        site=site,
        keys=tuple(leaves),
        trees=tuple(trees),
        axes=tuple(steps),
        tags=_check_tags(tags, site),
        reduce=resolve(reduce, site),
        explicit=bool(explicit),
        masked=where is not None,
    )
    checked_steps = {axis: _as_step(step, axis, site) for axis, step in steps.items()}
    return Record(mark, None if where is None else _as_condition(where, site), checked_steps, leaves)


def _as_array(leaf: Any, name: str, site: str, what: str = "{!r}") -> Any:
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, (bool, int, float, complex)):
        return jnp.asarray(leaf) if marks_are_wanted() else leaf
    if isinstance(leaf, (np.ndarray, np.generic)) and (
        leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, np.number)
    ):
        return jnp.asarray(leaf) if marks_are_wanted() else leaf
    kind = f"numpy {leaf.dtype}" if isinstance(leaf, (np.ndarray, np.generic)) else type(leaf).__name__
    raise LogTypeError(
        f"lox.log at {site}: {what.format(name)} has a value of type {kind}. Log arrays, numbers, or pytrees of them"
    )


def _as_step(step: Any, axis: str, site: str) -> Any:
    what = "step axis {!r}"
    if isinstance(step, (str, bool)) or getattr(step, "dtype", None) == np.bool_:
        # Every keyword that is not an option is a step axis, even a misspelled option.
        meant = difflib.get_close_matches(axis, _OPTIONS, n=1)
        hint = f"; did you mean {meant[0]}=?" if meant else f"; the options of lox.log are {', '.join(_OPTIONS)}"
        raise LogTypeError(f"lox.log at {site}: {what.format(axis)} must be a number, got {step!r}{hint}")
    array = _as_array(step, axis, site, what)
    if np.shape(array) != ():
        raise LogTypeError(f"lox.log at {site}: {what.format(axis)} must be a scalar, got shape {np.shape(array)}")
    return array


def _as_condition(where: Any, site: str) -> Any:
    array = _as_array(where, "where", site, "`{}`")
    dtype = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
    if np.shape(array) != () or dtype != np.bool_:
        hint = "; for one record per entry of the leading axis, pass lanes=True" if np.ndim(array) == 1 else ""
        raise LogTypeError(
            f"lox.log at {site}: `where` must be a boolean scalar, got {dtype}{list(np.shape(array))}{hint}"
        )
    return array


def _check_tags(tags: Any, site: str) -> tuple[str, ...]:
    names = (tags,) if isinstance(tags, str) else tuple(tags)
    for tag in names:
        if not isinstance(tag, str):
            raise LogTypeError(f"lox.log at {site}: tags must be str, got {tag!r} of type {type(tag).__name__}")
    return names


def _call_site() -> str:
    """file:line of the innermost frame outside lox-core."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
