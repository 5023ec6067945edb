"""``lox.nolog``: the marks are taken out of the traced program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from lox import _program, _rules
from lox._collect import Collector, Context, Frame
from lox._mark import marking
from lox._survey import Survey

P = ParamSpec("P")
R = TypeVar("R")
Array = Any

# Their rules are traced, or run, when the function has long returned: they are wrapped even where no mark is in sight.
_WITH_RULES = frozenset(["custom_jvp_call", "custom_vjp_call"])


def nolog(fun: Callable[P, R]) -> Callable[P, R]:
    """Transform ``fun`` into the same function without its marks, for every transformation outside.

    >>> def f(x):
    ...     lox.log({"x": x})
    ...     return x + 1.0
    >>> print(lox.spool(lox.nolog(f))(1.0))
    (2.0, {})
    """
    known = _program.programs.programs_of(fun)

    @functools.wraps(fun)
    def silent(*args: Any, **kwargs: Any) -> Any:
        signature = _program.Signature(args, kwargs)

        def make() -> tuple[_program.Program, bool]:
            traced = _program.trace(fun, signature, marks=False)
            return _silent_program(traced, signature.arrays), not traced.holds_tracers()

        program = _program.lookup(known, ("nolog", signature.key()), make)
        return program(*signature.arrays)

    return _program.dispatch(fun, known, "nolog", silent)


def _silent_program(traced: _program.Traced, arrays: list[Array]) -> _program.Program:
    silencer = Silencer(Survey(lambda mark, key: False, _rules, also=_WITH_RULES), _rules, keep=False)

    def interpret(operands: list[Array], arrays: Sequence[Array]) -> Any:
        del operands
        return silencer.run(traced.jaxpr, arrays, Frame(Context({}), nested=False)), ()

    return _program.compile_program(traced, interpret, [], arrays, lambda result, _: result)


class Silencer(Collector):
    """Drops every mark, also those that derivative rules would leave."""

    marks_in_rules = None

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        del eqn, invals, frame

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        del jaxpr, folds
        return frozenset()

    def backward_context(self) -> Any:
        return marking(None)
