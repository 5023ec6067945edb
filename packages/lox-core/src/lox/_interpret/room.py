"""Room on Python's stack for the many calls of a trace.

CPython keeps the frames of Python functions in chunks of 16 KB. A call that does not fit maps a new chunk, and unmaps it
when it returns. Tracing makes thousands of short calls at a depth that is a matter of chance. If a chunk ends there, each
of them maps and unmaps memory, and tracing takes up to twice as long. A frame that asks for much gets a chunk that is large
enough for it, and a power of two: the calls inside it have the rest for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def with_room(fun: Callable[..., R], *args: Any) -> R:
    """``fun(*args)``, with room for some hundred nested calls."""
    return fun(*args)


# In words: a little more than fits into 128 KB, so the chunk has 256 KB. Memory that is not written to is not used.
with_room.__code__ = with_room.__code__.replace(co_stacksize=15_400)
