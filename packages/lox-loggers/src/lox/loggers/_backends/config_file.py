"""`config.json`: the config of a run, in a file next to its records.

A backend whose run is a folder writes `RUN/config.json`; one whose run is a file `RUN.csv` writes `RUN.csv.config.json`. The
file holds one JSON object, the config that `init` was given. A run without a config has no such file. Numbers that are not
finite are the texts "NaN", "Infinity" and "-Infinity", as in the files of `JsonlLogger`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lox.loggers import _files
from lox.loggers._delivery.run import Run
from lox.loggers._errors import RunFormatError
from lox.loggers._json import finite

NAME = "config.json"
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def config_in(folder: Path) -> Path:
    """The path of the config, for a run that is a folder."""
    return folder / NAME


def config_next_to(file: Path) -> Path:
    """The path of the config, for a run that is a file."""
    return file.with_name(f"{file.name}.{NAME}")


def write_config(path: Path, run: Run) -> None:
    """Writes the config of a run that is being opened, atomically. A run that is resumed without a config keeps the one it
    has."""
    if run.config:
        text = json.dumps(finite(run.plain_config), indent=2)
        _files.replace(path, [f"{text}\n".encode("ascii")])
    elif not run.resume:
        remove_config(path)


def remove_config(path: Path) -> None:
    """Deletes the config of a run, if there is one."""
    path.unlink(missing_ok=True)


def read_config(path: Path) -> dict[str, Any]:
    """The config that was written; `{}` if there is none."""
    _files.refuse_way_out(path.parent, path)
    try:
        config = _restored(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise RunFormatError(f"{path} is damaged: {error}") from error
    if not isinstance(config, dict):
        raise RunFormatError(f"{path} is damaged: it does not hold a JSON object")
    return config


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _restored(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
