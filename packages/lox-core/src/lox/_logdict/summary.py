"""Values that stand for many numbers, as the few that a table or a line has room for.

A class says so with ``__lox_summary__()``, which returns a mapping of arrays of the same records, as
``lox.loggers.Histogram`` does.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def summarized(value: Any) -> Any:
    """The same value, with the summary of each part of it that has one."""
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if not any(map(has_summary, jax.tree_util.tree_leaves(value, is_leaf=has_summary))):
        return value  # as it is: mapping over it would sort its keys
    return jax.tree_util.tree_map(
        lambda part: part.__lox_summary__() if has_summary(part) else part, value, is_leaf=has_summary
    )


def has_summary(part: Any) -> bool:
    return hasattr(type(part), "__lox_summary__")
