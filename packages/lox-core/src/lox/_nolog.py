"""``lox.nolog``: the marks are taken out of the traced program."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from lox._calls import explain_options
from lox._interpret import program, table
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.selection import Selection
from lox._interpret.survey import Survey
from lox._marks.mark import marking, muting
from lox._types import Array

P = ParamSpec("P")
R = TypeVar("R")

# Their rules are traced or run after the function has returned, so they are wrapped even if no mark is visible yet.
_WITH_RULES = frozenset(
    ["custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "CustomJVPTraced", "CustomVJPTraced"]
)


@explain_options({})
def nolog(
    fun: Callable[P, R], argnames: str | Iterable[str] | None = None, tags: str | Iterable[str] | None = None
) -> Callable[P, R]:
    """Transform ``fun`` into the same function without its marks; transformations outside do not see them.

    Args:
      fun: the function, jitted or not.
      argnames: take out only these keys; patterns such as ``"debug/*"`` work.
      tags: take out only marks that have at least one of these tags.

    >>> def f(x):
    ...     lox.log({"x": x, "debug/x": -x})
    ...     return x + 1.0
    >>> print(lox.spool(lox.nolog(f))(1.0))
    (2.0, {})
    >>> print(lox.spool(lox.nolog(f, "debug/*"))(1.0))
    (2.0, {'x': 1.0})
    """
    selection = Selection.of(argnames, tags)
    if selection == Selection(None, None):
        context = functools.partial(marking, None)
        return program.transform(fun, ("nolog",), _interpreter(context), lambda out, _: out, context=context)
    muted = functools.partial(_muted, selection)
    label = ("nolog", selection)
    return program.transform(fun, label, _interpreter(muted), lambda out, _: out, context=lambda: _marked(muted))


@contextlib.contextmanager
def _muted(selection: Selection) -> Iterator[None]:
    with muting((*muting.value, selection)):
        yield


@contextlib.contextmanager
def _marked(muted: Callable[[], Any]) -> Iterator[None]:
    with marking(True), muted():
        yield


def _interpreter(
    context: Callable[[], Any],
) -> Callable[[program.Traced], Callable[[list[Array], list[Array]], Any]]:
    def interpreter(traced: program.Traced) -> Callable[[list[Array], list[Array]], Any]:
        silencer = Silencer(context)

        def interpret(operands: list[Array], arrays: list[Array]) -> Any:
            del operands
            return silencer.run(traced.jaxpr, arrays, Frame(Context({}), nested=False)), ()

        return interpret

    return interpreter


class Silencer(Collector):
    """Collects nothing: the function was traced without the muted marks. Its derivative rules are traced later, inside
    ``context``, so they leave none of these marks either."""

    def __init__(self, context: Callable[[], Any]) -> None:
        super().__init__(Survey(lambda mark, key: False, also=_WITH_RULES), keep=False)
        self.rule_context = self.backward_context = context  # type: ignore[method-assign]

    def must_rebuild(self, eqn: Any) -> bool:
        # Muted marks were never traced, so an equation without a rule can stay as it is.
        return super().must_rebuild(eqn) and table.knows(eqn)

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Any:
        if table.knows(eqn):
            return super()._step(eqn, invals, frame)
        with self.rule_context():  # for what is traced when it is differentiated
            return super()._step(eqn, invals, frame)
