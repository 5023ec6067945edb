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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._errors import LogTypeError
from lox._interpret.eager import EagerProgram, dispatcher
from lox._jax import compat
from lox._marks.mark import marking
from lox._types import Array

# How many signatures of a function are remembered.
MAX_SIGNATURES = 256


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function as a jaxpr of its array arguments, with marks in it."""

    jaxpr: Any
    rebuild: Callable[[list[Array]], Any]  # array outputs -> what the function returned

    def inputs(self) -> list[Any]:
        """What the program computes from: the arrays it closes over, and the types of its arguments."""
        body, consts = compat.open_jaxpr(self.jaxpr)
        return [*consts, *(var.aval for var in body.invars)]

    def holds_tracers(self) -> bool:
        return any(isinstance(const, compat.Tracer) for const in compat.open_jaxpr(self.jaxpr)[1])


def is_array(leaf: Any) -> bool:
    if isinstance(leaf, (np.ndarray, np.generic)):
        # bfloat16 and its like are of kind "V" for numpy, as records are.
        return leaf.dtype.kind in "biufc" or jnp.issubdtype(leaf.dtype, np.number)
    return isinstance(leaf, jax.Array)


class Signature:
    """The arguments of a call, taken apart into arrays and the rest."""

    __slots__ = ("arrays", "is_array", "static", "tree")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leaves, self.tree = jax.tree.flatten((args, kwargs))
        self.is_array = tuple(map(is_array, leaves))
        self.arrays = [_on_device(leaf) for leaf, array in zip(leaves, self.is_array, strict=True) if array]
        self.static = [leaf for leaf, array in zip(leaves, self.is_array, strict=True) if not array]

    def key(self) -> Any:
        """Hashable where the static arguments are."""
        avals = tuple(map(compat.type_key, self.arrays))
        return self.tree, self.is_array, avals, tuple(map(_exact, self.static)), compat.trace_context()

    def restore(self, arrays: list[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rest, static = iter(arrays), iter(self.static)
        return self.tree.unflatten([next(rest) if array else next(static) for array in self.is_array])


def _on_device(leaf: Any) -> Array:
    """numpy values as JAX takes them: 64-bit ones are 32-bit ones unless x64 mode is on."""
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)


def _exact(value: Any) -> Any:
    """Tells 1 from 1.0 and True, and 0.0 from -0.0."""
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    return type(value), value


def with_marks() -> AbstractContextManager[Any]:
    return marking(True)


def trace(
    fun: Callable[..., Any], signature: Signature, context: Callable[[], AbstractContextManager[Any]] = with_marks
) -> Traced:
    """Trace ``fun`` to a jaxpr, in a context that says which marks it gets."""
    returned: list[Any] = []

    def flat(*arrays: Array) -> list[Array]:
        args, kwargs = signature.restore(list(arrays))
        leaves, tree = jax.tree.flatten(fun(*args, **kwargs))
        # Numbers, strings, numpy arrays and the like are returned as the function made them.
        dynamic = tuple(isinstance(leaf, jax.Array) for leaf in leaves)
        returned[:] = [tree, dynamic, [None if d else leaf for leaf, d in zip(leaves, dynamic, strict=True)]]
        return [leaf for leaf, d in zip(leaves, dynamic, strict=True) if d]

    flat.__name__ = getattr(fun, "__name__", type(fun).__name__)
    with context():
        jaxpr = jax.make_jaxpr(flat)(*signature.arrays)
    tree, dynamic, static = returned

    def rebuild(arrays: list[Array]) -> Any:
        rest = iter(arrays)
        return tree.unflatten([next(rest) if d else _fresh(leaf) for d, leaf in zip(dynamic, static, strict=True)])

    return Traced(jaxpr, rebuild)


def _fresh(leaf: Any) -> Any:
    """A numpy array can be written to: the next call must not see that."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


class Program:
    """A traced function and its interpretation: ``interpret(operands, arrays) -> (outs, extra)``.

    A call returns what the function returned, and what the interpretation adds to it. The first call inside a trace
    interprets right there, so that nothing is traced twice. Later ones, and calls outside any trace, evaluate the plain
    jaxpr that the interpretation comes to, which is made once.
    """

    def __init__(
        self, traced: Traced, interpret: Callable[[list[Array], list[Array]], Any], compiled: bool = False
    ) -> None:
        self._traced = traced
        self._interpret = interpret
        self._compiled = compiled
        self._used = False
        self._plain: tuple[Any, Any, int, dict[int, Array]] | None = None
        self._eager: Callable[..., list[Array]] | None = None

    def __call__(self, operands: list[Array], arrays: list[Array]) -> tuple[Any, Any]:
        tracing = compat.tracing_now()
        if tracing and not self._used:
            self._used = True
            outs, extra = self._interpret(operands, arrays)
            return self._traced.rebuild(_as_arrays(outs)), jax.tree.map(_on_device, extra)
        if self._plain is None:
            self._plain = self._flatten(operands, arrays)
        jaxpr, tree, num_outs, constants = self._plain
        if tracing:
            evaluate = compat.evaluator(jaxpr)
        else:
            evaluate = self._eager = self._eager or self._outside_traces(jaxpr)
        flat = _as_arrays(evaluate(*operands, *arrays))
        for i, constant in constants.items():
            if constant.is_deleted():  # donated by whom it was returned to
                constant = constants[i] = _literal_array(jaxpr.jaxpr.outvars[i])
            flat[i] = constant
        return self._traced.rebuild(flat[:num_outs]), tree.unflatten(flat[num_outs:])

    def _outside_traces(self, jaxpr: Any) -> Callable[..., list[Array]]:
        return jax.jit(compat.evaluator(jaxpr)) if self._compiled else EagerProgram(jaxpr)

    def _flatten(self, operands: list[Array], arrays: list[Array]) -> tuple[Any, Any, int, dict[int, Array]]:
        trees: list[Any] = []

        def flat(operands: list[Array], *arrays: Array) -> list[Array]:
            outs, extra = self._interpret(operands, list(arrays))
            leaves, tree = jax.tree.flatten(extra)
            trees[:] = [tree, len(outs)]
            return [*outs, *leaves]

        jaxpr = jax.make_jaxpr(flat)(operands, *arrays)
        # A constant output is a literal of the jaxpr.
        atoms = enumerate(jaxpr.jaxpr.outvars)
        constants = {i: _literal_array(atom) for i, atom in atoms if isinstance(atom, compat.Literal)}
        return jaxpr, *trees, constants


def _literal_array(literal: Any) -> Array:
    with jax.ensure_compile_time_eval():
        return jnp.asarray(literal.val, literal.aval.dtype)


def _as_arrays(leaves: list[Any]) -> list[Array]:
    """Constants of a jaxpr may be numpy arrays, or JAX's own kind of them."""
    return [leaf if isinstance(leaf, jax.Array) else jnp.asarray(np.asarray(leaf)) for leaf in leaves]


class Cache:
    """Programs by function, options and signature.

    Plain functions and jitted ones are remembered globally, as long as they live: ``lox.spool(f)(x)`` in a loop makes
    a new wrapper each time. Bound methods and other callables may hold state that changes: they are remembered by
    their wrapper alone. Nothing that is remembered may hold the function itself, or it would live for ever.
    """

    def __init__(self) -> None:
        self._by_function: dict[int, tuple[Any, OrderedDict[Any, Any]]] = {}

    def programs_of(self, fun: Callable[..., Any]) -> OrderedDict[Any, Any]:
        if not compat.is_function(fun):
            return OrderedDict()
        entry = self._by_function.get(id(fun))
        if entry is None or entry[0]() is not fun:
            number = id(fun)
            entry = (weakref.ref(fun, lambda _: self._by_function.pop(number, None)), OrderedDict())
            self._by_function[number] = entry
        return entry[1]


programs = Cache()


def lookup(known: OrderedDict[Any, Any], key: Any, make: Callable[[], tuple[Any, bool]]) -> Any:
    """What is known under ``key``; ``make`` returns something new and whether it may be kept."""
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


def transform(
    fun: Callable[..., Any],
    label: Any,
    interpreter: Callable[[Traced], Callable[[list[Array], list[Array]], Any]],
    finish: Callable[[Any, Any], Any],
    operands: Sequence[Array] = (),
    context: Callable[[], AbstractContextManager[Any]] = with_marks,
    compiled: bool = False,
) -> Callable[..., Any]:
    """A function with the signature of ``fun`` that runs an interpretation of it.

    Args:
      label: the transformation and its options; programs of equal labels are shared.
      interpreter: makes the interpretation of a traced function.
      finish: ``finish(result, extra)`` is what the transformed function returns.
      operands: arrays that the interpretation needs besides the arguments.
      context: ``fun`` is traced in it; it says which marks there are.
      compiled: whether a call outside any trace is compiled as a whole, also where ``fun`` is not jitted.
    """
    if not callable(fun):
        raise LogTypeError(f"lox.{label[0]}: expected a function, got {fun!r} of type {type(fun).__name__}")
    known = programs.programs_of(fun)
    operands = list(operands)

    def run(fun: Callable[..., Any], operands: list[Array], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = Signature(args, kwargs)

        def make() -> tuple[Program, bool]:
            traced = trace(fun, signature, context)
            return Program(traced, interpreter(traced), compiled), not traced.holds_tracers()

        key = (label, tuple(map(compat.type_key, operands)), signature.key())
        return finish(*lookup(known, key, make)(operands, signature.arrays))

    # Operands change from call to call: they are arguments, and no constants, of a jitted function.
    jitted = lookup(known, ("jitted", label), lambda: (dispatcher(fun, run), True))

    @functools.wraps(fun)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        if jitted is not None and not compat.tracing_now():
            return jitted(operands, *args, **kwargs)
        return run(fun, operands, args, kwargs)

    return transformed
