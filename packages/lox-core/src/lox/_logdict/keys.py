"""Looking up keys in logs: the message for a missing key, and what the predicate of ``filter`` takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def no_such_key(key: Any, logs: Mapping[str, Any]) -> str:
    """The message for a key that logs do not have."""
    if not logs:
        return f"these logs have no key {key!r}: they are empty. Nothing was recorded, or nothing that was selected."
    close = difflib.get_close_matches(str(key), logs, n=3, cutoff=0.5) or [
        name for name in logs if name.rpartition("/")[2] == key
    ]
    if close:
        return f"these logs have no key {key!r}. Did you mean {' or '.join(map(repr, close))}?"
    shown = [repr(name) for name in logs][:10] + ["..."] * (len(logs) > 10)
    return f"these logs have no key {key!r}. They have {', '.join(shown)}."


def takes_two(pred: Callable[..., bool]) -> bool:
    """Whether a predicate of `filter` takes the value too, not just the key."""
    try:
        parameters = inspect.signature(pred).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(required) == 2
