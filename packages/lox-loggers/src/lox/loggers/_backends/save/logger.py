"""`SaveLogger`: each key a `.npy` file that grows, in a folder for each run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.config_file import in_folder, write_config
from lox.loggers._backends.save import dtypes
from lox.loggers._backends.save.key_files import Block, KeyFiles, load_block, row_count
from lox.loggers._backends.save.manifest import FILE, Manifest, has_begun
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import Run
from lox.loggers._delivery.tables import nbytes
from lox.loggers._errors import RecordError, RunExistsError, RunFormatError

# Rows are gathered before they go to disk: so many bytes, or so many writes. `flush` does not wait for it.
_GATHER_BYTES = 512 * 1024
_GATHER_WRITES = 4096


class SaveLogger(Logger):
    """Saves runs below the folder `path`; `lox.loggers.load` reads them, and so does plain `np.load`.

    The run's folder holds `KEY.npy` for the values and `KEY@AXIS.npy` for the steps of each key, and
    `lox.json`, which says what they are; `config.json` holds the config that `init` was given. Files can be read at any
    time, also after `kill -9`.

    >>> with lox.loggers.SaveLogger("runs") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> np.load("runs/0000000000000000/loss.npy").tolist()
    [0.25]
    """

    keys_apart = True  # each has files of its own

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # also after a change of folder

    def open(self, run: Run) -> SaveWriter:
        folder = self.path / run.name
        if run.resume and has_begun(folder):
            manifest = Manifest.read(folder)
            write_config(in_folder(folder), run)
            return SaveWriter(folder, manifest)
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(exist_ok=run.resume)
        except FileExistsError:
            raise RunExistsError(f"SaveLogger: {folder} exists already") from None
        manifest = Manifest.of(run)
        manifest.write(folder)
        write_config(in_folder(folder), run)
        return SaveWriter(folder, manifest)

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        folder = self.path / name
        if folder.is_symlink() or (has_begun(folder) and not (folder / FILE).is_file()):
            why = "is a link" if folder.is_symlink() else f"is not a saved run (it has no {FILE})"
            raise RunFormatError(f"SaveLogger: {folder} {why}, so it is not replaced")
        _remove(folder)

    def written(self, name: str) -> Steps:
        folder = self.path / name
        logs = Manifest.read(folder).logs if has_begun(folder) else {}
        blocks = {key: load_block(folder, info) for key, info in logs.items()}
        return {key: {axis: blocks[key][axis] for axis in info.steps} for key, info in logs.items()}


class SaveWriter:
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._keys = {key: KeyFiles.open(folder, key, info) for key, info in manifest.logs.items()}
        self._gathered: list[lox.logdict] = []
        self._bytes = 0

    def write(self, logs: lox.logdict) -> None:
        self._gathered.append(logs)
        self._bytes += nbytes(logs)
        if self._bytes >= _GATHER_BYTES or len(self._gathered) >= _GATHER_WRITES:
            self.flush()

    def flush(self) -> None:
        """Hands all rows to the operating system; from there they survive the death of the process."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        by_key: dict[str, list[lox.logdict]] = {}
        alike = _alike(gathered)
        for logs in gathered[:1] if alike else gathered:
            for key in logs:
                by_key.setdefault(key, []).append(logs)
        failures = _FirstFailure()
        ready: list[tuple[KeyFiles, Block]] = []
        joined: dict[Any, np.ndarray] = {}
        for key, parts in by_key.items():
            ready += self._prepare(key, gathered if alike else parts, alike, joined, failures)
        if any(stored.changed for stored, _ in ready):
            with failures.of(0):  # the rows can be written all the same, and the manifest with the next ones
                self._write_manifest()
        for stored, block in ready:
            with failures.of(row_count(block)):
                stored.append(block)
        failures.raise_first()

    close = flush

    def _prepare(
        self, key: str, parts: list[lox.logdict], alike: bool, joined: dict[Any, np.ndarray], failures: _FirstFailure
    ) -> list[tuple[KeyFiles, Block]]:
        """The rows of a key in one block, or table by table where they do not fit together."""
        try:
            block = _block(key, parts, alike, joined)
            return [(self._fit(key, block), block)]
        except (ValueError, TypeError, OSError):
            ready = []
            for logs in parts:
                with failures.of(int(logs.counts[key])):
                    block = _block(key, [logs], True, {})
                    ready.append((self._fit(key, block), block))
            return ready

    def _fit(self, key: str, block: Block) -> KeyFiles:
        if key not in self._keys:
            self._keys[key] = KeyFiles.create(self._folder, key, block)
        self._keys[key].fit(block)
        return self._keys[key]

    def _write_manifest(self) -> None:
        self._manifest.logs = {key: stored.info for key, stored in self._keys.items()}
        self._manifest.write(self._folder)
        for stored in self._keys.values():
            stored.changed = False


class _FirstFailure:
    """Goes on with the other keys when one fails, and raises the first failure at the end."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._lost = 0
        self._rows = 0

    def of(self, rows: int) -> _FirstFailure:
        self._rows = rows
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._first = self._first or error
        self._lost = max(self._lost, self._rows)
        return True

    def raise_first(self) -> None:
        if self._first is not None:
            self._first.lost_records = self._lost  # type: ignore[attr-defined]  # see Logger: what a writer may tell
            raise self._first


def _remove(folder: Path) -> None:
    """Deletes a run; its manifest last, so that what is left if we are killed meanwhile can be replaced or resumed."""
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != FILE:
            child.unlink()
    shutil.rmtree(folder)


def _block(key: str, parts: Sequence[lox.logdict], alike: bool, joined: dict[Any, np.ndarray]) -> Block:
    """The rows of a key from several tables. `joined` remembers steps, which keys of a record share."""
    values = [logs[key] for logs in parts]
    if all(type(value) is np.ndarray for value in values):
        block: Block = {(): _concatenate(values)}
    else:
        block = _join_leaves([dict(_tree.leaves_of(value)) for value in values])
    axes = _axes(key, parts[0])
    if not alike and any(_axes(key, logs) != axes for logs in parts[1:]):
        raise RecordError("tables of different step axes")
    for axis in axes:
        columns = [logs._steps[axis][key] for logs in parts]
        name = tuple(map(id, columns))
        if name not in joined:
            joined[name] = _concatenate(columns)
        block[axis] = joined[name]
    return block


def _alike(tables: Sequence[lox.logdict]) -> bool:
    """Whether all tables have the same keys, and all of these the same step axes: the usual case, and less work."""
    if not tables:
        return False
    keys, axes = tables[0].keys(), tables[0].steps.keys()
    for logs in tables:
        if logs.keys() != keys or logs.steps.keys() != axes:
            return False
        for by_key in logs.steps.values():
            if len(by_key) != len(keys):
                return False
    return True


def _axes(key: str, logs: lox.logdict) -> list[str]:
    return [axis for axis, by_key in logs.steps.items() if key in by_key]


def _join_leaves(blocks: Sequence[Block]) -> Block:
    if any(block.keys() != blocks[0].keys() for block in blocks):
        raise RecordError("tables of different structure")
    return {name: _concatenate([block[name] for block in blocks]) for name in blocks[0]}


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
    first = arrays[0].dtype
    if len(arrays) == 1:
        return arrays[0]
    if first.kind in "US" or first.metadata or any(array.dtype != first for array in arrays):
        dtypes.common({dtypes.name_of(array.dtype) for array in arrays})
    joined = np.concatenate(arrays)
    return joined.view(first) if first.metadata else joined  # which np.concatenate forgets
