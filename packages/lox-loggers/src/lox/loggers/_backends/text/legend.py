"""What the labels of a text file stand for: step axes, and leaves of the values of keys.

A row of text has labels such as `step`, `loss` and `params/w`. The file alone does not show whether `params/w` is a key or a
leaf of `params`, nor which labels are steps. So each run has a legend in a separate file, `RUN.csv.columns.json`, which is
written before any row that needs it. A run is resumed or replaced only if it has a legend, which shows that lox wrote it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lox.loggers import _files, _tree
from lox.loggers._errors import RunFormatError

FORMAT = 1


class Legend:
    """Gives each step axis and each leaf its own label, and remembers it.

    The label is the name, `step` or `params/w`. If that is taken, its kind is added: `step (value)`, `epoch (step)`.
    """

    def __init__(self, escape: Callable[[str], str] = str) -> None:
        """
        Args:
          escape: converts a label to the form in which it is written.
        """
        self._escape = escape
        self.axes: dict[str, str] = {}
        self._leaves: dict[tuple[str, _tree.Path], str] = {}
        self._taken: set[str] = set()
        self._others: dict[str, Any] = {}  # other fields of the file
        self._saved = False

    @classmethod
    def read(cls, file: Path, escape: Callable[[str], str] = str) -> Legend:
        """Reads the legend of an existing run."""
        legend = cls(escape)
        _files.refuse_way_out(file.parent, file)
        try:
            legend._others = data = dict(json.loads(file.read_bytes()))
            if data.pop("format") != FORMAT:
                raise ValueError("it was written by another version of lox")
            for label, meaning in data.pop("columns").items():
                legend._add(label, meaning)
        except FileNotFoundError:
            raise
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, AttributeError) as error:
            raise RunFormatError(f"{file} is damaged: {type(error).__name__}: {error}") from error
        legend._saved = True
        return legend

    def axis(self, name: str) -> str:
        """The label of a step axis."""
        if name not in self.axes:
            self.axes[name] = self.new_label(name, "step")
        return self.axes[name]

    def leaf(self, key: str, path: _tree.Path = ()) -> str:
        """The label of a leaf of the values of a key."""
        place = (key, path)
        if place not in self._leaves:
            self._leaves[place] = self.new_label(_tree.label(key, path), "value")
        return self._leaves[place]

    @property
    def leaves(self) -> Mapping[tuple[str, _tree.Path], str]:
        """The label of each leaf, by its key and its path."""
        return self._leaves

    def keys(self) -> dict[str, set[str]]:
        """The labels of each key."""
        labels: dict[str, set[str]] = {}
        for (key, _), label in self._leaves.items():
            labels.setdefault(key, set()).add(label)
        return labels

    def save(self, file: Path) -> None:
        """Writes the legend, if there is anything new in it."""
        if not self._saved:
            columns = dict(self._meanings())
            text = json.dumps({"format": FORMAT, **self._others, "columns": columns}, indent=1)
            _files.replace(file, [text.encode("ascii"), b"\n"])
            self._saved = True

    def _meanings(self) -> Iterator[tuple[str, Any]]:
        for name, label in self.axes.items():
            yield label, {"axis": name}
        for (key, path), label in self._leaves.items():
            yield label, {"key": key, **({"path": path} if path else {})}

    def _add(self, label: str, meaning: Mapping[str, Any]) -> None:
        if label in self._taken:
            raise ValueError(f"it has {label!r} twice")
        self._taken.add(label)
        if "axis" in meaning:
            self.axes[_text(meaning["axis"])] = label
        else:
            path = tuple((_text(kind), _name(name)) for kind, name in meaning.get("path", ()))
            self._leaves[_text(meaning["key"]), path] = label

    def new_label(self, name: str, kind: str) -> str:
        """A unique label; `kind` is added if the name is taken."""
        numbered = (f"{name} ({kind} {number})" for number in itertools.count(2))
        choices = map(self._escape, itertools.chain([name, f"{name} ({kind})"], numbered))
        label = next(choice for choice in choices if choice not in self._taken)
        self._taken.add(label)
        self._saved = False
        return label


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a name")
    return value


def _name(value: Any) -> str | int:
    if not isinstance(value, str | int):
        raise TypeError(f"{value!r} is not a name")
    return value
