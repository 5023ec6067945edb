"""`SaveLogger`: each key a `.npy` file that grows, in a folder for each run."""

from __future__ import annotations

import functools
import math
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import _dtypes, _names, _tree
from lox.loggers._errors import RecordError, RunExistsError, RunFormatError
from lox.loggers._logger import Logger
from lox.loggers._manifest import FILE, ColumnInfo, KeyInfo, Manifest
from lox.loggers._npy import NpyFile, load_rows
from lox.loggers._records import nbytes
from lox.loggers._resume import Steps
from lox.loggers._run import Run

# Rows are gathered before they go to disk: so many bytes, or so many writes. `flush` does not wait for it.
_GATHER_BYTES = 512 * 1024
_GATHER_WRITES = 4096

Block = dict[Any, np.ndarray]  # the rows for each column: by path for values, by axis for steps


class SaveLogger(Logger):
    """Saves runs below the folder `path`; `lox.loggers.load` reads them, and so does plain `np.load`.

    The run's folder holds `KEY.npy` for the values and `KEY@AXIS.npy` for the steps of each key, and
    `lox.json`, which says what they are. Files can be read at any time, also after `kill -9`.
    """

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path)

    def open(self, run: Run) -> SaveWriter:
        folder = self.path / run.name
        if run.resume:
            return SaveWriter(folder, Manifest.read(folder))
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
        except FileExistsError:
            raise RunExistsError(f"SaveLogger: {folder} exists already") from None
        manifest = Manifest.of(run)
        manifest.write(folder)
        return SaveWriter(folder, manifest)

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        folder = self.path / name
        if not (folder / FILE).is_file():
            raise RunFormatError(f"SaveLogger: {folder} is not a saved run (it has no {FILE}), so it is not replaced")
        shutil.rmtree(folder)

    def written(self, name: str) -> Steps:
        folder = self.path / name
        steps = {}
        for key, info in Manifest.read(folder).logs.items():
            rows = whole_rows(folder, info)
            steps[key] = {axis: load_rows(folder / column.file)[:rows] for axis, column in info.steps.items()}
        return steps


class SaveWriter:
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._keys = {key: _StoredKey.open(folder, key, info) for key, info in manifest.logs.items()}
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
        failures = _Failures()
        ready: list[tuple[_StoredKey, Block]] = []
        joined: dict[Any, np.ndarray] = {}
        for key, parts in by_key.items():
            ready += self._prepare(key, gathered if alike else parts, alike, joined, failures)
        if any(stored.changed for stored, _ in ready):
            self._write_manifest()
        for stored, block in ready:
            with failures.of(len(next(iter(block.values())))):
                stored.append(block)
        failures.raise_first()

    close = flush

    def _prepare(
        self, key: str, parts: list[lox.logdict], alike: bool, joined: dict[Any, np.ndarray], failures: _Failures
    ) -> list[tuple[_StoredKey, Block]]:
        """The rows of a key in one block, or table by table where they do not fit together."""
        try:
            block = _block(key, parts, alike, joined)
            return [(self._fit(key, block), block)]
        except (RecordError, ValueError, TypeError):
            ready = []
            for logs in parts:
                with failures.of(int(logs.counts[key])):
                    block = _block(key, [logs], True, {})
                    ready.append((self._fit(key, block), block))
            return ready

    def _fit(self, key: str, block: Block) -> _StoredKey:
        if key not in self._keys:
            self._keys[key] = _StoredKey.create(self._folder, key, block)
        self._keys[key].fit(block)
        return self._keys[key]

    def _write_manifest(self) -> None:
        for key, stored in self._keys.items():
            self._manifest.logs[key] = stored.info
            stored.changed = False
        self._manifest.write(self._folder)


class _StoredKey:
    """The files of one key, which have the same number of rows."""

    def __init__(self, key: str, info: KeyInfo, files: dict[Any, NpyFile], rows: int) -> None:
        self.info = info
        self.changed = False  # the manifest does not know it yet
        self._key = key
        self._columns: dict[Any, ColumnInfo] = {column.path: column for column in info.values} | info.steps
        self._files = files
        self._rows = rows

    @classmethod
    def create(cls, folder: Path, key: str, block: Block) -> _StoredKey:
        values, steps = [], {}
        for name, rows in block.items():
            dtype, shape = _dtypes.name_of(rows.dtype), rows.shape[1:]
            if isinstance(name, str):
                steps[name] = ColumnInfo(_names.step_file(key, name), dtype, shape)
            else:
                file = _names.value_file(key, [part for _, part in name])
                values.append(ColumnInfo(file, dtype, shape, name))
        stored = cls(key, KeyInfo(values, steps), {}, 0)
        for name, column in stored._columns.items():
            dtype = _dtypes.encode(block[name]).dtype
            stored._files[name] = NpyFile.create(folder / column.file, dtype, column.shape)
        stored.changed = True
        return stored

    @classmethod
    def open(cls, folder: Path, key: str, info: KeyInfo) -> _StoredKey:
        """Continues where all files are whole: one that is ahead of the others is cut back."""
        rows = whole_rows(folder, info)
        stored = cls(key, info, {}, rows)
        for name, column in stored._columns.items():
            there = load_rows(folder / column.file) if (folder / column.file).exists() else None
            if there is None:
                dtype = _dtypes.stored_dtype(column.dtype)
                stored._files[name] = NpyFile.create(folder / column.file, dtype, column.shape)
                continue
            if there.dtype != _dtypes.stored_dtype(column.dtype):
                column.dtype, stored.changed = _dtypes.name_of(there.dtype), True
            stored._files[name] = NpyFile(folder / column.file, there.dtype, there.shape[1:])
            stored._files[name].truncate(rows)
        return stored

    def fit(self, block: Block) -> None:
        """Checks that the rows fit the files; makes the files' dtypes wider where they have to be."""
        if block.keys() != self._columns.keys():
            raise RecordError(
                f"key {self._key!r} had {_describe(self._columns)} and now has {_describe(block)}: "
                "all records of a key need the same structure and the same step axes"
            )
        for name, rows in block.items():
            if rows.shape[1:] != self._columns[name].shape:
                raise RecordError(
                    f"key {self._key!r} had values of shape {self._columns[name].shape} and now has {rows.shape[1:]}"
                )
        for name, rows in block.items():
            self._widen(name, _dtypes.name_of(rows.dtype))

    def append(self, block: Block) -> None:
        rows = len(next(iter(block.values())))
        for name, column in self._columns.items():
            array = block[name]
            if _dtypes.name_of(array.dtype) != column.dtype:
                array = array.astype(_dtypes.dtype_of(column.dtype))
            self._files[name].write(self._rows, _dtypes.encode(array))
        self._rows += rows

    def _widen(self, name: Any, dtype: str) -> None:
        column = self._columns[name]
        wider = _dtypes.promoted(column.dtype, dtype)
        if wider is None:
            raise RecordError(f"key {self._key!r} had dtype {column.dtype} and now has {dtype}: no dtype holds both")
        if wider == column.dtype:
            return
        file = self._files[name]
        old = _dtypes.decode(file.read(self._rows), column.dtype)
        file.rewrite(_dtypes.encode(old.astype(_dtypes.dtype_of(wider))))
        column.dtype = wider
        self.changed = True


class _Failures:
    """Goes on with the other keys when one fails, and raises the first failure at the end."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._lost = 0
        self._rows = 0

    def of(self, rows: int) -> _Failures:
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


def whole_rows(folder: Path, info: KeyInfo) -> int:
    """How many rows all files of a key have: a writer that was killed may have got further with some."""
    rows = math.inf
    for column in info.columns():
        try:
            rows = min(rows, len(load_rows(folder / column.file)))
        except FileNotFoundError:
            return 0
    return int(rows)


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
        names = {_dtypes.name_of(array.dtype) for array in arrays}
        if functools.reduce(lambda a, b: a and _dtypes.promoted(a, b), names) is None:
            raise RecordError("tables of different dtypes")
    joined = np.concatenate(arrays)
    return joined.view(first) if first.metadata else joined  # which np.concatenate forgets


def _describe(names: Iterable[Any]) -> str:
    names = list(names)
    leaves = ["".join(f"[{part!r}]" for _, part in name) or "one array" for name in names if not isinstance(name, str)]
    axes = [name for name in names if isinstance(name, str)]
    return f"{', '.join(leaves)} with {'steps ' + ', '.join(axes) if axes else 'no steps'}"
