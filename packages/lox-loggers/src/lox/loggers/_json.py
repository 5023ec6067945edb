"""JSON, with the texts "NaN", "Infinity" and "-Infinity" for the numbers that it does not have."""

from __future__ import annotations

import json
import math
from typing import Any

_encode = json.JSONEncoder(allow_nan=False).encode


def to_json(value: Any) -> str:
    """A value as one line of JSON."""
    try:
        return _encode(value)
    except ValueError:
        return json.dumps(finite(value))


def finite(value: Any) -> Any:
    """The value with text for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
