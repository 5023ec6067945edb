"""The `.npy` files of one key of a saved run, which belong together row by row."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lox.loggers import _tree
from lox.loggers._backends.save import dtypes, names
from lox.loggers._backends.save.manifest import FILE, FileInfo, KeyInfo
from lox.loggers._backends.save.npy import NpyFile, load_rows
from lox.loggers._errors import RecordError, RunFormatError

# Rows for each column of a key: values by the path to the leaf, a tuple, and steps by axis, a str.
Block = dict[Any, np.ndarray]


class KeyFiles:
    """The files of one key, which have the same number of rows. They are created with their first rows, after the manifest
    lists them."""

    def __init__(self, folder: Path, key: str, info: KeyInfo, files: dict[Any, NpyFile], rows: int) -> None:
        self.info = info
        self.changed = False  # whether the manifest must be updated
        self._folder = folder
        self._key = key
        self._columns = _columns(info)
        self._files = files
        self._rows = rows
        self._fitted: list[Block] = []  # blocks that fit, but are not in the files yet

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
        stored = cls(folder, key, KeyInfo(values, steps), {}, 0)
        stored.changed = True
        return stored

    @classmethod
    def open(cls, folder: Path, key: str, info: KeyInfo) -> KeyFiles:
        """Continues after the rows that all files have. A file with more rows than the others is cut."""
        block = load_block(folder, info)
        stored = cls(folder, key, info, {}, row_count(block))
        for name, column in stored._columns.items():
            rows = block[name]
            if rows.dtype != dtypes.stored_dtype(column.dtype):
                column.dtype, stored.changed = dtypes.name_of(rows.dtype), True
            stored._files[name] = NpyFile.open(folder / column.file, rows)
        return stored

    def fit(self, block: Block) -> None:
        """Checks that the rows fit the files, and widens the files' dtypes if necessary."""
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
        wider = {name: self._wider(name, rows) for name, rows in block.items()}
        for name, dtype in wider.items():
            if dtype != self._columns[name].dtype:
                self._widen(name, dtype)
        self._fitted.append(block)

    def forget_fitted(self) -> None:
        """Forgets the rows that wait to be appended."""
        self._fitted.clear()

    def append(self, block: Block) -> None:
        """Adds rows that fit. It can be called again after a failure, because the rows are written to the same place."""
        rows = row_count(block)
        for name, column in self._columns.items():
            array = block[name]
            if dtypes.name_of(array.dtype) != column.dtype:
                array = dtypes.converted(array, column.dtype)
            if name in self._files:
                self._files[name].write(self._rows, dtypes.encode(array))
            else:
                self._files[name] = NpyFile.create(self._folder / column.file, dtypes.encode(array))
        self._rows += rows

    def _wider(self, name: Any, rows: np.ndarray) -> str:
        """The dtype that holds both the old rows of a column and these. Nothing is changed until all columns have one."""
        there, new = self._columns[name].dtype, dtypes.name_of(rows.dtype)
        if there == new:
            return there
        try:
            wider = dtypes.common({there, new})
            before = [] if wider == there else [self._old(name), *(block[name] for block in self._fitted)]
            for column in (*before, rows):
                dtypes.converted(column, wider)
        except RecordError as error:
            raise RecordError(f"key {self._key!r} had dtype {there} and now has {new}: {error}") from None
        return wider

    def _widen(self, name: Any, dtype: str) -> None:
        if name in self._files:
            self._files[name].rewrite(dtypes.encode(dtypes.converted(self._old(name), dtype)))
        self._columns[name].dtype = dtype
        self.changed = True

    def _old(self, name: Any) -> np.ndarray:
        dtype = self._columns[name].dtype
        if name not in self._files:
            return np.empty(0, dtypes.dtype_of(dtype))
        return dtypes.decode(self._files[name].read(self._rows), dtype)


def load_block(folder: Path, info: KeyInfo) -> Block:
    """The rows that all files of a key have, as they are stored. A killed writer may have written more to some of them."""
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
    except FileNotFoundError:  # the writer was killed before it created the file
        return np.empty((0, *column.shape), dtypes.stored_dtype(column.dtype))
    if rows.shape[1:] != column.shape or not dtypes.may_store(rows.dtype, column.dtype):
        raise RunFormatError(
            f"{path} is damaged: it holds values of dtype {rows.dtype} and shape {rows.shape[1:]}, but {FILE} says "
            f"{column.dtype} and {column.shape}"
        )
    return rows


def _describe(names: Iterable[Any]) -> str:
    names = list(names)
    leaves = [_tree.describe_path(name) for name in names if not isinstance(name, str)]
    axes = [name for name in names if isinstance(name, str)]
    return f"{', '.join(leaves)} with {'steps ' + ', '.join(axes) if axes else 'no steps'}"
