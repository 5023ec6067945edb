"""Which runs lie below a path, and what they hold."""

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
    """What could be read, by name and in order, and what is wrong with the rest, by file."""

    recordings: dict[str, Recording]
    errors: dict[str, Exception]
    readers: set[str]
    """Those that found something."""
    is_run: bool
    """The path is that of a single run, and there is nothing else below it."""


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
        raise RunFormatError(f"{path} does not exist: give the path of a run, or of a folder with runs in it")
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
        # Neither version control nor environments hold runs; but a hidden folder that is asked for (.lox) is walked.
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        yield folder, sorted(names)


_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", "site-packages"})


def _refuse(error: OSError) -> None:
    raise RunFormatError(f"{error.filename} cannot be read: {error.strerror}") from error


def _matcher(patterns: Sequence[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(fnmatch.translate, patterns))).match


def _once_each(found: Iterable[Found]) -> list[Found]:
    """Two backends that write to one folder leave the same run twice, under one name: the first reader has it. Counted
    twice, it would spoil every mean."""
    by_name: dict[str, Found] = {}
    for each in found:
        by_name.setdefault(each.run.name, each)
    return list(by_name.values())


def _nothing(path: Path, readers: Mapping[str, Reader]) -> str:
    kinds = ", ".join(f"{name} ({', '.join(reader.patterns)})" for name, reader in readers.items())
    where = f"{path} holds no runs, nor does a folder below it" if path.is_dir() else f"{path} is not a run"
    return f"{where}; installed readers: {kinds}"


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Sorts `seed=10` behind `seed=9`."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name))
