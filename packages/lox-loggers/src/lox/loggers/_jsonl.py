"""`JsonlLogger`: one JSON object for each record, one file for each run."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import lox
from lox.loggers._errors import RunExistsError
from lox.loggers._logger import Logger
from lox.loggers._resume import Steps
from lox.loggers._run import Run
from lox.loggers._text import Labels, LineFile, steps_in


class JsonlLogger(Logger):
    """Writes `path/RUN.jsonl`, with lines such as `{"step": 3, "loss": 0.25}`.

    Arrays are lists, complex numbers pairs. JSON has no numbers that are not finite: they are the strings
    "NaN", "Infinity" and "-Infinity".

    >>> with lox.loggers.JsonlLogger("lines") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> with open("lines/0000000000000000.jsonl") as file:
    ...     print(file.read().strip())
    {"step": 3, "loss": 0.25}
    """

    def __init__(self, path: str | os.PathLike[str] = ".lox", **options: Any) -> None:
        super().__init__(**options)
        self.path = Path(path).expanduser().absolute()  # also after a change of folder

    def open(self, run: Run) -> JsonlWriter:
        file = self._file(run.name)
        if run.resume:
            LineFile(file).cut_back()
        else:
            create_file(file)
        return JsonlWriter(file)

    def exists(self, name: str) -> bool:
        return self._file(name).exists()

    def remove(self, name: str) -> None:
        self._file(name).unlink()

    def written(self, name: str) -> Steps:
        LineFile(self._file(name)).cut_back()
        with self._file(name).open(encoding="utf-8", errors="surrogatepass") as lines:
            return steps_in(json.loads(line) for line in lines)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"


class JsonlWriter:
    def __init__(self, file: Path) -> None:
        self._file = LineFile(file)
        self._labels = Labels()

    def write(self, logs: lox.logdict) -> None:
        self._file.add("".join([to_json(row) + "\n" for row in self._labels.rows(logs)]))

    def flush(self) -> None:
        self._file.flush()

    close = flush


_encode = json.JSONEncoder(allow_nan=False).encode


def to_json(value: Any) -> str:
    try:
        return _encode(value)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def create_file(file: Path) -> None:
    """A new empty file for a run; an error if there is one already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        file.open("xb").close()
    except FileExistsError:
        raise RunExistsError(f"{file} exists already") from None
