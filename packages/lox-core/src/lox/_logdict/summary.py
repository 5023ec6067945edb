"""Summaries: a few numbers for a value that stands for many, to fit into a table or a line.

A class defines its summary with ``__lox_summary__()``, which returns a mapping to arrays with the same records.
``lox.loggers.Histogram`` has one.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def summarized(value: Any) -> Any:
    """The same value, with each part that has a summary replaced by it, if its numbers are known here."""
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
    """False while a program is traced, and if other processes have a part of it."""
    if isinstance(leaf, jax.core.Tracer):
        return False
    return not isinstance(leaf, jax.Array) or leaf.is_fully_addressable or leaf.is_fully_replicated
