"""Names of runs: how `name=` is filled in, and how names are made safe for every file system.

A name is a path: its slashes are folders if the backend has folders. Letters, digits, some marks and everything printable
beyond ASCII stay as they are. Everything else is percent-encoded, so different names stay different, and
`urllib.parse.unquote` returns the original text.
"""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lox.loggers._errors import LoggerOptionError

if TYPE_CHECKING:
    from lox.loggers._delivery.run import Run

_MARKS = frozenset("_-.=+,@ ()[]")
# On Windows these names are devices, whatever their extension.
_DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})
_LONGEST = 200  # bytes: most file systems allow 255, and numbers, extensions and temporary suffixes need room
_OWN_FIELDS = ("lane", "key", "process")
_MOST_OF_A_NAME = 100_000


def check_format(owner: str, option: str, given: Any) -> None:
    """Raises an error for anything but a format string or a function."""
    if given is None or callable(given):
        return
    if not isinstance(given, str) or not given:
        raise LoggerOptionError(
            f"{owner}: {option}={given!r}; it must be a format string, such as 'lr={{rate:.2g}}/seed={{lane}}', or a "
            "function of the Run"
        )
    try:
        unnamed = any(field is not None and not _parts(field) for _, field, *_ in string.Formatter().parse(given))
    except ValueError as error:
        raise LoggerOptionError(f"{owner}: {option}={given!r} is not a format string: {error}") from None
    if unnamed:
        raise LoggerOptionError(f"{owner}: {option}={given!r} has a field without a name: write {{lane}} or {{rate}}")


def uses_process(given: Any) -> bool:
    """Whether a format contains the process."""
    fields = string.Formatter().parse(given) if isinstance(given, str) else ()
    return any(field is not None and _parts(field)[0] == "process" for _, field, *_ in fields)


def fill_format(owner: str, option: str, given: Any, run: Run) -> str:
    """The text that a format string, or a function, makes of a run."""
    text = given(run) if callable(given) else _Fields(f"{owner}: {option}={given!r}").vformat(given, (), {"run": run})
    if isinstance(text, str):
        return text
    raise LoggerOptionError(f"{owner}: the function given as {option}= must return a str; it returned {text!r}")


class _Fields(string.Formatter):
    """Looks fields up in the config of the run (`{rate}`, `{net.width}`, `{net[width]}`), and then among `lane`, `key` and
    `process`."""

    def __init__(self, who: str) -> None:
        self._who = who

    def get_field(self, field_name: str, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        run: Run = kwargs["run"]
        first, *rest = _parts(field_name)
        config = run.plain_config
        if first in config:
            return self._descend(config[first], first, rest), first
        if first not in _OWN_FIELDS:
            raise self._unknown(field_name, config)
        if first == "lane" and rest:
            return self._lane(run.lane_index, rest), first
        return {"lane": run.lane, "key": run.hex_key, "process": run.process_index}[first], first

    def _lane(self, index: tuple[int, ...], rest: list[str]) -> int:
        places = {str(axis): place for axis, place in enumerate(index)}
        if len(rest) == 1 and rest[0] in places:
            return places[rest[0]]
        field = f"lane{''.join(f'[{part}]' for part in rest)}"
        if not places:
            raise LoggerOptionError(f"{self._who} has the field {field!r}, but this init is not vmapped; {{lane}} is 0")
        known = ", ".join(f"{{lane[{axis}]}}" for axis in places)
        raise LoggerOptionError(
            f"{self._who} has the field {field!r}, but this init is vmapped {_times(len(places))}: there is {known}, and "
            "{lane}, the number among all lanes"
        )

    def _descend(self, value: Any, path: str, rest: list[str]) -> Any:
        for part in rest:
            children = _children(value)
            if part not in children:
                there = f"it has {', '.join(map(repr, children))}" if children else "it is empty"
                raise LoggerOptionError(f"{self._who}: {path!r} has no {part!r}; {there}")
            value, path = children[part], f"{path}.{part}"
        return value

    def _unknown(self, field: str, config: Mapping[str, Any]) -> LoggerOptionError:
        return LoggerOptionError(
            f"{self._who} has the field {field!r}, which is neither in the config that init was given "
            f"({', '.join(map(repr, config)) or 'none'}) nor one of {', '.join(map(repr, _OWN_FIELDS))}"
        )

    def format_field(self, value: Any, format_spec: str) -> str:
        try:
            return str(format(value, format_spec))
        except (TypeError, ValueError) as error:
            raise LoggerOptionError(f"{self._who}: {value!r} cannot be written as {format_spec!r}: {error}") from None


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _children(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    return {str(i): item for i, item in enumerate(value)} if isinstance(value, list) else {}


def _parts(field: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", field)


def safe_name(who: str, name: str) -> str:
    """A name that is a path below the folder of a logger on every file system, different for different names.

    Args:
      who: what errors say about where the name comes from.
    """
    parts = unicodedata.normalize("NFC", name).split("/")
    if any(part.strip() in ("", ".", "..") for part in parts):
        raise LoggerOptionError(
            f"{who}: a run cannot have the name {name!r}: it would leave the folder of the logger. No part between slashes may "
            "be empty, '.' or '..'"
        )
    return "/".join(map(_safe_part, parts))


def _safe_part(text: str) -> str:
    part = "".join(char if _is_safe(char) else _percent(char) for char in text)
    if part[0] in ". " or part.split(".")[0].casefold() in _DEVICES:
        part = _percent(part[0]) + part[1:]
    if part[-1] in ". ":
        part = part[:-1] + _percent(part[-1])
    if len(part.encode()) <= _LONGEST:
        return part
    # The hash keeps long names different. No other name contains `%%`.
    return f"{part.encode()[:100].decode(errors='ignore')}%%{hashlib.sha256(part.encode()).hexdigest()[:32]}"


def _is_safe(char: str) -> bool:
    return char in _MARKS or char.isalnum() or (not char.isascii() and char.isprintable())


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))


def folded(name: str) -> str:
    """A form that is equal for names that some file system treats as the same."""
    return name.casefold()


def numbered(name: str, first: int = 1) -> Iterator[str]:
    """`name`, `name-2`, `name-3`, ...: the names to try, in order."""
    return (name if number == 1 else f"{name}-{number}" for number in range(first, _MOST_OF_A_NAME))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short form of each name. Names made from keys are cut to eight digits, or to as many as keep them different."""
    names = list(names)
    length = 8
    while len({name[:length] for name in names}) < len(set(names)):
        length += 1
    of_keys = all(re.fullmatch(r"[0-9a-f]{8,}(-.*)?", name) for name in names)
    return {name: name[:length] if of_keys else name for name in names}
