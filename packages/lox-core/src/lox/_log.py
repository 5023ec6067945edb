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
from lox._reduce import resolve

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = ("where", "tags", "reduce", "prefix", "explicit")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _with_one_mapping(fun: F) -> F:
    """Explains what to write instead of ``log("loss", x)`` and ``log(loss=x)``, which Python would refuse."""

    @functools.wraps(fun)
    def log(*args: Any, **options: Any) -> Any:
        if len(args) + ("data" in options) != 1:
            names = [arg for arg in args if isinstance(arg, str)] or [key for key in options if key not in _OPTIONS]
            raise LogTypeError(
                f"lox.log at {_call_site()}: expected one mapping of keys to values, "
                f'such as lox.log({{"{names[0] if names else "loss"}": value}}); got {len(args)} positional arguments'
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
    **steps: Any,
) -> logdict:
    """Mark values, anywhere in JAX code.

    By itself this does nothing and costs nothing. ``lox.spool`` returns the marked values, ``lox.tap`` streams them.

    Args:
      data: values by key, each a pytree of arrays or numbers.
      where: a boolean scalar; where it is false there is no record.
      tags: labels to select by.
      reduce: what the records of this call fold into when they are spooled, such as ``"mean"`` or ``("min", "max")``.
      prefix: put before every key.
      explicit: recorded only where ``argnames`` or ``tags`` asks for it.
      **steps: the record's place along one or several step axes, each a scalar.

    Returns:
      The record as a logdict.

    >>> def f(x):
    ...     lox.log({"x": x}, step=3)
    ...     return x + 1.0
    >>> y, logs = lox.spool(f)(1.0)
    >>> print(y, logs, logs.step["x"])
    2.0 {'x': 1.0} 3
    """
    record = _check(data, where, tags, reduce, prefix, explicit, steps)
    if marks_are_wanted():
        bind_record(record, record.mark.keys)
    values = {prefix + key: value for key, value in data.items()} if prefix else data
    axes = {axis: dict.fromkeys(values, step) for axis, step in steps.items()} if values else {}
    return logdict._make(values, axes, dict.fromkeys(values, 1), frozenset(), {})


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
    """The identity; where the program is differentiated, the cotangent of ``x`` is a record under ``name``.

    >>> def loss(x):
    ...     return (lox.log_grad(x, "dx") ** 2).sum()
    >>> gradient, logs = lox.spool(jax.grad(loss))(jnp.array([1.0, 2.0]))
    >>> print(logs)
    {'dx': [2., 4.]}
    """
    if not isinstance(name, str):
        raise LogTypeError(f"lox.log_grad at {_call_site()}: expected log_grad(x, name), got a name {name!r}")
    record = _check({name: x}, where, tags, reduce, prefix, explicit, steps)
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


def _check(
    data: Any, where: Any, tags: Any, reduce: Any, prefix: str, explicit: bool, steps: Mapping[str, Any]
) -> Record:
    site = _call_site()
    if type(data) is not dict and not isinstance(data, Mapping):
        raise LogTypeError(f"lox.log at {site}: expected a mapping of names to values, got {type(data).__name__}")
    if isinstance(data, logdict) and (axes := data.steps.keys() - steps.keys()):
        told = ", ".join(f"{axis}=..." for axis in sorted(axes))
        raise LogTypeError(
            f"lox.log at {site}: these logs have steps, which would be lost. Pass the steps again, lox.log(logs, {told}), or "
            "drop them, lox.log(dict(logs))"
        )
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
        # Every keyword that is not an option is a step axis, also a misspelled option.
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
        raise LogTypeError(f"lox.log at {site}: `where` must be a boolean scalar, got {dtype}{list(np.shape(array))}")
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
