"""How tests compare logs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox


def plain(leaf: Any) -> np.ndarray:
    """numpy, for random keys too."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def assert_close(actual: Any, expected: Any, what: str = "value") -> None:
    """Equal trees of arrays: shapes and dtypes exactly, floats up to rounding."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected), what
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = plain(a), plain(e)
        assert a.shape == e.shape, f"{what}: shape {a.shape} instead of {e.shape}"
        assert a.dtype == e.dtype, f"{what}: dtype {a.dtype} instead of {e.dtype}"
        _assert_values(a, e, what)


def _assert_values(a: np.ndarray, e: np.ndarray, what: str) -> None:
    if jnp.issubdtype(a.dtype, np.inexact):
        coarse = a.dtype.itemsize <= 2
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        tolerance = 2e-2 if coarse else 2e-5
        np.testing.assert_allclose(a.astype(wide), e.astype(wide), tolerance, tolerance / 10, err_msg=what)
    else:
        np.testing.assert_array_equal(a, e, err_msg=what)


def assert_logs_equal(actual: lox.logdict, expected: lox.logdict) -> None:
    """Two logdicts with the same keys in the same order, values, steps, counts and layout."""
    assert isinstance(actual, lox.logdict)
    assert list(actual) == list(expected)
    assert actual.stacked == expected.stacked
    for key in expected:
        assert_close(actual[key], expected[key], key)
        np.testing.assert_array_equal(plain(actual.counts[key]), plain(expected.counts[key]), err_msg=f"count of {key}")
    assert_steps_equal(actual.steps, expected.steps)


def assert_steps_equal(actual: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    assert sorted(actual) == sorted(expected)
    for axis, by_key in expected.items():
        assert sorted(actual[axis]) == sorted(by_key), axis
        for key, steps in by_key.items():
            a, e = plain(actual[axis][key]), plain(steps)
            assert a.shape == e.shape, f"{axis} of {key}: shape {a.shape} instead of {e.shape}"
            _assert_values(a, e.astype(a.dtype), f"{axis} of {key}")


def assert_logs_are(
    logs: lox.logdict, expected: dict[str, Any], steps: dict[str, dict[str, Any]] | None = None
) -> None:
    """Concrete logs against Python values: a list is several records, anything else one record without an axis."""
    assert isinstance(logs, lox.logdict)
    assert sorted(logs) == sorted(expected)
    for key, value in expected.items():
        assert (key in logs.stacked) == _is_stacked(value), f"{key}: record axis"
        assert_records(logs, key, value)
        if key in logs.stacked:
            assert int(logs.counts[key]) == number_of_records(value), key
        else:
            assert int(logs.counts[key]) == 1, key
    assert_steps_equal(logs.steps, steps or {})


def number_of_records(value: Any) -> int:
    """A list of records, or a tree of such lists."""
    if isinstance(value, list):
        return len(value)
    return number_of_records(next(iter(value.values())))


def _is_stacked(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and all(isinstance(v, list) for v in value.values()))


def assert_records(logs: lox.logdict, key: str, value: Any) -> None:
    """The values of one key; where there are no records, only that there are none."""
    if isinstance(value, list):
        leaves = jax.tree.leaves(logs[key])
        assert {np.shape(leaf)[0] for leaf in leaves} == {len(value)}, key
        value = jax.tree.map(lambda *rows: np.stack([plain(row) for row in rows]), *value) if value else logs[key]
    elif _is_stacked(value):
        value = {name: np.stack([plain(row) for row in rows]) for name, rows in value.items()}
    like = jax.tree.map(lambda e, a: plain(e).astype(plain(a).dtype), value, logs[key])
    assert_close(logs[key], like, key)


def collect() -> tuple[list[lox.logdict], Any]:
    """A list, and a callback that puts into it what it is given."""
    received: list[lox.logdict] = []

    def callback(logs: lox.logdict) -> None:
        received.append(logs)

    return received, callback


def tapped(fun: Any, *args: Any, **options: Any) -> tuple[Any, list[lox.logdict]]:
    """Run ``lox.tap(fun)`` and wait for its records."""
    received, callback = collect()
    out = lox.tap(fun, callback, **options)(*args)
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out, received


def in_sequence(received: list[lox.logdict]) -> lox.logdict:
    """One logdict of all that a callback was given."""
    return sum(received, lox.logdict())
