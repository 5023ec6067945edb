"""`SaveLogger`: each key a `.npy` file that grows, in a folder for each run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lox
from lox.loggers import _files, _tree
from lox.loggers._backends.config_file import in_folder, remove_config, write_config
from lox.loggers._backends.save import dtypes
from lox.loggers._backends.save.attempt import Attempt
from lox.loggers._backends.save.key_files import Block, KeyFiles, load_block
from lox.loggers._backends.save.manifest import FILE, Manifest, has_begun, remove_run, remove_unfinished
from lox.loggers._delivery.locks import RunLock
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import Run
from lox.loggers._delivery.tables import count_records, nbytes
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
        _files.refuse_links(self.path, folder)
        if run.resume and has_begun(folder):
            manifest = Manifest.read(folder)
            write_config(in_folder(folder), run)
            return SaveWriter(folder, manifest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(exist_ok=run.resume or self.if_exists == "replace")
        except FileExistsError:
            raise RunExistsError(f"SaveLogger: {folder} already exists") from None
        remove_unfinished(folder)
        manifest = Manifest.of(run)
        manifest.write(folder)
        write_config(in_folder(folder), run)
        return SaveWriter(folder, manifest)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def lock(self, name: str) -> RunLock:
        return RunLock(self.path, name)

    def remove(self, name: str) -> None:
        """Deletes what lox wrote, and nothing else in the run's folder."""
        folder = self.path / name
        if folder.is_symlink() or (has_begun(folder) and not (folder / FILE).is_file()):
            why = "is a link" if folder.is_symlink() else f"is not a saved run (it has no {FILE})"
            raise RunFormatError(f"SaveLogger: {folder} {why}, so it is not replaced")
        _files.refuse_links(self.path, folder)
        remove_config(in_folder(folder))
        remove_run(folder)

    def existing(self) -> list[str]:
        return sorted(file.parent.relative_to(self.path).as_posix() for file in self.path.rglob(FILE))

    def written(self, name: str) -> Steps:
        folder = self.path / name
        logs = Manifest.read(folder).logs if has_begun(folder) else {}
        blocks = {key: load_block(folder, info) for key, info in logs.items()}
        return {
            key: {axis: dtypes.decode(blocks[key][axis], column.dtype) for axis, column in info.steps.items()}
            for key, info in logs.items()
        }


class SaveWriter:
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._keys = {key: KeyFiles.open(folder, key, info) for key, info in manifest.logs.items()}
        self._gathered: list[lox.logdict] = []
        self._bytes = 0

    def write(self, logs: lox.logdict) -> None:
        if self._bytes >= _files.MAX_KEPT_BYTES:
            self._make_room(logs)
        self._gathered.append(logs)
        self._bytes += nbytes(logs)
        if self._bytes >= _GATHER_BYTES or len(self._gathered) >= _GATHER_WRITES:
            self.flush()

    def flush(self) -> None:
        """Hands all rows to the operating system; from there they survive the death of the process."""
        self._write_out(is_last=False)

    def close(self) -> None:
        self._write_out(is_last=True)

    def _write_out(self, is_last: bool) -> None:
        """Writes what was gathered, key by key. The rows of a key that the disk does not take now are kept."""
        gathered, self._gathered, self._bytes = self._gathered, [], 0
        attempt = Attempt(gathered)
        by_key: dict[str, list[int]] = {}
        alike = _alike(gathered)
        for number, logs in enumerate(gathered[:1] if alike else gathered):
            for key in logs:
                by_key.setdefault(key, []).append(number)
        ready: list[_Ready] = []
        joined: dict[Any, np.ndarray] = {}
        for key, numbers in by_key.items():
            ready += self._prepare(key, range(len(gathered)) if alike else numbers, alike, joined, attempt)
        if any(stored.changed for stored in self._keys.values()):
            changed = [(one.key, number) for one in ready if one.stored.changed for number in one.numbers]
            with attempt.of(changed):
                self._write_manifest()
        for one in ready:
            with attempt.of([(one.key, number) for number in one.numbers]) as may_try:
                if may_try:
                    one.stored.append(one.block)
        for stored in self._keys.values():
            stored.forget_fitted()
        if not is_last:
            self._gathered = attempt.kept()
            self._bytes = sum(map(nbytes, self._gathered))
        attempt.raise_first(is_last)

    def _prepare(
        self, key: str, numbers: Sequence[int], alike: bool, joined: dict[Any, np.ndarray], attempt: Attempt
    ) -> list[_Ready]:
        """The rows of a key in one block, or table by table where they do not fit together."""
        try:
            block = _block(key, [attempt.tables[number] for number in numbers], alike, joined)
            return [_Ready(key, numbers, self._fit(key, block), block)]
        except (ValueError, TypeError, OSError):
            ready = []
            for number in numbers:
                with attempt.of([(key, number)]) as may_try:
                    if may_try:
                        block = _block(key, [attempt.tables[number]], True, {})
                        ready.append(_Ready(key, [number], self._fit(key, block), block))
            return ready

    def _make_room(self, logs: lox.logdict) -> None:
        try:
            self.flush()
        except OSError as error:
            if self._bytes >= _files.MAX_KEPT_BYTES:  # nothing of `logs` is taken
                error.lost_records = count_records(logs)  # type: ignore[attr-defined]
            raise

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


class _Ready(NamedTuple):
    """Rows of a key that fit its files, and the numbers of the tables that they come from."""

    key: str
    numbers: Sequence[int]
    stored: KeyFiles
    block: Block


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
        name = dtypes.common({dtypes.name_of(array.dtype) for array in arrays})
        if not first.metadata:
            arrays = [dtypes.converted(array, name) for array in arrays]
    joined = np.concatenate(arrays)
    return joined.view(first) if first.metadata else joined  # which np.concatenate forgets
