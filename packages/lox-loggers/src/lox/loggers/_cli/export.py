"""`lox export`."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from lox._logdict.summary import summarized
from lox.loggers._backends.text.legend import Legend
from lox.loggers._backends.text.rows import Row, rows
from lox.loggers._cli.output import lines
from lox.loggers._cli.selection import Chosen, RunSelection, choose
from lox.loggers._errors import LoggerOptionError
from lox.loggers._json import to_json


def export(selection: RunSelection, *, form: str | None, output: str | None) -> bool:
    """Writes the table; returns whether everything could be read."""
    chosen = choose(selection)
    form = form or {".jsonl": "jsonl", ".parquet": "parquet"}.get(Path(output or "").suffix, "csv")
    table = list(_rows(chosen))
    if form == "parquet":
        if output is None:
            raise LoggerOptionError("parquet is a binary format: choose a file with --output FILE")
        _write_parquet(table, output)
    elif output is None and sys.stdout.isatty():  # a terminal would interpret control characters
        shown = io.StringIO()
        _write_text(form, table, shown)
        sys.stdout.write(lines(shown.getvalue()))
    elif output is None:
        _write_text(form, table, sys.stdout)
    else:
        with open(output, "w", encoding="utf-8", newline="") as file:
            _write_text(form, table, file)
    return chosen.whole


def _rows(chosen: Chosen) -> Iterator[Row]:
    """A row for each record: run, config, steps and values. A column whose name is taken gets its kind as a prefix."""
    legend = Legend()
    several = len(chosen.experiments) > 1
    experiment, run = legend.axis("experiment") if several else "", legend.axis("run")
    labels: dict[str, str] = {}  # of config keys
    for name, runs in chosen.experiments.items():
        for of_run, logs in runs.items():
            head = {experiment: name, run: of_run} if several else {run: of_run}
            for key, value in runs.flat_configs[of_run].items():
                if key not in labels:
                    labels[key] = legend.new_label(key, "config")
                head[labels[key]] = value
            records = chosen.wanted.choose(logs.filter(lambda key, runs=runs: key not in runs.constants))
            # Memory-mapped arrays and key arrays become plain numpy here.
            plain = jax.tree_util.tree_map(_to_numpy, records)
            for key in plain:
                dict.__setitem__(plain, key, summarized(plain[key]))  # bypasses logdict, which would drop the steps
            table = rows(chosen.wanted.choose(plain), legend)
            yield from [{**head, **row} for row in table] or [head]


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
