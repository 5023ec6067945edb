"""Errors for options that a function does not have: Python's own do not say what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lox._errors import UnknownOptionError

F = TypeVar("F", bound=Callable[..., Any])


def explain_options(hints: Mapping[str, str]) -> Callable[[F], F]:
    """Decorates a function: for an option that it does not have, the error says what to write instead.

    Args:
      hints: for options of other functions, what to write instead.
    """

    def decorate(fun: F) -> F:
        options = list(inspect.signature(fun).parameters)[1:]
        known = frozenset(inspect.signature(fun).parameters)

        @functools.wraps(fun)
        def explained(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    package = ".".join(part for part in fun.__module__.split(".")[:2] if not part.startswith("_"))
                    raise UnknownOptionError(_unknown(f"{package}.{fun.__name__}", name, options, hints))
            return fun(*args, **kwargs)

        return explained  # type: ignore[return-value]

    return decorate


def _unknown(owner: str, name: str, options: list[str], hints: Mapping[str, str]) -> str:
    if name in hints:
        return f"{owner} has no option {name!r}: {hints[name]}"
    close = difflib.get_close_matches(name, options, n=1)
    guess = f"did you mean {close[0]!r}?" if close else f"its options are {', '.join(options)}."
    return f"{owner} has no option {name!r}: {guess} To pass it to your function: {owner}(f)(x, {name}=...)"
