"""What the tests of real libraries share.

The oracle of each is the same program with its outputs written by hand: no lox in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import lox


def assert_rows(logs: lox.logdict, expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Exactly these keys, with exactly these rows."""
    trimmed = logs.trim()
    assert set(trimmed) == set(expected)
    for key, rows in expected.items():
        np.testing.assert_allclose(
            np.asarray(trimmed[key]), np.asarray(rows), rtol=tolerance, atol=tolerance, err_msg=key
        )


def lane(logs: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], logs)


def tapped(fun: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The result of ``fun``, and what a tap delivered, stacked by key."""
    rows: dict[str, list[Any]] = {}

    def receive(logs: lox.logdict) -> None:
        for key, value in logs.items():
            rows.setdefault(key, []).append(value)

    out = lox.tap(fun, receive, **options)(*args)
    jax.block_until_ready(out)
    jax.effects_barrier()
    return out, {key: np.stack(values) for key, values in rows.items()}
