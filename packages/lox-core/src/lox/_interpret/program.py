"""Tracing a user's function once per signature.

A transformation traces the function to a jaxpr with marks, interprets that jaxpr into a plain one, and keeps both. A later
call with the same signature (``arguments``) only evaluates the plain one; another transformation of the same function, or the
same one with other options, interprets the jaxpr that is there.

As under ``jax.jit``, global values that the function reads are fixed at the first call.
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

from lox._errors import LogTypeError
from lox._interpret.arguments import Result, Signature, Watch, on_device, take_self
from lox._interpret.eager import EagerProgram, dispatcher
from lox._interpret.room import with_room
from lox._jax import backports, compat, jitted
from lox._marks.mark import marking
from lox._types import Array

# How many signatures of a function are remembered.
MAX_SIGNATURES = 256


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function as a jaxpr of its array arguments, with marks in it."""

    jaxpr: Any
    rebuild: Callable[[list[Array], Signature], Any]  # array outputs -> what the function returned

    def inputs(self) -> list[Any]:
        """What the program computes from: the arrays it closes over, and the types of its arguments."""
        body, consts = compat.open_jaxpr(self.jaxpr)
        return [*consts, *(var.aval for var in body.invars)]

    def holds_tracers(self) -> bool:
        return any(isinstance(const, compat.Tracer) for const in compat.open_jaxpr(self.jaxpr)[1])


def with_marks() -> AbstractContextManager[Any]:
    return marking(True)


def trace(
    fun: Callable[..., Any], signature: Signature, context: Callable[[], AbstractContextManager[Any]] = with_marks
) -> Traced:
    """Trace ``fun`` to a jaxpr, in a context that decides which marks it gets."""
    results: list[Result] = []

    def flat(*arrays: Array) -> list[Array]:
        copies = signature.restore(list(arrays))
        watch = Watch(fun, signature, copies)
        out = fun(*copies.args, **copies.kwargs)
        watch.check()
        results[:] = [Result(out, signature, copies)]
        return results[0].take_outputs()

    flat.__name__ = getattr(fun, "__name__", type(fun).__name__)
    backports.install_early()
    with context():
        jaxpr = jax.make_jaxpr(flat)(*signature.arrays)
    return Traced(jaxpr, results[0].rebuild)


def trace_call(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Traced:
    """Trace a call of ``fun`` with its marks, to look at it."""
    fun, bound = take_self(fun)
    with Signature((*bound, *args), kwargs) as signature:
        return trace(fun, signature)


class Program:
    """A traced function and its interpretation: ``interpret(operands, arrays) -> (outs, extra)``.

    A call returns the result of the function, and what the interpretation adds to it. The first call inside a trace
    interprets in that trace, so that nothing is traced twice. Later calls, and calls outside any trace, evaluate the plain
    jaxpr of the interpretation, which is made once.
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

    def __call__(self, operands: list[Array], signature: Signature) -> tuple[Any, Any]:
        arrays = signature.arrays
        tracing = compat.tracing_now()
        if tracing and not self._used:
            self._used = True
            outs, extra = self._interpret(operands, arrays)
            outs = _as_arrays(outs, self._traced.jaxpr)
            return self._traced.rebuild(outs, signature), jax.tree.map(on_device, extra)
        if self._plain is None:
            self._plain = self._flatten(operands, arrays)
        jaxpr, tree, num_outs, constants = self._plain
        if tracing:
            evaluate = compat.evaluator(jaxpr)
        else:
            evaluate = self._eager = self._eager or self._outside_traces(jaxpr)
        flat = _as_arrays(evaluate(*operands, *arrays), jaxpr)
        for i, constant in constants.items():
            if isinstance(constant, jax.Array) and constant.is_deleted():  # it was returned, and the caller donated it
                constant = constants[i] = _literal_array(jaxpr.jaxpr.outvars[i])
            flat[i] = constant
        return self._traced.rebuild(flat[:num_outs], signature), tree.unflatten(flat[num_outs:])

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
        return compat.array_of(literal.val, literal.aval)


def _as_arrays(leaves: list[Any], jaxpr: Any) -> list[Array]:
    """The results of a jaxpr as arrays. Its constants may be numpy arrays, or JAX's own kind of them."""
    return [
        leaf if isinstance(leaf, jax.Array) else compat.array_of(leaf, aval)
        for leaf, aval in zip(leaves, jaxpr.out_avals, strict=True)
    ]


class Cache:
    """Programs by function, options and signature.

    Programs of plain and jitted functions are kept globally as long as the function lives, because ``lox.spool(f)(x)`` in a
    loop makes a new wrapper each time. Bound methods and other callables may hold state that changes, so their programs are
    kept by the wrapper only. No entry may hold the function itself, or it would live forever.
    """

    def __init__(self) -> None:
        self._by_function: dict[int, tuple[Any, OrderedDict[Any, Any]]] = {}

    def programs_of(self, fun: Callable[..., Any]) -> OrderedDict[Any, Any]:
        if not jitted.is_function(fun):
            return OrderedDict()
        entry = self._by_function.get(id(fun))
        if entry is None or entry[0]() is not fun:
            number = id(fun)
            entry = (weakref.ref(fun, lambda _: self._by_function.pop(number, None)), OrderedDict())
            self._by_function[number] = entry
        return entry[1]


programs = Cache()


def lookup(known: OrderedDict[Any, Any], key: Any, make: Callable[[], tuple[Any, bool]]) -> Any:
    """The entry for ``key``. If there is none, ``make`` returns a new one, and whether it may be kept."""
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
    results: Callable[[Any], Any] = lambda out: out,
) -> Callable[..., Any]:
    """A function with the signature of ``fun`` that runs an interpretation of it.

    Args:
      label: the transformation and its options; programs of equal labels are shared.
      interpreter: makes the interpretation of a traced function.
      finish: ``finish(result, extra)`` is what the transformed function returns.
      operands: arrays that the interpretation needs besides the arguments.
      context: ``fun`` is traced in it; it decides which marks there are.
      compiled: whether a call outside any trace is compiled as a whole, even if ``fun`` is not jitted.
      results: where the result of ``fun`` is in what the transformed function returns, with None for everything else.
    """
    if not callable(fun):
        raise LogTypeError(f"lox.{label[0]}: expected a function, got {fun!r} of type {type(fun).__name__}")
    wrapped = fun
    fun, bound = take_self(fun)
    known = programs.programs_of(fun)
    operands = list(operands)
    run = Transformation(known, label, interpreter, finish, context, compiled)
    # Operands change from call to call, so they are arguments of the jitted function, not constants.
    jitted = lookup(known, ("jitted", label), lambda: (dispatcher(fun, run, results), True))

    def transformed(*args: Any, **kwargs: Any) -> Any:
        if bound:
            args = (*bound, *args)
        if jitted is not None and not compat.tracing_now():
            return jitted(operands, *args, **kwargs)
        return run(fun, operands, args, kwargs)

    return _named_after(wrapped, transformed, known)


class Transformation:
    """A transformation and its options, to run it on a function. It does not hold the function: see ``Cache``."""

    __slots__ = ("_compiled", "_context", "_finish", "_interpreter", "_known", "_label")

    def __init__(
        self, known: OrderedDict[Any, Any], label: Any, interpreter: Any, finish: Any, context: Any, compiled: bool
    ) -> None:
        self._known, self._label = known, label
        self._interpreter, self._finish = interpreter, finish
        self._context, self._compiled = context, compiled

    def __call__(
        self,
        fun: Callable[..., Any],
        operands: list[Array],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        without_options: bool = False,
    ) -> Any:
        def make_traced() -> tuple[Traced, bool]:
            traced = trace(fun, signature, self._context)
            return traced, not traced.holds_tracers()

        def make() -> tuple[Program, bool]:
            # Only functions with all their marks are shared: other contexts are made for one transformation.
            shared = ("traced", without_options, types)
            traced = lookup(self._known, shared, make_traced) if self._context is with_marks else make_traced()[0]
            return Program(traced, self._interpreter(traced), self._compiled), not traced.holds_tracers()

        with Signature(args, kwargs) as signature:
            types = signature.key()
            key = (self._label, without_options, tuple(map(compat.type_key, operands)), types)

            def run() -> tuple[Any, Any]:
                return lookup(self._known, key, make)(operands, signature)

            # Outside traces, a program is made once, and calls of it have to be fast.
            return self._finish(*(with_room(run) if compat.tracing_now() else run()))


def _named_after(fun: Callable[..., Any], made: Any, known: OrderedDict[Any, Any]) -> Callable[..., Any]:
    """``functools.wraps``, but a jitted function is asked for its names only once: it takes long to answer."""
    if not jitted.is_jitted(fun):
        return functools.wraps(fun)(made)
    names = known.get("names")
    if names is None:
        names = known["names"] = (fun.__module__, fun.__name__, fun.__qualname__, fun.__doc__)
    made.__module__, made.__name__, made.__qualname__, made.__doc__ = names
    made.__annotations__ = getattr(fun, "__annotations__", {})
    made.__dict__.update(fun.__dict__)
    made.__wrapped__ = fun
    return made
