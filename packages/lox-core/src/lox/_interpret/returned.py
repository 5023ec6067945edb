"""Logs as a traced program returns them: their leaves, and what was known of them when it was traced.

Making a ``logdict`` takes longer than a call of a small program. Whoever only hands logs on, such as a logger outside a trace,
leaves that to another thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from lox._logdict import logdict


class ReturnedForm:
    """The structure of logs, and the shapes and dtypes of their leaves."""

    __slots__ = ("_tree", "_types", "nbytes")

    def __init__(self, tree: Any, leaves: Sequence[Any]) -> None:
        self._tree = tree
        self._types = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        self.nbytes = sum(math.prod(shape) * dtype.itemsize for shape, dtype in self._types)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReturnedForm) and (self._tree, self._types) == (other._tree, other._types)

    def __hash__(self) -> int:
        return hash((self._tree, self._types))

    def fill(self, leaves: Sequence[Any]) -> logdict:
        logs: logdict = self._tree.unflatten(leaves)
        return logs


class Returned(NamedTuple):
    """Logs of a known form."""

    form: ReturnedForm
    leaves: Sequence[Any]

    @classmethod
    def of(cls, logs: logdict) -> Returned:
        leaves, tree = jax.tree.flatten(logs)
        return cls(ReturnedForm(tree, leaves), leaves)

    def logs(self) -> logdict:
        return self.form.fill(self.leaves)


jax.tree_util.register_pytree_node(Returned, lambda logs: (logs.leaves, logs.form), Returned)
