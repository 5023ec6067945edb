"""Where an equation comes from: its source line, the named scopes around it, and the pass that it belongs to."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import jax
from jax._src import source_info_util as _source_info_util

from lox._jax import hi_primitives


class Line(NamedTuple):
    """The innermost line of the source code that is not JAX's own."""

    file: str
    line: int
    column: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


UNKNOWN = Line("<unknown>", 0, 0, "")
_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep


def line_of(eqn: Any) -> Line:
    frame = _source_info_util.user_frame(eqn.source_info.traceback)
    if frame is None:
        return UNKNOWN
    return Line(frame.file_name, frame.start_line, frame.start_column + 1, frame.function_name)


class Scopes(NamedTuple):
    """The name stack of an equation, without the transformations in it.

    Attributes:
      names: the named scopes, outermost first.
      backward: whether it belongs to a backward pass: it is the transpose of something.
      again: whether ``jax.checkpoint`` computes it a second time.
    """

    names: tuple[str, ...]
    backward: bool
    again: bool


# JAX's name for the scope of what a checkpoint computes again.
_AGAIN = "rematted_computation"


def scopes_of(eqn: Any) -> Scopes:
    stack = eqn.source_info.name_stack.stack
    names = [part.name for part in stack if type(part).__name__ == "Scope"]
    transforms = {part.name for part in stack if type(part).__name__ == "Transform"}
    again = _AGAIN in names
    # A derivative rule is traced inside the scopes of its function, and has them twice.
    return Scopes(_once([name for name in names if name != _AGAIN]), "transpose" in transforms, again)


def _once(names: list[str]) -> tuple[str, ...]:
    half = len(names) // 2
    while half and len(names) == 2 * half and names[:half] == names[half:]:
        names, half = names[:half], half // 2
    return tuple(names)


def function_name(eqn: Any) -> str | None:
    """The name of the function that an equation calls."""
    if eqn.primitive.name == "jit":
        return str(eqn.params["name"])
    info = _debug_info(eqn)
    return None if info is None else info.func_name


def is_of_jax(eqn: Any) -> bool:
    """Whether the function that an equation calls is JAX's own. JAX traces such a function once for many callers, so the
    lines in it are those of its first caller."""
    info = _debug_info(eqn)
    return info is not None and _JAX in info.func_src_info


def _debug_info(eqn: Any) -> Any:
    params = hi_primitives.params_of(eqn)
    called = next((params[name] for name in ("call_jaxpr", "jaxpr", "traced") if name in params), None)
    return getattr(getattr(called, "jaxpr", called), "debug_info", None)
