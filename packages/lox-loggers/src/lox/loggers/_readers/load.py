"""Reading saved runs back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

import jax
import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.save import dtypes
from lox.loggers._backends.save.key_files import load_block, row_count
from lox.loggers._backends.save.manifest import FILE, FileInfo, Manifest
from lox.loggers._errors import RunFormatError


@overload
def load(path: str | os.PathLike[str], stack: Literal[True]) -> lox.logdict: ...


@overload
def load(path: str | os.PathLike[str], stack: bool = False) -> Any: ...


def load(path: str | os.PathLike[str], stack: bool = False) -> Any:
    """What a `SaveLogger` has saved: the logdict of a run, or of a folder of runs `{name: logdict}`.

    Runs come in the order in which they were opened: those of `jax.vmap(logger.init)(keys)` in the order of the keys. With
    `stack=True` they come as one logdict with a leading run axis, then the records: a key logged once has shape
    `(runs, 1)`. Values are numpy arrays (memory-mapped where they are large), PRNG keys JAX key arrays; nested values of
    classes that JSON does not know come as dicts.

    >>> for seed in range(2):
    ...     with lox.loggers.SaveLogger("runs") as logger:
    ...         logger.log(logger.init(jax.random.key(seed)), {"loss": 0.5 + seed}, step=3)
    >>> lox.loggers.load("runs")
    {'0000000000000000': {'loss': [0.5]}, '0000000000000001': {'loss': [1.5]}}
    >>> lox.loggers.load("runs", stack=True)["loss"].shape
    (2, 1)
    """
    folder = Path(path)
    if (folder / FILE).is_file():
        logs = _load_run(folder, Manifest.read(folder))
        return stack_runs({folder.name: logs}) if stack else logs
    runs = {run.name: _load_run(run, manifest) for run, manifest in _runs_below(folder)}
    return stack_runs(runs) if stack else runs


def _runs_below(folder: Path) -> list[tuple[Path, Manifest]]:
    """The runs saved directly below a folder, in the order in which they were created."""
    if not folder.is_dir():
        raise RunFormatError(f"{folder} is not a folder: give load the path of a run, or the path of a SaveLogger")
    found = [(child, Manifest.read(child)) for child in folder.iterdir() if (child / FILE).is_file()]
    if not found:
        raise RunFormatError(
            f"{folder} holds no saved runs: no {FILE} in it, nor in a folder directly below it{_of_another(folder)}"
        )
    return sorted(found, key=lambda run: (run[1].place, run[0].name))


def _of_another(folder: Path) -> str:
    for pattern, backend in (("*.csv", "csv"), ("*.jsonl", "jsonl"), ("*/events.out.tfevents.*", "tensorboard")):
        if next(folder.glob(pattern), None) is not None:
            return f" (these look like runs of the {backend!r} backend; load reads those of 'save')"
    return ""


def _load_run(folder: Path, manifest: Manifest) -> lox.logdict:
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    for key, info in manifest.logs.items():
        block = load_block(folder, info)
        if not row_count(block):
            continue
        data[key] = _tree.tree_of(
            [(column.path, _restore(folder, column, block[column.path])) for column in info.values]
        )
        for axis, column in info.steps.items():
            steps.setdefault(axis, {})[key] = dtypes.decode(block[axis], column.dtype)
    return lox.logdict(data, steps=steps, stacked=list(data))


def _restore(folder: Path, column: FileInfo, rows: np.ndarray) -> Any:
    try:
        return dtypes.restore(rows, column.dtype)
    except (TypeError, ValueError) as error:  # of JAX, which knows no such keys
        raise RunFormatError(f"{folder / column.file} does not hold values of dtype {column.dtype}: {error}") from error


def stack_runs(runs: Mapping[str, lox.logdict]) -> lox.logdict:
    """Runs with the same keys and numbers of records as one logdict, with a leading run axis."""
    (first_name, first), *others = runs.items()
    for name, logs in others:
        if logs.keys() != first.keys():
            differing = ", ".join(sorted(logs.keys() ^ first.keys()))
            raise RunFormatError(
                f"runs {first_name!r} and {name!r} cannot be stacked: only one of them has {differing}"
            )
        for key in first:
            if logs.counts[key] != first.counts[key]:
                raise RunFormatError(
                    f"runs {first_name!r} and {name!r} cannot be stacked: {first.counts[key]} and {logs.counts[key]} "
                    f"records of {key!r}; load them without stack=True"
                )

    def stacked(*leaves: Any) -> Any:
        return jax.numpy.stack(leaves) if isinstance(leaves[0], jax.Array) else np.stack(leaves)

    every = list(runs.values())
    data = {key: jax.tree_util.tree_map(stacked, *[logs[key] for logs in every]) for key in first}
    steps = {
        axis: {key: np.stack([logs.steps[axis][key] for logs in every]) for key in by_key}
        for axis, by_key in first.steps.items()
    }
    counts = {key: np.asarray([logs.counts[key] for logs in every]) for key in first}
    return lox.logdict(data, steps=steps, counts=counts, stacked=list(first))
