"""The syntax of LOX_LOGGERS: `console,save:path=runs:if_exists=resume`.

Separate loggers with commas, and options with colons. A value is JSON if it can be read as JSON (numbers, true, false, null,
lists, quoted strings) or as True, False or None; otherwise it is text. The options `path`, `logdir`, `name` and `group` are
always text. Commas and colons inside brackets or quotes belong to the value, and so does a colon that is not followed by
`option=`: `save:path=C:/runs`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lox.loggers._errors import LoggerOptionError

_PYTHON = {"True": True, "False": False, "None": None}
_TEXT = frozenset({"path", "logdir", "name", "group"})  # a folder may be called 2024
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)


def split_specs(text: str) -> list[str]:
    """The loggers named in a text, without empty ones."""
    return [spec.strip() for spec in _split(text, ",") if spec.strip()]


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """`save:path=runs` is `("save", {"path": "runs"})`."""
    name, *parts = _split(spec, ":")
    options: dict[str, str] = {}
    last = None
    for part in parts:
        match = _OPTION.fullmatch(part)
        if match:
            last = match[1]
            if last in options:
                raise LoggerOptionError(f"{spec!r} gives the option {last!r} twice")
            options[last] = match[2]
        elif last is None:
            raise LoggerOptionError(
                f"{spec!r}: {part!r} is not option=value. Write a logger as name:option=value:option=value"
            )
        else:
            options[last] += ":" + part
    return name.strip(), {option: _value(option, text.strip()) for option, text in options.items()}


def _value(option: str, text: str) -> Any:
    try:
        value = _PYTHON[text] if text in _PYTHON else json.loads(text)
    except json.JSONDecodeError:
        return text
    return text if option in _TEXT and not isinstance(value, str) else value


def _split(text: str, separator: str) -> list[str]:
    """Splits at each separator outside brackets and quotes."""
    parts = [""]
    depth = 0
    quoted = False
    for before, char in zip(" " + text, text, strict=False):
        if char == '"' and before != "\\":
            quoted = not quoted
        elif not quoted and char in "[{":
            depth += 1
        elif not quoted and char in "]}":
            depth -= 1
        if char == separator and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts
