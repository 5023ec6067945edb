"""Which runs and which values a command shows."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lox.loggers import _tree
from lox.loggers._cli.output import note
from lox.loggers._errors import LoggerOptionError, RunFormatError
from lox.loggers._readers import config as configs
from lox.loggers._readers.finding import Readable, read_below
from lox.loggers._readers.load import runs_of, unreadable
from lox.loggers._readers.reader import Reader, installed_readers
from lox.loggers._readers.runs import Runs
from lox.loggers._readers.selection import Keys


@dataclasses.dataclass(frozen=True)
class RunSelection:
    """What the user asked for. Each path is an experiment of its own.

    Args:
      also: config keys that are needed besides `keys`, to group or sort by.
    """

    paths: Sequence[str]
    keys: Sequence[str] = ("*",)
    where: Sequence[str] = ()
    readers: Sequence[str] | None = None
    also: Sequence[str] = ()


@dataclasses.dataclass
class Chosen:
    experiments: dict[str, Runs]
    wanted: Keys
    """Whether the value with a label was asked for."""
    whole: bool
    """Whether everything could be read."""


def choose(selection: RunSelection) -> Chosen:
    """The runs, with notes on stderr about what cannot be read or does not match."""
    conditions = dict(map(_condition, selection.where))
    readers = installed_readers(selection.readers)
    names = _experiment_names(selection.paths)
    reading = Keys([*selection.keys, *conditions, *selection.also])
    found = {name: _read(Path(path), readers, reading) for name, path in zip(names, selection.paths, strict=True)}
    experiments = {name: runs_of(readable, reading, own=Path(name).name) for name, readable in found.items()}
    wanted = Keys(selection.keys)
    _check_keys(selection, experiments, wanted, reading)
    if conditions:
        experiments = {name: _narrow(name, runs, conditions) for name, runs in experiments.items()}
    return Chosen(experiments, wanted, not any(readable.errors for readable in found.values()))


def _read(path: Path, readers: Mapping[str, Reader], wanted: Keys) -> Readable:
    readable = read_below(path, readers, wanted)
    if readable.errors and not readable.recordings:
        raise RunFormatError(unreadable(readable))
    if readable.errors:
        note(unreadable(readable))
    if len(readable.readers) > 1:
        kinds = " and ".join(sorted(readable.readers))
        note(f"{path} holds runs of {kinds}; if they are the same runs, choose with --reader {min(readable.readers)}")
    return readable


def _check_keys(selection: RunSelection, experiments: Mapping[str, Runs], wanted: Keys, reading: Keys) -> None:
    kept = {
        name
        for runs in experiments.values()
        for logs in runs.values()
        for key in logs
        for path, _ in _tree.leaves_of(logs[key])
        for name in _tree.names_of(key, path)
    }
    there = sorted({*kept, *reading.seen})
    matching = [label for label in there if wanted(label)]
    paths = ", ".join(selection.paths)
    if not there and not any(config for runs in experiments.values() for config in runs.configs.values()):
        raise RunFormatError(f"{paths}: nothing has been logged yet")
    if there and not matching:
        raise RunFormatError(f"{paths}: no key matches {' '.join(selection.keys)}. Available keys: {', '.join(there)}")
    for pattern in wanted.unused if there else ():
        note(f"no key matches {pattern}")


def _experiment_names(paths: Sequence[str]) -> list[str]:
    """Short names in which the paths differ: `baseline` and `method` for `runs/baseline` and `runs/method`."""
    whole = [Path(os.path.abspath(path)) for path in paths]
    for place, path in enumerate(whole):
        if path in whole[:place]:
            raise LoggerOptionError(f"{paths[place]} is given twice, but each path is an experiment of its own")
    for length in range(1, max(len(path.parts) for path in whole) + 1):
        names = [Path(*path.parts[-length:]).as_posix() for path in whole]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in whole]


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise LoggerOptionError(f"--where {text!r}: write KEY=VALUE, such as rate=0.01")
    return key.strip(), value.strip()


def _narrow(experiment: str, runs: Runs, conditions: Mapping[str, str]) -> Runs:
    runs.check_known(conditions)
    for key, text in conditions.items():
        there = {configs.show(config[key]) for config in runs.flat_configs.values() if key in config}
        runs = runs.where(functools.partial(_has, key, text))
        if not runs:
            raise RunFormatError(
                f"no run of {experiment} has {key}={text}. Values of {key}: {', '.join(sorted(there)[:20])}"
            )
    return runs


def _has(key: str, text: str, config: Mapping[str, Any]) -> bool:
    return key in config and _matches(config[key], text)


def _matches(value: Any, text: str) -> bool:
    """Whether a value equals what the user wrote, such as `0.01`, `1e-2`, `true` or `adam`."""
    if isinstance(value, str):
        return value == text
    try:
        return configs.same(value, json.loads(text.lower() if text in ("True", "False") else text))
    except ValueError:
        return repr(value) == text
