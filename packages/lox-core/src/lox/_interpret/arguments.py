"""The arguments of a call, on their way into a traced function and back.

Arrays are traced. Numbers, strings, callables and None reach the function as they are. Containers are copied, with tracers in
them. A change of a copy would be lost, so it is an error to change an argument, except for objects that are meant to be
changed (``graphs``): the program returns their new values, and each call writes them into the caller's objects.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import ChangedArgumentError
from lox._interpret import graphs
from lox._jax import compat, jitted

Array = Any


def is_array(leaf: Any) -> bool:
    if isinstance(leaf, (np.ndarray, np.generic)):
        # For numpy, bfloat16 and similar types have the kind "V", like records.
        return leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, np.number)
    return isinstance(leaf, jax.Array)


def on_device(leaf: Any) -> Array:
    """A numpy value as JAX takes it: 64-bit values become 32-bit ones unless x64 mode is on."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def take_self(fun: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """For a method of an object that is meant to be changed, or such an object itself: a function and its first argument."""
    is_object = graphs.recogniser()
    if is_object is None:
        return fun, ()
    if isinstance(fun, types.MethodType) and is_object(fun.__self__):
        return fun.__func__, (fun.__self__,)
    if is_object(fun):
        return type(fun).__call__, (fun,)
    return fun, ()


def never(leaf: Any) -> bool:
    return False


class Copies(NamedTuple):
    """The arguments as a traced function gets them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]  # of everything except objects
    objects: list[Any]
    of_objects: list[Any]  # their leaves


class Signature:
    """The arguments of a call, taken apart into arrays and the rest. Use it in a ``with`` statement."""

    __slots__ = ("arrays", "is_array", "is_object", "leaves", "objects", "places", "static", "tree")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recognise = graphs.recogniser()
        self.is_object = recognise or never
        leaves, self.tree = jax.tree.flatten((args, kwargs), is_leaf=recognise)
        # The places of the objects among the leaves.
        self.places = () if recognise is None else tuple(i for i, leaf in enumerate(leaves) if recognise(leaf))
        self.objects: graphs.Objects | None = None
        if self.places:
            self.objects = graphs.Objects([leaves[i] for i in self.places])
            places = set(self.places)
            leaves = [leaf for i, leaf in enumerate(leaves) if i not in places] + self.objects.parts.leaves
        self.leaves = leaves
        self.is_array = tuple(map(is_array, leaves))
        self.arrays = [on_device(leaf) for leaf, array in zip(leaves, self.is_array, strict=True) if array]
        self.static = [leaf for leaf, array in zip(leaves, self.is_array, strict=True) if not array]

    def __enter__(self) -> Signature:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.objects is not None:
            self.objects.close()

    def key(self) -> Any:
        """The key of a cache entry. It is hashable if the static arguments are."""
        avals = tuple(map(compat.type_key, self.arrays))
        objects = () if self.objects is None else (self.places, self.objects.parts.graph, self.objects.parts.tree)
        return self.tree, self.is_array, avals, tuple(map(exact, self.static)), objects, compat.trace_context()

    def restore(self, arrays: list[Array]) -> Copies:
        rest, static = iter(arrays), iter(self.static)
        leaves = [next(rest) if array else next(static) for array in self.is_array]
        if self.objects is None:
            args, kwargs = self.tree.unflatten(leaves)
            return Copies(args, kwargs, leaves, [], [])
        number = len(leaves) - len(self.objects.parts.leaves)
        objects = self.objects.copy(leaves[number:])
        others, copies = iter(leaves[:number]), iter(objects)
        places = set(self.places)
        args, kwargs = self.tree.unflatten(
            [next(copies) if i in places else next(others) for i in range(self.tree.num_leaves)]
        )
        return Copies(args, kwargs, leaves[:number], objects, leaves[number:])


def exact(value: Any) -> Any:
    """Distinguishes 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), repr(value)
    return type(value), value


# --- results ---------------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """The number of a leaf of an object that is also a leaf of an object that was passed."""

    number: int


class Result:
    """What a traced function returned, and what it left in its arguments. Arrays are outputs of the program instead."""

    def __init__(self, out: Any, signature: Signature, copies: Copies) -> None:
        leaves, self.tree = jax.tree.flatten(out, is_leaf=signature.is_object)
        returned = [leaf for leaf in leaves if signature.is_object(leaf)]
        self.places = {i for i, leaf in enumerate(leaves) if signature.is_object(leaf)}
        others = [leaf for i, leaf in enumerate(leaves) if i not in self.places]
        self.parts = _parts_after(signature, copies, returned)
        places = {id(leaf): number for number, leaf in enumerate(copies.of_objects)}
        written: list[Any] = [] if self.parts is None else self.parts.leaves
        number = len(copies.leaves)
        # Numbers, strings, numpy arrays and the like are returned as they are.
        self.static = [
            *(None if isinstance(leaf, jax.Array) else leaf for leaf in others),
            *(_kept(leaf, places.get(id(leaf)), number) for leaf in written),
        ]
        self.outputs = [
            leaf for leaf, kept in zip([*others, *written], self.static, strict=True) if _leaves(leaf, kept)
        ]
        self.is_output = [_leaves(leaf, kept) for leaf, kept in zip([*others, *written], self.static, strict=True)]
        self.num_others = len(others)
        if self.parts is not None:
            self.parts = self.parts._replace(leaves=[])  # tracers must not live on

    def take_outputs(self) -> list[Array]:
        outputs, self.outputs = self.outputs, []
        return outputs

    def rebuild(self, arrays: list[Array], signature: Signature) -> Any:
        """What the function returned. Objects that it changed are changed now."""
        rest = iter(arrays)
        leaves = [
            next(rest) if output else signature.leaves[kept.number] if isinstance(kept, Given) else _fresh(kept)
            for output, kept in zip(self.is_output, self.static, strict=True)
        ]
        others, written = iter(leaves[: self.num_others]), leaves[self.num_others :]
        if self.parts is None:
            return self.tree.unflatten(others)
        if signature.objects is not None:
            objects = signature.objects.write(self.parts, written)
        else:
            objects = graphs.put_together(self.parts, written)
        returned = iter(objects)
        return self.tree.unflatten(
            [next(returned) if i in self.places else next(others) for i in range(self.tree.num_leaves)]
        )


def _parts_after(signature: Signature, copies: Copies, returned: list[Any]) -> graphs.Parts | None:
    """The objects that have to be written or returned; None if there are none."""
    if signature.objects is None:
        return graphs.take_apart(returned) if returned else None
    if not returned and signature.objects.is_unchanged(copies.objects, copies.of_objects):
        return None
    return signature.objects.take_copies_apart(copies.objects, returned)


def _kept(leaf: Any, place: int | None, offset: int) -> Any:
    if place is not None:
        return Given(offset + place)
    return None if isinstance(leaf, jax.Array) else leaf


def _leaves(leaf: Any, kept: Any) -> bool:
    return isinstance(leaf, jax.Array) and kept is None


def _fresh(leaf: Any) -> Any:
    """A copy of a numpy array: the caller may write to it, and the next call must not see that."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


# --- arguments that come out changed ---------------------------------------------------------------------------------


class Watch:
    """Notices arguments that a function changes, where the change would be lost."""

    def __init__(self, fun: Callable[..., Any], signature: Signature, copies: Copies) -> None:
        self._fun = fun
        self._is_object = signature.is_object
        self._copies = copies
        self._before = self._flatten()
        # Objects are written back with all their contents.
        others = [(path, leaf) for path, leaf in self._before[0] if not self._is_object(leaf)]
        self._attributes = [(path, leaf, _snapshot(leaf)) for path, leaf in others]

    def _flatten(self) -> tuple[list[tuple[Any, Any]], Any]:
        trees = (self._copies.args, self._copies.kwargs)
        return jax.tree_util.tree_flatten_with_path(trees, is_leaf=self._is_object)

    def check(self) -> None:
        (before, tree), (after, tree_after) = self._before, self._flatten()
        for path, leaf, snapshot in self._attributes:
            how = _difference(leaf, snapshot)
            if how is not None:
                raise self._error(path, how)
        if tree == tree_after and all(a is b for (_, a), (_, b) in zip(before, after, strict=True)):
            return
        # Some classes make new leaves each time they are flattened.
        leaves_again, tree_again = self._flatten()
        was, now, again = dict(before), dict(after), dict(leaves_again)
        for path in [*was, *(path for path in now if path not in was)]:
            if path not in now or path not in was:
                raise self._error(path, "is gone" if path not in now else "is new")
            if was[path] is not now[path] and again[path] is now[path]:
                raise self._error(path, "has another value")
        if tree != tree_after and tree_again == tree_after:
            raise self._error(self._other_structure(tree, tree_after), "has another structure")

    def _other_structure(self, before: Any, after: Any) -> Any:
        """The path of the first argument that differs in something other than a leaf, such as a None or a static field."""
        (args, kwargs), (args_after, kwargs_after) = before.children(), after.children()
        keys = [jax.tree_util.DictKey(name) for name in sorted(self._copies.kwargs)]
        positions = [jax.tree_util.SequenceKey(i) for i in range(len(self._copies.args))]
        trees = zip(
            [*args.children(), *kwargs.children()], [*args_after.children(), *kwargs_after.children()], strict=True
        )
        return next((None, key) for key, (a, b) in zip([*positions, *keys], trees, strict=True) if a != b)

    def _error(self, path: Any, how: str) -> ChangedArgumentError:
        name, rest = _argument(self._fun, path)
        place = f"{name}{rest}"
        title = getattr(self._fun, "__name__", type(self._fun).__name__)
        return ChangedArgumentError(
            f"lox: {title} changes its argument {name!r} in place: {place} {how}. A traced function works on a copy, and "
            "runs as Python only once, so the change would be lost. Return the new value and use that, or keep it in a "
            "variable of flax.nnx, which lox writes back"
        )


def _snapshot(leaf: Any) -> Any:
    """The contents of an argument that reaches the function as it is, and that the function could change."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if jitted.is_function(leaf) or isinstance(leaf, (type, types.ModuleType, types.MethodType, compat.Tracer)):
        return None
    return dict(vars(leaf)) if hasattr(leaf, "__dict__") else None


def _difference(leaf: Any, snapshot: Any) -> str | None:
    if isinstance(snapshot, np.ndarray):
        return None if np.array_equal(leaf, snapshot) else "was written to"
    if snapshot is None:
        return None
    now = vars(leaf)
    for name, value in snapshot.items():
        if name not in now or now[name] is not value:
            return f"has another {name!r}"
    for name, value in now.items():
        # A new attribute may be a cached property, which is harmless unless it holds tracers of this trace.
        if name not in snapshot and any(isinstance(part, compat.Tracer) for part in jax.tree.leaves(value)):
            return f"has a new {name!r}"
    return None


def _argument(fun: Callable[..., Any], path: Any) -> tuple[str, str]:
    """The name of the argument that a path leads into, and the rest of the path."""
    where, which, *rest = path
    name = getattr(which, "key", None)
    if name is None:
        name = _positional(fun, which.idx)
    return str(name), jax.tree_util.keystr(tuple(rest))


def _positional(fun: Callable[..., Any], number: int) -> str:
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return f"argument {number}"
    for i, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{number - i}]"
        if i == number:
            return parameter.name
    return f"argument {number}"
