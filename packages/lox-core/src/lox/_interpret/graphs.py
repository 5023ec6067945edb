"""Arguments that are meant to be changed in place: the objects of ``flax.nnx``.

An nnx model is a graph of objects that can share variables, and a training step writes to it. A traced function works on a
copy. When it has returned, the copy is taken apart again. New values leave the program as further outputs, and are written
into the caller's objects. ``nnx.jit`` works in the same way, and lox uses the functions that nnx has for such
transformations.

lox does not depend on flax. A caller that passes an object of flax has imported it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

# The name under which nnx remembers which objects outside the trace belong to which inside it.
_TAG = "lox"


def _nnx() -> Any:
    nnx = sys.modules.get("flax.nnx")
    return nnx if hasattr(nnx, "merge_context") else None


def recogniser() -> Callable[[Any], bool] | None:
    """A function that recognises such objects; None if flax was not imported, so there are none."""
    nnx = _nnx()
    return None if nnx is None else nnx.graph.is_graph_node


class Parts(NamedTuple):
    """Objects taken apart."""

    graph: Any  # hashable
    leaves: list[Any]
    tree: Any

    @classmethod
    def of(cls, graph: Any, state: Any) -> Parts:
        leaves, tree = jax.tree.flatten(state)
        return cls(graph, leaves, tree)

    def state(self, leaves: list[Any]) -> Any:
        return self.tree.unflatten(leaves)


def take_apart(objects: list[Any]) -> Parts:
    return Parts.of(*_nnx().split(objects))


def put_together(parts: Parts, leaves: list[Any]) -> Any:
    return _nnx().merge(parts.graph, parts.state(leaves))


class Objects:
    """The objects among the arguments of one call. Close it after the call."""

    def __init__(self, objects: list[Any]) -> None:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(_nnx().update_context(_TAG))
        try:
            with _nnx().split_context(_TAG) as context:
                self.parts = Parts.of(*context.split(objects))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stack.close()

    def copy(self, leaves: list[Any]) -> list[Any]:
        """The same objects, with other leaves."""
        with _nnx().merge_context(_TAG, inner=True) as context:
            copies: list[Any] = context.merge(self.parts.graph, self.parts.state(leaves))
        return copies

    def is_unchanged(self, copies: list[Any], leaves: list[Any]) -> bool:
        """Whether copies that were made with these leaves have not changed."""
        now = take_apart(copies)
        same = len(now.leaves) == len(leaves) and all(a is b for a, b in zip(now.leaves, leaves, strict=True))
        return same and now.graph == self.parts.graph and now.tree == self.parts.tree

    def take_copies_apart(self, copies: list[Any], returned: list[Any]) -> Parts:
        """The copies as the function left them, and the objects that it returns, which can be among them."""
        with _nnx().split_context(_TAG) as context:
            return Parts.of(*context.split([copies, returned]))

    def write(self, parts: Parts, leaves: list[Any]) -> list[Any]:
        """Write the new values into the caller's objects. Returns the objects that the function returned."""
        with _nnx().merge_context(_TAG, inner=False) as context:
            _, returned = context.merge(parts.graph, parts.state(leaves))
        return returned
