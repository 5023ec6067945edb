"""The base class of readers, and the installed ones: the entry points of the group `lox.readers`, from any distribution."""

from __future__ import annotations

import abc
import dataclasses
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import lox
from lox.loggers._errors import ReaderError

GROUP = "lox.readers"

Wanted = Callable[[str], bool]


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run that a reader has found.

    Args:
      name: its path, relative to the path that was asked for; `""` if that is the run itself.
      files: its files. Errors about the run name the first one.
    """

    name: str
    files: tuple[Path, ...]


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a stored run holds.

    Args:
      logs: its records, every key stacked.
      config: the config that `init` got.
      order: sorts the runs of a reader. Runs with equal order are sorted by name.
      left_out: the kind of each stored value that is not in `logs`, such as `{"sample": "image"}`.
    """

    logs: lox.logdict
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    order: tuple[int, ...] = ()
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Reader(abc.ABC):
    """Reads the runs in one kind of file, whichever program wrote them.

    If you publish a subclass under the entry-point group `lox.readers`, `lox.loggers.load` and the `lox` command read its files
    too. Its module is imported whenever anything is read, so put slow imports inside the methods.
    """

    patterns: ClassVar[tuple[str, ...]]
    """The names of its files, as `fnmatch` patterns: `("*.csv",)`."""

    def find(self, root: Path, files: Sequence[Path]) -> Iterable[StoredRun]:
        """The runs among `files`, which lie below `root` (or are `root`) and match `patterns`. By default, each file is a run.
        Leave out files that are not runs, because people keep other files next to their runs."""
        for file in files:
            yield StoredRun(run_name(root, file.with_suffix("")) if file != root else "", (file,))

    @abc.abstractmethod
    def read(self, run: StoredRun, wanted: Wanted) -> Recording:
        """What a run holds now. Its writer may still be writing, or may have been killed. Keys, or leaves of nested values
        (`key/leaf`), for which `wanted` is false need not be read. Raise a RunFormatError if the run cannot be read."""


def run_name(root: Path, place: Path) -> str:
    """The name of the run at `place`: its path relative to `root`, with slashes on every system."""
    name = place.relative_to(root).as_posix()
    return "" if name == "." else name


def installed_readers(names: Sequence[str] | None = None) -> dict[str, Reader]:
    """The readers by name: all of them, or only these. If one cannot be imported, that is an error, because its files would be
    skipped silently."""
    readers: dict[str, Reader] = {}
    points = importlib.metadata.entry_points(group=GROUP)
    if unknown := sorted(set(names or ()) - points.names):
        there = ", ".join(sorted(points.names))
        raise ReaderError(f"no reader {unknown[0]!r} is installed; installed: {there}")
    for point in sorted(points, key=lambda point: (_OWN.get(point.name, len(_OWN)), point.name)):
        if names is not None and point.name not in names:
            continue
        reader = _load(point)
        if point.name not in readers:
            readers[point.name] = reader
        elif type(readers[point.name]) is not type(reader):
            claims = f"{_origin(point)} and {type(readers[point.name]).__module__}"
            raise ReaderError(f"the reader name {point.name!r} is claimed twice, by {claims}: uninstall one of them")
    return readers


_OWN = {name: place for place, name in enumerate(("save", "jsonl", "csv", "tensorboard", "wandb"))}


def _load(point: importlib.metadata.EntryPoint) -> Reader:
    try:
        loaded = point.load()
        if isinstance(loaded, type) and issubclass(loaded, Reader):
            return loaded()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit: a plugin must not end the program that asks for it
        raise ReaderError(
            f"the reader {_origin(point)} cannot be used: {type(error).__name__}: {error}. Uninstall its package, or "
            "name the readers you need, as in load(path, readers=['save'])"
        ) from error
    raise ReaderError(f"the reader {_origin(point)} is not a subclass of lox.loggers.Reader, but {loaded!r}")


def _origin(point: importlib.metadata.EntryPoint) -> str:
    distribution = getattr(point, "dist", None)
    owner = "" if distribution is None else f" from {distribution.name} {distribution.version}"
    return f"{point.name!r} ({point.value}{owner})"
