"""`JsonlLogger`: one JSON object for each record, one file for each run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lox.loggers._backends.text.lines import LineFile, LineLogger, LineWriter
from lox.loggers._backends.text.rows import Columns, Row
from lox.loggers._json import to_json


class JsonlLogger(LineLogger):
    """Writes `path/RUN.jsonl`, with lines such as `{"step": 3, "loss": 0.25}`.

    Arrays are lists, complex numbers pairs. JSON has no numbers that are not finite: they are the strings
    "NaN", "Infinity" and "-Infinity".

    >>> with lox.loggers.JsonlLogger("lines") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> with open("lines/0000000000000000.jsonl") as file:
    ...     print(file.read().strip())
    {"step": 3, "loss": 0.25}
    """

    suffix = ".jsonl"

    def writer(self, file: LineFile) -> JsonlWriter:
        return JsonlWriter(file)

    def read(self, file: Path) -> Iterator[Row]:
        with file.open(encoding="utf-8", errors="surrogatepass") as lines:
            for line in lines:
                yield json.loads(line)


class JsonlWriter(LineWriter):
    def lines(self, tables: Sequence[Columns]) -> str:
        return "".join(itertools.chain.from_iterable(map(_lines, tables)))


def _lines(columns: Columns) -> list[str]:
    names = (to_json(label).replace("%", "%%") for label in columns)
    line = "{" + ", ".join(f"{name}: %s" for name in names) + "}\n"
    return [line % cells for cells in zip(*map(_texts, columns.values()), strict=True)]


def _texts(cells: list[Any]) -> list[str]:
    """The cells of a column as JSON. For numbers Python's own text is the same, and sooner there."""
    kind = type(cells[0]) if cells else int
    if kind is int or (kind is float and all(map(math.isfinite, cells))):
        return list(map(repr, cells))
    return list(map(to_json, cells))
