"""`SaveLogger`: a folder for each run, with a growing `.npy` file for each key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lox
from lox.loggers import _files, _tree
from lox.loggers._backends.config_file import config_in, remove_config, write_config
from lox.loggers._backends.save import dtypes
from lox.loggers._backends.save.attempt import Attempt
from lox.loggers._backends.save.key_files import Block, KeyFiles, load_block
from lox.loggers._backends.save.manifest import FILE, Manifest, has_begun, remove_run, remove_unfinished
from lox.loggers._delivery.locks import RunLock
from lox.loggers._delivery.logger import Logger
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import Run
from lox.loggers._delivery.tables import count_records, nbytes
from lox.loggers._errors import RunExistsError, RunFormatError


class SaveLogger(Logger):
    """Saves runs below the folder `path`. Read them with `lox.loggers.load`, or with plain `np.load`.

    A run's folder has `KEY.npy` for the values of each key, `KEY@AXIS.npy` for its steps, `lox.json`, which lists these files,
    and `config.json`, the config that `init` got. Files can be read at any time, even after `kill -9`.

    >>> with lox.loggers.SaveLogger("runs") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> np.load("runs/0000000000000000/loss.npy").tolist()
    [0.25]
    """

    keys_apart = True  # each key has its own files

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # still right after os.chdir

    def open(self, run: Run) -> SaveWriter:
        folder = self.path / run.name
        _files.refuse_links(self.path, folder)
        if run.resume and has_begun(folder):
            manifest = Manifest.read(folder)
            write_config(config_in(folder), run)
            return SaveWriter(folder, manifest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(exist_ok=run.resume or self.if_exists == "replace")
        except FileExistsError:
            raise RunExistsError(f"SaveLogger: {folder} already exists") from None
        remove_unfinished(folder)
        manifest = Manifest.of(run)
        manifest.write(folder)
        write_config(config_in(folder), run)
        return SaveWriter(folder, manifest)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def lock(self, name: str) -> RunLock:
        return RunLock(self.path, name)

    def remove(self, name: str) -> None:
        """Deletes the files that lox wrote, and nothing else in the run's folder."""
        folder = self.path / name
        if folder.is_symlink() or (has_begun(folder) and not (folder / FILE).is_file()):
            why = "is a link" if folder.is_symlink() else f"is not a saved run (it has no {FILE})"
            raise RunFormatError(f"SaveLogger: {folder} {why}, so it is not replaced")
        _files.refuse_links(self.path, folder)
        remove_config(config_in(folder))
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
    """Hands each table to the operating system at once, so the table survives if the process is killed.

    If the disk refuses rows for a reason that may pass, they are kept and written before later ones.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._keys = {key: KeyFiles.open(folder, key, info) for key, info in manifest.logs.items()}
        self._kept: list[lox.logdict] = []
        self._kept_bytes = 0

    def write(self, logs: lox.logdict) -> None:
        if self._kept_bytes >= _files.MAX_KEPT_BYTES:
            self._make_room(logs)
        self._write_out([*self._kept, logs], is_last=False)

    def flush(self) -> None:
        """Tries again to write what the disk refused."""
        self._write_out(self._kept, is_last=False)

    def close(self) -> None:
        self._write_out(self._kept, is_last=True)

    def _write_out(self, tables: Sequence[lox.logdict], is_last: bool) -> None:
        """Writes tables in order, key by key. Rows of a key that the disk refuses for now are kept."""
        attempt = Attempt(tables)
        ready: list[_Ready] = []
        for number, logs in enumerate(tables):
            for key in logs:
                with attempt.of([(key, number)]) as may_try:
                    if may_try:
                        block = _block(key, logs)
                        ready.append(_Ready((key, number), self._fit(key, block), block))
        if any(stored.changed for stored in self._keys.values()):
            with attempt.of([one.part for one in ready if one.stored.changed]):
                self._write_manifest()
        for one in ready:
            with attempt.of([one.part]) as may_try:
                if may_try:
                    one.stored.append(one.block)
        for stored in self._keys.values():
            stored.forget_fitted()
        self._kept = [] if is_last else attempt.kept()
        self._kept_bytes = sum(map(nbytes, self._kept))
        attempt.raise_first(is_last)

    def _make_room(self, logs: lox.logdict) -> None:
        try:
            self.flush()
        except OSError as error:
            if self._kept_bytes >= _files.MAX_KEPT_BYTES:  # `logs` is not taken at all
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
    """Rows of a key that fit its files, and the key and number of the table that they come from."""

    part: tuple[str, int]
    stored: KeyFiles
    block: Block


def _block(key: str, logs: lox.logdict) -> Block:
    """The columns of a key: its leaves and its steps."""
    block: Block = dict(_tree.leaves_of(logs[key]))
    return block | {axis: by_key[key] for axis, by_key in logs.steps.items() if key in by_key}
