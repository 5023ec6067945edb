"""`load`: reading runs back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import lox
from lox.loggers._errors import LoggerOptionError, LoggerWarning, RunFormatError, UnreadableRunsError
from lox.loggers._readers.finding import Readable, read_below
from lox.loggers._readers.reader import installed_readers
from lox.loggers._readers.runs import Runs
from lox.loggers._readers.selection import Keys

_MOST_ERRORS = 20  # that one message lists


@overload
def load(
    path: str | os.PathLike[str],
    stack: Literal[True],
    *,
    keys: str | Iterable[str] | None = None,
    readers: str | Sequence[str] | None = None,
    on_error: Literal["raise", "warn"] = "raise",
) -> lox.logdict: ...


@overload
def load(
    path: str | os.PathLike[str],
    stack: bool = False,
    *,
    keys: str | Iterable[str] | None = None,
    readers: str | Sequence[str] | None = None,
    on_error: Literal["raise", "warn"] = "raise",
) -> Any: ...


def load(
    path: str | os.PathLike[str],
    stack: bool = False,
    *,
    keys: str | Iterable[str] | None = None,
    readers: str | Sequence[str] | None = None,
    on_error: Literal["raise", "warn"] = "raise",
) -> Any:
    """Reads logs from files. For a run, it returns its logdict. For a folder with runs in it, at any depth, it returns `Runs`, a
    mapping `{name: logdict}` that can be filtered, grouped, stacked and turned into a table.

    It reads the files of every backend, whichever program wrote them: `save`, `csv` and `jsonl`, TensorBoard's event files
    (with lox-tensorboard installed) and offline runs of wandb (with lox-wandb). The name of a run is its path below `path`.
    Runs are in the order in which they were opened: those of `jax.vmap(logger.init)(keys)` in the order of the keys. Values
    are numpy arrays (memory-mapped if they are large), and PRNG keys are JAX key arrays. Nested values of classes that JSON does
    not have, such as dataclasses, are dicts.

    Args:
      path: a run, or a folder with runs in it or in folders below.
      stack: if True, return one logdict with a leading run axis, like `load(path).stack()`.
      keys: only these keys, or leaves of nested values; patterns such as `"train/*"` work.
      readers: only runs that these readers read, such as `"save"`.
      on_error: what happens if runs cannot be read. `"raise"` raises an UnreadableRunsError that names them all, with the
        other runs as `error.runs`. `"warn"` warns and returns the other runs.

    >>> for seed in range(2):
    ...     with lox.loggers.SaveLogger("runs") as logger:
    ...         logger.log(logger.init(jax.random.key(seed)), {"loss": 0.5 + seed}, step=3)
    >>> lox.loggers.load("runs")
    {'0000000000000000': {'loss': [0.5]}, '0000000000000001': {'loss': [1.5]}}
    >>> lox.loggers.load("runs", stack=True)["loss"].shape
    (2, 1)
    """
    if on_error not in ("raise", "warn"):
        raise LoggerOptionError(f"load: on_error={on_error!r}; it must be 'raise' or 'warn'")
    wanted = Keys(keys)
    found = read_below(Path(path), installed_readers([readers] if isinstance(readers, str) else readers), wanted)
    if found.is_run and found.errors:
        raise next(iter(found.errors.values()))
    runs = runs_of(found, wanted)
    if found.errors:
        _tell(found, runs, on_error)
    if keys is not None and wanted.seen and not any(runs.values()):
        raise RunFormatError(
            f"{path}: no key matches {' '.join(wanted.patterns)}. Available keys: {', '.join(wanted.seen)}"
        )
    if stack:
        return runs.stack()
    return next(iter(runs.values())) if found.is_run else runs


def runs_of(found: Readable, wanted: Keys, own: str = ".") -> Runs:
    """The runs that were found.

    Args:
      own: the name of the run that is the path itself.
    """
    named = {name or own: recording for name, recording in found.recordings.items()}
    return Runs(
        {name: wanted.choose(recording.logs) for name, recording in named.items()},
        {name: recording.config for name, recording in named.items()},
        {name: recording.left_out for name, recording in named.items()},
    )


def unreadable(found: Readable) -> str:
    """The message about runs that cannot be read, with a line for each."""
    lines = [_line(file, error) for file, error in found.errors.items()]
    more = [f"and {len(lines) - _MOST_ERRORS} more"] if len(lines) > _MOST_ERRORS else []
    total = len(lines) + len(found.recordings)
    return "\n  ".join([f"{len(lines)} of {total} runs cannot be read:", *lines[:_MOST_ERRORS], *more])


def _line(file: str, error: Exception) -> str:
    message = f"{file} cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return message if file in message or str(Path(file).parent) in message else f"{file}: {message}"


def _tell(found: Readable, runs: Runs, on_error: str) -> None:
    if on_error == "warn":
        warnings.warn(f"load: {unreadable(found)}", LoggerWarning, stacklevel=3)
        return
    hint = "\nThe others are in error.runs; load(path, on_error='warn') returns them"
    raise UnreadableRunsError(unreadable(found) + hint, runs, found.errors)
