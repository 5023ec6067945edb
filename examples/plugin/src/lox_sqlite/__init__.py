"""A backend that writes to an SQLite database: one table, a row for each number."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import Logger, Run

_TABLE = """
CREATE TABLE IF NOT EXISTS records (run TEXT, key TEXT, steps TEXT, value);
CREATE INDEX IF NOT EXISTS by_run ON records (run, key);
CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY);
"""


class SqliteLogger(Logger):
    """Writes to the database file `path`; a value that is not one number is stored as JSON."""

    def __init__(self, path: str | os.PathLike[str] = "lox.db", **options: Any) -> None:
        super().__init__(**options)  # if_exists, on_error, processes, queue_size
        self.path = Path(path)

    def open(self, run: Run) -> SqliteWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with connect(self.path) as database:
            database.execute("INSERT OR IGNORE INTO runs VALUES (?)", [run.name])
        return SqliteWriter(self.path, run.name)

    # What follows is optional: it lets runs be found again, replaced and resumed.

    def exists(self, name: str) -> bool:
        if not self.path.exists():
            return False
        with connect(self.path) as database:
            return bool(database.execute("SELECT 1 FROM runs WHERE name = ?", [name]).fetchall())

    def remove(self, name: str) -> None:
        with connect(self.path) as database:
            database.execute("DELETE FROM records WHERE run = ?", [name])
            database.execute("DELETE FROM runs WHERE name = ?", [name])

    def written(self, name: str) -> dict[str, dict[str, np.ndarray]]:
        found: dict[str, dict[str, list[float]]] = {}
        with connect(self.path) as database:
            for key, steps in database.execute("SELECT key, steps FROM records WHERE run = ?", [name]):
                for axis, step in json.loads(steps).items():
                    found.setdefault(key, {}).setdefault(axis, []).append(step)
        return {key: {axis: np.asarray(steps) for axis, steps in axes.items()} for key, axes in found.items()}


class SqliteWriter:
    def __init__(self, path: Path, run: str) -> None:
        self._path = path
        self._run = run
        self._rows: list[tuple[str, str, str, Any]] = []

    def write(self, logs: lox.logdict) -> None:
        """Takes columns: in every array, axis 0 is the record."""
        for steps, values in logs.rows():
            told = json.dumps({axis: np.asarray(step).item() for axis, step in steps.items()})
            self._rows += [(self._run, key, told, _plain(value)) for key, value in values.items()]

    def flush(self) -> None:
        """Everything is on disk when this returns. The connection is not kept, so a fork cannot share it."""
        rows, self._rows = self._rows, []
        with connect(self._path) as database:
            database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)

    close = flush


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 and value.dtype.kind in "biuf":
        return value.item()
    return json.dumps(value, default=lambda array: np.asarray(array).tolist())


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(_TABLE)
        yield database
