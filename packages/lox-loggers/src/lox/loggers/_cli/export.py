"""`lox export`."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.rows import Row, rows
from lox.loggers._cli.show import load_runs
from lox.loggers._errors import LoggerOptionError
from lox.loggers._json import to_json


def export(paths: Sequence[str], keys: Sequence[str], *, form: str | None, output: str | None) -> None:
    form = form or {".jsonl": "jsonl", ".parquet": "parquet"}.get(Path(output or "").suffix, "csv")
    table = list(_rows(paths, keys))
    if form == "parquet":
        if output is None:
            raise LoggerOptionError("parquet is a binary format: choose a file with --output FILE")
        _write_parquet(table, output)
    elif output is None:
        _write_text(form, table, sys.stdout)
    else:
        with open(output, "w", encoding="utf-8", newline="") as file:
            _write_text(form, table, file)


def _rows(paths: Sequence[str], keys: Sequence[str]) -> Iterator[Row]:
    legend = Legend()
    run = legend.axis("run")
    for name, logs in load_runs(paths, keys).items():
        # Memory-mapped and key arrays alike become plain numpy here.
        read = jax.tree_util.tree_map(_to_numpy, logs)
        for row in rows(read, legend):
            yield {run: name, **row}


def _to_numpy(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(leaf))
    return np.asarray(leaf)


def _write_text(form: str, rows: Sequence[Row], file: IO[str]) -> None:
    if form == "jsonl":
        file.writelines(to_json(row) + "\n" for row in rows)
        return
    writer = csv.DictWriter(file, _columns(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({label: to_json(cell) if isinstance(cell, list) else cell for label, cell in row.items()})


def _write_parquet(rows: Sequence[Row], output: str) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("parquet needs pyarrow: pip install 'lox-loggers[parquet]'") from error
    columns = {label: [row.get(label) for row in rows] for label in _columns(rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), output)


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(label for row in rows for label in row))
