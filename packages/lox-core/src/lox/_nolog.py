"""``lox.nolog``: the marks are taken out of the traced program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from lox._interpret import program
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.survey import Survey
from lox._marks.mark import marking

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
    return program.transform(fun, ("nolog",), _interpreter, lambda out, _: out, marks=False)


def _interpreter(traced: program.Traced) -> Callable[[list[Array], list[Array]], Any]:
    silencer = Silencer(Survey(lambda mark, key: False, also=_WITH_RULES), keep=False)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        del operands
        return silencer.run(traced.jaxpr, arrays, Frame(Context({}), nested=False)), ()

    return interpret


class Silencer(Collector):
    """Drops every mark, also those that derivative rules would leave."""

    marks_in_rules = None

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        del eqn, invals, frame

    def backward_context(self) -> Any:
        return marking(None)
