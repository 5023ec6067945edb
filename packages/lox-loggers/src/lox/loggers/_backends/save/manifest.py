"""`lox.json`: which files a saved run has and what they hold, for people and for `load`."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import platform
import reprlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lox.loggers import _files, _tree
from lox.loggers._backends.save import dtypes
from lox.loggers._delivery.run import Run
from lox.loggers._errors import RunFormatError

FILE = "lox.json"
FORMAT = 1

# The types of the fields of the manifest, of a key, and of a column.
_MANIFEST = {
    "run": str,
    "key": list,
    "process_index": int,
    "created": str,
    "order": int,
    "versions": dict,
    "logs": dict,
}
_KEY = {"values": list, "steps": dict}
_COLUMN = {"file": str, "dtype": str, "shape": list, "path": list}

# The errors that reading a damaged manifest can raise.
_DAMAGE = (ArithmeticError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


@dataclasses.dataclass
class FileInfo:
    """One `.npy` file: a leaf of a key's values (`path` leads to it), or its steps along an axis."""

    file: str
    dtype: str
    shape: tuple[int, ...] = ()
    path: _tree.Path = ()


@dataclasses.dataclass
class KeyInfo:
    values: list[FileInfo]
    steps: dict[str, FileInfo]

    def columns(self) -> list[FileInfo]:
        return [*self.values, *self.steps.values()]


@dataclasses.dataclass
class Manifest:
    run: str
    key: tuple[int, ...]
    process_index: int
    created: str
    order: int
    """Runs are listed in this order. It is 0 in manifests of earlier versions."""
    versions: dict[str, str]
    logs: dict[str, KeyInfo]

    @classmethod
    def of(cls, run: Run) -> Manifest:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(run.name, run.key, run.process_index, now, _next_order(), _versions(), {})

    @property
    def place(self) -> tuple[int, int]:
        """Sorts runs by process, then by creation. Runs without this information come first."""
        return (self.process_index, self.order) if self.order else (0, 0)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a run's folder."""
        file = folder / FILE
        if not file.is_file():
            raise RunFormatError(f"{folder} is not a saved run: it has no {FILE}")
        _files.refuse_way_out(folder, file)
        try:
            data = json.loads(file.read_bytes())
            if data["format"] == FORMAT:
                return cls._parse(data)
        except _DAMAGE as error:
            message = f"{file} is damaged, or of another version: {type(error).__name__}: {error}"
            raise RunFormatError(message) from error
        raise RunFormatError(
            f"{file} has format {reprlib.repr(data['format'])}, but this version of lox-loggers reads format {FORMAT}"
        )

    @classmethod
    def _parse(cls, data: Mapping[str, Any]) -> Manifest:
        fields = _fields({"order": 0, **data}, _MANIFEST)
        logs = {key: _key_info(info) for key, info in fields["logs"].items()}
        files = [column.file for info in logs.values() for column in info.columns()]
        if len(set(files)) < len(files):
            raise ValueError("a file belongs to two columns")
        return cls(**fields | {"key": tuple(fields["key"]), "logs": logs})

    def write(self, folder: Path) -> None:
        """Writes one line for each field and each key, so that people can read it too."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        logs = [f"  {json.dumps(key)}: {json.dumps(info)}" for key, info in fields.pop("logs").items()]
        head = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        body = '  "logs": {' + ("\n  " + ",\n  ".join(logs) + "\n  " if logs else "") + "}"
        text = "{\n" + ",\n".join([*head, body]) + "\n}\n"
        _files.replace(folder / FILE, [text.encode("ascii")])


_order_lock = threading.Lock()
_last_order = 0


def _next_order() -> int:
    """The time in nanoseconds, so that it continues from earlier processes, and increases with each run of this process."""
    global _last_order
    with _order_lock:
        _last_order = max(time.time_ns(), _last_order + 1)
        return _last_order


def has_begun(folder: Path) -> bool:
    """Whether a folder holds more than what a writer leaves that was killed before it wrote its manifest."""
    return not folder.is_dir() or not all(map(_files.is_unfinished, folder.iterdir()))


def remove_run(folder: Path) -> None:
    """Deletes the files of a run. The manifest goes last, so that after a kill the rest can still be replaced or resumed. The
    folder is deleted too, unless it holds other files."""
    if (folder / FILE).is_file():
        for info in Manifest.read(folder).logs.values():
            for column in info.columns():
                (folder / column.file).unlink(missing_ok=True)
    remove_unfinished(folder)
    (folder / FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def remove_unfinished(folder: Path) -> None:
    """Deletes the temporary files of a writer that was killed."""
    for child in folder.iterdir():
        if _files.is_unfinished(child):
            child.unlink()


def _fields(data: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields of an object in the manifest, with their types checked."""
    fields = {name: data[name] for name in kinds}
    for name, kind in kinds.items():
        if not isinstance(fields[name], kind):
            raise TypeError(f"{name!r} is {reprlib.repr(fields[name])}, not a {kind.__name__}")
    return fields


def _key_info(data: Mapping[str, Any]) -> KeyInfo:
    fields = _fields(data, _KEY)
    values = [_column(column) for column in fields["values"]]
    try:
        _tree.tree_of((column.path, column.file) for column in values)
    except (LookupError, ValueError):
        raise ValueError("a key has no values, or its values do not fit together") from None
    return KeyInfo(values, {axis: _column(column) for axis, column in fields["steps"].items()})


def _column(data: Mapping[str, Any]) -> FileInfo:
    fields = _fields(data, _COLUMN)
    file, dtype, shape = fields["file"], fields["dtype"], tuple(fields["shape"])
    if Path(file).name != file or "\\" in file or not file.endswith(".npy"):
        raise ValueError(f"{reprlib.repr(file)} is not a file in the run's folder")
    if dtypes.name_of(dtypes.dtype_of(dtype)) != dtype:
        raise ValueError(f"{reprlib.repr(dtype)} is not a dtype that values are stored in")
    np.empty((0, *shape), dtypes.stored_dtype(dtype))  # raises if no rows can have that shape
    return FileInfo(file, dtype, shape, tuple(map(_part, fields["path"])))


def _part(part: Any) -> tuple[str, str | int]:
    kind, name = part
    if not isinstance(kind, str) or not isinstance(name, str | int):
        raise TypeError(f"{reprlib.repr(part)} is not a part of a path to a value")
    return kind, name


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("lox-core", "lox-loggers", "jax", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # importable, but not installed
            found[name] = "unknown"
    return found
