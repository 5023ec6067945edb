"""Finding and reading the runs below a path."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lox.loggers._errors import RunFormatError
from lox.loggers._readers.reader import Reader, Recording, StoredRun, Wanted


class Found(NamedTuple):
    reader: str
    run: StoredRun


class Readable(NamedTuple):
    """The runs that could be read, by name and in order, and the errors of the others, by file."""

    recordings: dict[str, Recording]
    errors: dict[str, Exception]
    readers: set[str]
    """The readers that found something."""
    is_run: bool
    """Whether the path is that of a single run, with no other run below it."""


def read_below(path: Path, readers: Mapping[str, Reader], wanted: Wanted) -> Readable:
    found = _once_each(find(path, readers))
    if not found:
        raise RunFormatError(_nothing(path, readers))
    recordings: dict[str, tuple[int, Recording]] = {}
    errors: dict[str, Exception] = {}
    places = {name: place for place, name in enumerate(readers)}
    for reader, run in found:
        try:
            recordings[run.name] = (places[reader], readers[reader].read(run, wanted))
        except (RunFormatError, OSError) as error:
            errors[str(run.files[0])] = error
    ordered = sorted(recordings, key=lambda name: (recordings[name][0], recordings[name][1].order, _natural(name)))
    is_run = len(found) == 1 and not found[0].run.name
    return Readable({name: recordings[name][1] for name in ordered}, errors, {each.reader for each in found}, is_run)


def find(path: Path, readers: Mapping[str, Reader]) -> list[Found]:
    """All runs below a path, or at it."""
    if not path.exists():
        raise RunFormatError(f"{path} does not exist. Pass the path of a run, or of a folder with runs in it")
    patterns = {name: _matcher(reader.patterns) for name, reader in readers.items()}
    files: dict[str, list[Path]] = {name: [] for name in readers}
    for folder, names in _walk(path):
        for reader, matches in patterns.items():
            files[reader] += [Path(folder, name) for name in filter(matches, names)]
    return [
        Found(name, run)
        for name, reader in readers.items()
        if files[name]
        for run in sorted(reader.find(path, files[name]), key=lambda run: _natural(run.name))
    ]


def _walk(path: Path) -> Iterator[tuple[str, list[str]]]:
    if not path.is_dir():
        yield str(path.parent), [path.name]
        return
    for folder, folders, names in os.walk(path, onerror=_refuse):
        # Folders of version control and environments hold no runs. Other hidden folders, such as .lox, are searched.
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        yield folder, sorted(names)


_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", "site-packages"})


def _refuse(error: OSError) -> None:
    raise RunFormatError(f"{error.filename} cannot be read: {error.strerror}") from error


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(fnmatch.translate, patterns))).match


def _once_each(found: Iterable[Found]) -> list[Found]:
    """If two backends write to one folder, the same run is there twice, under one name. Only the first reader returns it,
    because a run that counts twice would distort every mean."""
    by_name: dict[str, Found] = {}
    for each in found:
        by_name.setdefault(each.run.name, each)
    return list(by_name.values())


def _nothing(path: Path, readers: Mapping[str, Reader]) -> str:
    kinds = ", ".join(f"{name} ({', '.join(reader.patterns)})" for name, reader in readers.items())
    where = f"there are no runs in {path} or below it" if path.is_dir() else f"{path} is not a run"
    return f"{where}; installed readers: {kinds}"


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts `seed=10` after `seed=9`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
