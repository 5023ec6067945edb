"""File names for keys: any text becomes a name that every file system takes, and different texts get different names.

Lower-case letters, digits and `_-.` stay. Everything else, including capital letters, is percent-encoded. So names differ even
if case is ignored, and `urllib.parse.unquote` returns the text.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence

_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-.")

# On Windows these names are devices, whatever their extension.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})

# Most file systems allow 255 bytes. The rest is for extensions and temporary suffixes.
_LONGEST = 200


def escape(text: str) -> str:
    """A file name part for `text`, different for different texts; never empty, and without `~` and `@`."""
    name = "".join(char if char in _PLAIN else _percent(char) for char in text)
    if name.startswith(".") or name.split(".")[0] in _DEVICES:
        name = _percent(name[0]) + name[1:]  # no hidden files, no `..`, no devices
    return name or "%"


def value_file(key: str, path: Sequence[object]) -> str:
    """The file for a leaf of a key's values: `params~w.npy`."""
    return _shorten("~".join(escape(str(part)) for part in (key, *path))) + ".npy"


def step_file(key: str, axis: str) -> str:
    """The file for the steps of a key along an axis: `loss@step.npy`."""
    return _shorten(f"{escape(key)}@{escape(axis)}") + ".npy"


def _shorten(name: str) -> str:
    if len(name) <= _LONGEST:
        return name
    # The hash keeps long names different. No other name contains `%%`.
    return f"{name[:100]}%%{hashlib.sha256(name.encode()).hexdigest()}"


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
