"""Tracing a user's function once per signature.

A transformation traces the function to a jaxpr with marks, interprets that jaxpr into a plain one, and keeps the plain
one. A later call with the same signature only evaluates it. Arrays among the arguments are traced; everything else
(numbers, strings, callables, None) reaches the function as it is and is part of the signature.

What the function reads from elsewhere is fixed at the first call, as under ``jax.jit``.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _jax_compat as compat
from lox._eager import EagerProgram, dispatcher
from lox._mark import marking

Array = Any

# How many signatures of a function are remembered.
MAX_SIGNATURES = 256


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function as a jaxpr of its array arguments, with marks in it."""

    jaxpr: Any
    rebuild: Callable[[list[Array]], Any]  # array outputs -> what the function returned

    def holds_tracers(self) -> bool:
        return any(isinstance(const, compat.Tracer) for const in compat.open_jaxpr(self.jaxpr)[1])


@dataclasses.dataclass(frozen=True)
class Program:
    """The interpreted function: evaluate ``jaxpr`` on the arrays, then ``rebuild`` the result."""

    in_trace: Callable[..., list[Array]]
    eagerly: Callable[[], Callable[..., list[Array]]]
    rebuild: Callable[[list[Array]], Any]

    def __call__(self, *arrays: Array) -> Any:
        evaluate = self.in_trace if compat.tracing_now() else self.eagerly()
        return self.rebuild(evaluate(*arrays))


def is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and leaf.dtype != object and not (
        isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "USVMm"
    )


class Signature:
    """The arguments of a call, taken apart into arrays and the rest."""

    __slots__ = ("arrays", "is_array", "static", "tree")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.tree = jax.tree.flatten((args, kwargs))
        self.is_array = tuple(map(is_array, leaves))
        self.arrays = [leaf for leaf, array in zip(leaves, self.is_array, strict=True) if array]
        self.static = [leaf for leaf, array in zip(leaves, self.is_array, strict=True) if not array]

    def key(self) -> Any:
        """Hashable where the static arguments are."""
        avals = tuple(map(compat.type_key, self.arrays))
        return self.tree, self.is_array, avals, tuple(map(_exact, self.static)), compat.trace_context()

    def restore(self, arrays: list[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest, static = iter(arrays), iter(self.static)
        return self.tree.unflatten([next(rest) if array else next(static) for array in self.is_array])


def _exact(value: Any) -> Any:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return type(value), value


def trace(fun: Callable[..., Any], signature: Signature, *, marks: bool = True) -> Traced:
    """Trace ``fun`` to a jaxpr with its marks."""
    returned: list[Any] = []

    def flat(*arrays: Array) -> list[Array]:
        args, kwargs = signature.restore(list(arrays))
        leaves, tree = jax.tree.flatten(fun(*args, **kwargs))
        # Numbers, strings, numpy arrays and the like are returned as the function made them.
        dynamic = tuple(isinstance(leaf, jax.Array) for leaf in leaves)
        returned[:] = [tree, dynamic, [None if d else leaf for leaf, d in zip(leaves, dynamic, strict=True)]]
        return [leaf for leaf, d in zip(leaves, dynamic, strict=True) if d]

    flat.__name__ = getattr(fun, "__name__", type(fun).__name__)
    with marking(True if marks else None):
        jaxpr = jax.make_jaxpr(flat)(*signature.arrays)
    tree, dynamic, static = returned

    def rebuild(arrays: list[Array]) -> Any:
        rest = iter(arrays)
        return tree.unflatten([next(rest) if d else leaf for d, leaf in zip(dynamic, static, strict=True)])

    return Traced(jaxpr, rebuild)


def compile_program(
    traced: Traced, interpret: Callable[..., Any], operands: list[Array], arrays: list[Array], finish: Callable[[Any, Any], Any]
) -> Program:
    """Interpret a traced function into a plain jaxpr.

    Args:
      interpret: ``interpret(operands, arrays) -> (outs, extra)``, the interpretation of the jaxpr.
      finish: ``finish(result, extra)`` makes what the transformed function returns.
    """
    trees: list[Any] = []

    def flat(operands: list[Array], *arrays: Array) -> list[Array]:
        outs, extra = interpret(operands, arrays)
        leaves, tree = jax.tree.flatten(extra)
        trees[:] = [tree, len(outs)]
        return [*outs, *leaves]

    plain = jax.make_jaxpr(flat)(operands, *arrays)
    tree, num_outs = trees
    # A constant output is a literal of the jaxpr.
    literals: dict[int, Any] = {
        i: atom for i, atom in enumerate(plain.jaxpr.outvars) if isinstance(atom, compat.Literal)
    }
    with jax.ensure_compile_time_eval():
        constants = {i: jnp.asarray(literal.val, literal.aval.dtype) for i, literal in literals.items()}

    def rebuild(flat_outs: list[Array]) -> Any:
        for i, constant in constants.items():
            flat_outs[i] = constant
        return finish(traced.rebuild(flat_outs[:num_outs]), tree.unflatten(flat_outs[num_outs:]))

    return Program(compat.evaluator(plain), functools.cache(lambda: EagerProgram(plain)), rebuild)


class Cache:
    """Programs by function, options and signature.

    Plain functions and jitted ones are remembered globally, as long as they live: ``lox.spool(f)(x)`` in a loop makes
    a new wrapper each time. Bound methods and other callables may hold state that changes: they are remembered by
    their wrapper alone.
    """

    def __init__(self) -> None:
        self._by_function: dict[int, tuple[Any, OrderedDict[Any, Any]]] = {}

    def programs_of(self, fun: Callable[..., Any]) -> OrderedDict[Any, Any]:
        if not compat.is_function(fun):
            return OrderedDict()
        entry = self._by_function.get(id(fun))
        if entry is None or entry[0]() is not fun:
            forget = lambda _, number=id(fun): self._by_function.pop(number, None)  # noqa: E731
            entry = self._by_function[id(fun)] = (weakref.ref(fun, forget), OrderedDict())
        return entry[1]


programs = Cache()


def lookup(known: OrderedDict[Any, Any], key: Any, make: Callable[[], tuple[Any, bool]]) -> Any:
    """The program for ``key``; ``make`` returns a new one and whether it may be kept."""
    try:
        found = known.get(key)
    except TypeError:  # a static argument that cannot be hashed
        return make()[0]
    if found is None:
        found, keep = make()
        if keep:
            known[key] = found
            while len(known) > MAX_SIGNATURES:
                known.popitem(last=False)
    return found


def dispatch(fun: Callable[..., Any], known: OrderedDict[Any, Any], label: Any, transformed: Callable[..., Any]) -> Any:
    """``transformed``, called outside any trace through the dispatcher of a jitted ``fun``."""
    try:
        fast = known.get(("jitted", label))
    except TypeError:
        return transformed
    if fast is None:
        fast = dispatcher(fun, transformed)
        if fast is None:
            return transformed
        known["jitted", label] = fast

    @functools.wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        return transformed(*args, **kwargs) if compat.tracing_now() else fast(*args, **kwargs)

    return call
