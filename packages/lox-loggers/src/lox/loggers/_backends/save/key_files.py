"""The `.npy` files of one key of a saved run, which belong together row by row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lox.loggers._backends.save import dtypes, names
from lox.loggers._backends.save.manifest import FILE, FileInfo, KeyInfo
from lox.loggers._backends.save.npy import NpyFile, load_rows
from lox.loggers._errors import RecordError, RunFormatError

# Rows for each column of a key: values by the path to the leaf, a tuple, and steps by axis, a str.
Block = dict[Any, np.ndarray]


class KeyFiles:
    """The files of one key, which have the same number of rows."""

    def __init__(self, key: str, info: KeyInfo, files: dict[Any, NpyFile], rows: int) -> None:
        self.info = info
        self.changed = False  # the manifest does not know it yet
        self._key = key
        self._columns = _columns(info)
        self._files = files
        self._rows = rows

    @classmethod
    def create(cls, folder: Path, key: str, block: Block) -> KeyFiles:
        values, steps = [], {}
        for name, rows in block.items():
            dtype_name, shape = dtypes.name_of(rows.dtype), rows.shape[1:]
            if isinstance(name, str):
                steps[name] = FileInfo(names.step_file(key, name), dtype_name, shape)
            else:
                file = names.value_file(key, [part for _, part in name])
                values.append(FileInfo(file, dtype_name, shape, name))
        stored = cls(key, KeyInfo(values, steps), {}, 0)
        for name, column in stored._columns.items():
            dtype = dtypes.encode(block[name]).dtype
            stored._files[name] = NpyFile.create(folder / column.file, dtype, column.shape)
        stored.changed = True
        return stored

    @classmethod
    def open(cls, folder: Path, key: str, info: KeyInfo) -> KeyFiles:
        """Continues where all files are whole: one that is ahead of the others is cut back."""
        block = load_block(folder, info)
        stored = cls(key, info, {}, row_count(block))
        for name, column in stored._columns.items():
            rows = block[name]
            if rows.dtype != dtypes.stored_dtype(column.dtype):
                column.dtype, stored.changed = dtypes.name_of(rows.dtype), True
            stored._files[name] = NpyFile.open(folder / column.file, rows)
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
            self._widen(name, dtypes.name_of(rows.dtype))

    def append(self, block: Block) -> None:
        rows = row_count(block)
        for name, column in self._columns.items():
            array = block[name]
            if dtypes.name_of(array.dtype) != column.dtype:
                array = array.astype(dtypes.dtype_of(column.dtype))
            self._files[name].write(self._rows, dtypes.encode(array))
        self._rows += rows

    def _widen(self, name: Any, dtype: str) -> None:
        column = self._columns[name]
        try:
            wider = dtypes.common({column.dtype, dtype})
        except RecordError as error:
            raise RecordError(f"key {self._key!r} had dtype {column.dtype} and now has {dtype}: {error}") from None
        if wider == column.dtype:
            return
        file = self._files[name]
        old = dtypes.decode(file.read(self._rows), column.dtype)
        file.rewrite(dtypes.encode(old.astype(dtypes.dtype_of(wider))))
        column.dtype = wider
        self.changed = True


def load_block(folder: Path, info: KeyInfo) -> Block:
    """The rows that all files of a key have, as they are stored: a writer that was killed may have got further with
    some."""
    block = {name: _load_column(folder, column) for name, column in _columns(info).items()}
    rows = min(map(len, block.values()))
    return {name: column[:rows] for name, column in block.items()}


def row_count(block: Block) -> int:
    return len(next(iter(block.values())))


def _columns(info: KeyInfo) -> dict[Any, FileInfo]:
    return {column.path: column for column in info.values} | info.steps


def _load_column(folder: Path, column: FileInfo) -> np.ndarray:
    path = folder / column.file
    try:
        rows = load_rows(path)
    except FileNotFoundError:  # a writer that was killed had not come to it
        return np.empty((0, *column.shape), dtypes.stored_dtype(column.dtype))
    if rows.shape[1:] != column.shape or not dtypes.may_store(rows.dtype, column.dtype):
        raise RunFormatError(
            f"{path} is damaged: it holds values of dtype {rows.dtype} and shape {rows.shape[1:]}, {FILE} tells of "
            f"{column.dtype} and {column.shape}"
        )
    return rows


def _describe(names: Iterable[Any]) -> str:
    names = list(names)
    leaves = ["".join(f"[{part!r}]" for _, part in name) or "one array" for name in names if not isinstance(name, str)]
    axes = [name for name in names if isinstance(name, str)]
    return f"{', '.join(leaves)} with {'steps ' + ', '.join(axes) if axes else 'no steps'}"
