"""Reads what `SaveLogger` wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._backends.config_file import config_in, read_config
from lox.loggers._backends.save import dtypes
from lox.loggers._backends.save.key_files import load_block, row_count
from lox.loggers._backends.save.manifest import FILE, FileInfo, KeyInfo, Manifest
from lox.loggers._errors import RunFormatError
from lox.loggers._readers.reader import Reader, Recording, StoredRun, Wanted, run_name


class SaveReader(Reader):
    """Folders with a `lox.json`, and a `.npy` file for each key."""

    patterns = (FILE,)

    def find(self, root: Path, files: Sequence[Path]) -> Iterable[StoredRun]:
        return [StoredRun("" if file == root else run_name(root, file.parent), (file,)) for file in files]

    def read(self, run: StoredRun, wanted: Wanted) -> Recording:
        folder = run.files[0].parent
        manifest = Manifest.read(folder)
        return Recording(_logs(folder, manifest, wanted), read_config(config_in(folder)), manifest.place)


def _logs(folder: Path, manifest: Manifest, wanted: Wanted) -> lox.logdict:
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    for key, info in manifest.logs.items():
        values = [column for column in info.values if any([*map(wanted, _tree.names_of(key, column.path))])]
        if not values:
            continue
        block = load_block(folder, KeyInfo(values, info.steps))
        if not row_count(block):
            continue
        whole = len(values) == len(info.values)
        data[key] = _tree.tree_of(
            # If some leaves of a list are left out, the rest are read by name, because their numbers would change.
            [
                (column.path if whole else _by_name(column.path), _restore(folder, column, block[column.path]))
                for column in values
            ]
        )
        for axis, column in info.steps.items():
            steps.setdefault(axis, {})[key] = dtypes.decode(block[axis], column.dtype)
    return lox.logdict(data, steps=steps, stacked=list(data))


def _by_name(path: _tree.Path) -> _tree.Path:
    return tuple(("dict", part) for _, part in path)


def _restore(folder: Path, column: FileInfo, rows: np.ndarray) -> Any:
    try:
        return dtypes.restore(rows, column.dtype)
    except (TypeError, ValueError) as error:  # JAX does not know this kind of key
        raise RunFormatError(f"{folder / column.file} does not hold values of dtype {column.dtype}: {error}") from error
