"""`lox.json`: what the files of a saved run hold, for people and for `load`."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import platform
import threading
import time
from pathlib import Path
from typing import Any

from lox.loggers import _tree
from lox.loggers._errors import RunFormatError
from lox.loggers._npy import replace_file
from lox.loggers._run import Run

FILE = "lox.json"
FORMAT = 1


@dataclasses.dataclass
class ColumnInfo:
    """One `.npy` file: a leaf of a key's values (`path` leads to it), or its steps along an axis."""

    file: str
    dtype: str
    shape: tuple[int, ...] = ()
    path: _tree.Path = ()


@dataclasses.dataclass
class KeyInfo:
    values: list[ColumnInfo]
    steps: dict[str, ColumnInfo]

    def columns(self) -> list[ColumnInfo]:
        return [*self.values, *self.steps.values()]


@dataclasses.dataclass
class Manifest:
    run: str
    key: tuple[int, ...]
    process_index: int
    created: str
    order: int
    """Runs are listed in this order; 0 in the manifest of a version that did not tell it."""
    versions: dict[str, str]
    logs: dict[str, KeyInfo]

    @classmethod
    def of(cls, run: Run) -> Manifest:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return cls(run.name, run.key, run.process_index, now, _next_order(), _versions(), {})

    @property
    def place(self) -> tuple[int, int]:
        """Sorts runs: as they were created, process by process; those that do not tell come first."""
        return (self.process_index, self.order) if self.order else (0, 0)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a run's folder."""
        try:
            data = json.loads((folder / FILE).read_text("utf-8"))
            if data["format"] != FORMAT:
                raise RunFormatError(
                    f"{folder}: written in format {data['format']}, this version of lox-loggers reads {FORMAT}"
                )
            logs = {key: _key_info(info) for key, info in data["logs"].items()}
            head = (data["run"], tuple(data["key"]), data["process_index"], data["created"], data.get("order", 0))
            return cls(*head, data["versions"], logs)
        except FileNotFoundError:
            raise RunFormatError(f"{folder} is not a saved run: it has no {FILE}") from None
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise RunFormatError(f"{folder / FILE} is damaged: {type(error).__name__}: {error}") from error

    def write(self, folder: Path) -> None:
        """One line for each field and each key, so that people can read it too."""
        fields = {"format": FORMAT, **dataclasses.asdict(self)}
        logs = [f"  {json.dumps(key)}: {json.dumps(info)}" for key, info in fields.pop("logs").items()]
        head = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        body = '  "logs": {' + ("\n  " + ",\n  ".join(logs) + "\n  " if logs else "") + "}"
        text = "{\n" + ",\n".join([*head, body]) + "\n}\n"
        replace_file(folder / FILE, text.encode("ascii"))


_order_lock = threading.Lock()
_last_order = 0


def _next_order() -> int:
    """The time in nanoseconds, so that it goes on from earlier processes; yet later for each run of this one."""
    global _last_order
    with _order_lock:
        _last_order = max(time.time_ns(), _last_order + 1)
        return _last_order


def _key_info(info: dict[str, Any]) -> KeyInfo:
    values = [_column(column) for column in info["values"]]
    return KeyInfo(values, {axis: _column(column) for axis, column in info["steps"].items()})


def _column(data: dict[str, Any]) -> ColumnInfo:
    file = data["file"]
    if Path(file).name != file or "\\" in file:
        raise RunFormatError(f"the manifest names {file!r}, which is not a file in the run's folder")
    path = tuple((kind, name) for kind, name in data["path"])
    return ColumnInfo(file, data["dtype"], tuple(data["shape"]), path)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("lox-core", "lox-loggers", "jax", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # on the path, but not installed
            found[name] = "unknown"
    return found
