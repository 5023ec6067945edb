"""`JsonlLogger`: one JSON object for each record, one file for each run."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.lines import LineLogger, LineWriter
from lox.loggers._backends.text.rows import Columns, Row
from lox.loggers._files import GrowingFile
from lox.loggers._json import to_json

_BLOCK = 1 << 16


class JsonlLogger(LineLogger):
    """Writes `path/RUN.jsonl`, with lines such as `{"step": 3, "loss": 0.25}`.

    `RUN.jsonl.columns.json` lists which names are steps. Arrays are lists, and complex numbers are pairs. JSON has only
    finite numbers, so others are the strings "NaN", "Infinity" and "-Infinity".

    >>> with lox.loggers.JsonlLogger("lines") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> with open("lines/0000000000000000.jsonl") as file:
    ...     print(file.read().strip())
    {"step": 3, "loss": 0.25}
    """

    suffix = ".jsonl"

    def writer(self, file: GrowingFile, legend: Legend) -> JsonlWriter:
        return JsonlWriter(file, legend)

    def read(self, file: Path) -> Iterator[Row]:
        with file.open("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):
                    yield dict(json.loads(line.decode("utf-8", "surrogatepass")))

    def whole_size(self, file: Path) -> int:
        with file.open("rb") as lines:
            end = lines.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - _BLOCK)
                lines.seek(start)
                if (newline := lines.read(end - start).rfind(b"\n")) >= 0:
                    return start + newline + 1
                end = start
        return 0


class JsonlWriter(LineWriter):
    def lines(self, tables: Sequence[Columns]) -> str:
        return "".join(itertools.chain.from_iterable(map(_lines, tables)))


def _lines(columns: Columns) -> list[str]:
    names = (to_json(label).replace("%", "%%") for label in columns)
    line = "{" + ", ".join(f"{name}: %s" for name in names) + "}\n"
    return [line % cells for cells in zip(*map(_texts, columns.values()), strict=True)]


def _texts(cells: list[Any]) -> list[str]:
    """The cells of a column as JSON. For numbers, `repr` gives the same text and is faster."""
    kind = type(cells[0]) if cells else int
    if kind is int or (kind is float and all(map(math.isfinite, cells))):
        return list(map(repr, cells))
    return list(map(to_json, cells))
