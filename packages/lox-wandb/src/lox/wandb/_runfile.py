"""The `.wandb` files that runs leave on disk: finding those of a run, and reading their rows back.

wandb writes a file each time a run is opened, online or offline. It holds records (protocol buffers) in the framing of
LevelDB's log: a file header of 7 bytes, then blocks of 32 KiB. A record is one fragment or several (first, middle ...,
last), each after a header of 7 bytes: checksum, length, type. If its writer was killed, a file can end anywhere, and the
complete records are read.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wandb.proto import wandb_internal_pb2

from lox.loggers import RunFormatError

MAGIC = b":W&B"
_FILE_HEADER = 7
_BLOCK = 32 * 1024
_FRAGMENT_HEADER = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

Row = dict[str, Any]
# wandb's names for the numbers that JSON does not have.
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class RunInfo(NamedTuple):
    """What a file says about its run."""

    run_id: str
    project: str
    entity: str
    group: str


class RunReader:
    """Reads the records of one file, in order. When called again, it continues where the file ended before.

    Args:
      check: whether to compare checksums. Damaged data is then a RunFormatError; otherwise it counts as the end of the file.
    """

    def __init__(self, path: str | Path, check: bool = False) -> None:
        self.path = Path(path)
        self._check = check
        self.ended = False
        self._offset = _FILE_HEADER

    def records(self) -> Iterator[Any]:
        """The records that are complete."""
        if not self.path.exists():
            return
        begin = self._offset
        with self.path.open("rb") as file:
            file.seek(begin)
            data = memoryview(file.read())
        parts: list[bytes] = []
        at = 0
        while at + _FRAGMENT_HEADER <= len(data):
            left = _BLOCK - (begin + at) % _BLOCK
            kind = data[at + 6]
            if left < _FRAGMENT_HEADER or kind == 0:  # the rest of a block is padding
                at += left
                continue
            end = at + _FRAGMENT_HEADER + int.from_bytes(data[at + 4 : at + 6], "little")
            if end > len(data):
                return
            if self._check and zlib.crc32(data[at + 6 : at + 7].tobytes() + data[at + _FRAGMENT_HEADER : end]) != (
                int.from_bytes(data[at : at + 4], "little")
            ):
                raise RunFormatError(f"{self.path} is damaged: the data at byte {begin + at} is not a record of wandb")
            if kind > _LAST:
                return
            if kind in (_FULL, _FIRST):
                parts = []
            parts.append(bytes(data[at + _FRAGMENT_HEADER : end]))
            at = end
            if kind in (_FULL, _LAST):
                record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # defined at import
                record.ParseFromString(b"".join(parts))
                self._offset = begin + at
                yield record

    def read_on(self) -> int:
        """How many new rows of history there are since the last call. Also notes the end of the run."""
        rows = 0
        for record in self.records():
            kind = record.WhichOneof("record_type")
            rows += kind == "history"
            self.ended = self.ended or kind == "exit"
        return rows


def find_run_files(wandb_dir: str | Path, run_id: str) -> list[Path]:
    """The files of a run, oldest first: one for each time that it was opened."""
    folder = Path(wandb_dir)
    if not folder.is_dir():
        return []
    found = []
    for run_dir in folder.iterdir():  # not a glob, because ids may hold special characters
        started, is_run = _start_time(run_dir.name)
        file = run_dir / f"run-{run_id}.wandb"
        if is_run and file.is_file():
            found.append((started, run_dir.name, file))
    return [file for _, _, file in sorted(found)]


def _start_time(folder: str) -> tuple[str, bool]:
    """`offline-run-20261116_031437-abc` started at `20261116_031437`."""
    name = folder.removeprefix("offline-")
    return name.removeprefix("run-").split("-")[0], name.startswith("run-")


def read_info(path: str | Path) -> RunInfo | None:
    """The run that the file belongs to; None if the file ends too early."""
    for record in RunReader(path).records():
        if record.WhichOneof("record_type") == "run":
            run = record.run
            return RunInfo(run.run_id, run.project, run.entity, run.run_group)
    return None


def row_of(history: Any) -> Row:
    """One row, by name. Objects that wandb stores (a histogram, an image) are dicts."""
    row: Row = {}
    for item in history.item:
        path = list(item.nested_key) or [item.key]
        *parents, leaf = path
        place = row
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = parse_json(item.value_json)
    return row


def parse_json(text: str) -> Any:
    """The value in a text that wandb stored."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    value = json.loads(text)
    return _SPECIAL.get(value, value) if isinstance(value, str) else value


def read_rows(path: str | Path) -> Iterator[Row]:
    """The rows of history in one file, in order."""
    for record in RunReader(path).records():
        if record.WhichOneof("record_type") == "history":
            yield row_of(record.history)
