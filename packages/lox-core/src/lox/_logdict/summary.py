"""Values that stand for many numbers, as the few that a table or a line has room for.

A class says so with ``__lox_summary__()``, which returns a mapping of arrays of the same records, as
``lox.loggers.Histogram`` does.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def summarized(value: Any) -> Any:
    """The same value, with the summary of each part of it that has one, and whose numbers are known here."""
    if isinstance(value, np.ndarray | jax.Array):
        return value
    if not any(map(_can_be_summed_up, jax.tree_util.tree_leaves(value, is_leaf=has_summary))):
        return value  # as it is: mapping over it would sort its keys
    return jax.tree_util.tree_map(
        lambda part: part.__lox_summary__() if _can_be_summed_up(part) else part, value, is_leaf=has_summary
    )


def has_summary(part: Any) -> bool:
    return hasattr(type(part), "__lox_summary__")


def _can_be_summed_up(part: Any) -> bool:
    return has_summary(part) and all(map(_is_known, jax.tree_util.tree_leaves(part)))


def _is_known(leaf: Any) -> bool:
    """Not while a program is traced, nor where other processes have a part of it."""
    if isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
