"""A backend that writes to an SQLite database: one table, a row for each number."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lox
from lox.loggers import Logger, RecordError, Run, RunExistsError, RunLock
from lox.loggers.kinds import KindError, flatten, plain

_TABLES = """
CREATE TABLE IF NOT EXISTS records (run TEXT, key TEXT, name TEXT, steps TEXT, value);
CREATE INDEX IF NOT EXISTS by_run ON records (run, key);
CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, config TEXT);
"""


class ExampleSqliteLogger(Logger):
    """Writes to the database file `path`. Nested values get a row for each leaf. Values that are not single numbers are JSON."""

    def __init__(self, path: str | os.PathLike[str] = "lox.db", **options: Any) -> None:
        super().__init__(**options)  # if_exists, on_error, processes, queue_size, name
        self.path = Path(path).absolute()  # still right after os.chdir
        # Shared by all runs: the first writer that is flushed sends what all of them have, in one transaction.
        self.pending: list[Pending] = []

    def open(self, run: Run) -> SqliteWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        config = json.dumps(run.plain_config)
        with connect(self.path) as database:
            try:
                if not run.resume:
                    database.execute("INSERT INTO runs VALUES (?, ?)", [run.name, config])
                elif run.config:  # without a new one, the run keeps its config
                    database.execute("UPDATE runs SET config = ? WHERE name = ?", [config, run.name])
            except sqlite3.IntegrityError:  # another process has just taken the name: Logger tries the next one
                raise RunExistsError(f"ExampleSqliteLogger: {self.path} has a run {run.name!r}") from None
        return SqliteWriter(self.path, run.name, self.pending)

    # The rest is optional. It lets runs be found again, replaced and resumed.

    def exists(self, name: str) -> bool:
        if not self.path.exists():
            return False
        with connect(self.path) as database:
            return bool(database.execute("SELECT 1 FROM runs WHERE name = ?", [name]).fetchall())

    def lock(self, name: str) -> RunLock:
        """A run has one writer: another logger, or another process, is refused while this one has it open."""
        return RunLock(self.path.parent, f"{self.path.name}/{name}")

    def remove(self, name: str) -> None:
        with connect(self.path) as database:
            database.execute("DELETE FROM records WHERE run = ?", [name])
            database.execute("DELETE FROM runs WHERE name = ?", [name])

    def existing(self) -> list[str]:
        with connect(self.path) as database:
            return [name for (name,) in database.execute("SELECT name FROM runs ORDER BY name")]

    def written(self, name: str) -> dict[str, dict[str, np.ndarray]]:
        found: dict[str, list[dict[str, Any]]] = {}
        with connect(self.path) as database:
            for key, steps in database.execute("SELECT DISTINCT key, steps FROM records WHERE run = ?", [name]):
                found.setdefault(key, []).append(json.loads(steps))
        # Row i of all axes of a key is one record, so only axes that all of its records have are returned.
        return {
            key: {axis: np.asarray([record[axis] for record in records]) for axis in _axes_of_all(records)}
            for key, records in found.items()
        }


class Pending(NamedTuple):
    """What one `write` of a run brought."""

    run: str
    rows: list[tuple[str, str, str, str, Any]]
    records: int


class SqliteWriter:
    def __init__(self, path: Path, run: str, pending: list[Pending]) -> None:
        self._path = path
        self._run = run
        self._pending = pending

    def write(self, logs: lox.logdict) -> None:
        """Takes columns: in every array, axis 0 is the record."""
        rows = []
        for key, value in logs.items():
            axes = {axis: by_key[key].tolist() for axis, by_key in logs.steps.items() if key in by_key}
            steps = [json.dumps({axis: column[i] for axis, column in axes.items()}) for i in range(logs.counts[key])]
            for name, column in _columns(key, value):
                rows += [(self._run, key, name, *pair) for pair in zip(steps, _cells(column), strict=True)]
        # Only now, when all of it can be stored: a value that cannot must not cost other records.
        self._pending.append(Pending(self._run, rows, sum(1 for _ in logs.rows())))

    def flush(self) -> None:
        """Everything is on disk when this returns. The connection is not kept, so a fork cannot share it."""
        if not self._pending:
            return
        with connect(self._path) as database:
            for pending in self._pending:
                database.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", pending.rows)
        # Not reached after an error: the rows are kept, and the next flush tries again.
        self._pending.clear()

    def close(self) -> None:
        try:
            self.flush()
        except Exception as error:
            # This was the last attempt for this run: give up its rows, and report how many records are lost.
            mine = [pending for pending in self._pending if pending.run == self._run]
            self._pending[:] = [pending for pending in self._pending if pending.run != self._run]
            error.lost_records = sum(pending.records for pending in mine)  # type: ignore[attr-defined]
            raise


def _columns(key: str, value: Any) -> list[tuple[str, np.ndarray]]:
    """The leaves of a value, in numpy's own dtypes. A value that SQLite cannot keep is refused here: it costs one record."""
    try:
        columns = [(name, plain(leaf, name, "ExampleSqliteLogger")) for name, leaf in flatten(key, value)]
        for name, column in columns:
            for text in (name, *(column.ravel().tolist() if column.dtype.kind == "U" else ())):
                text.encode()  # fails for a lone surrogate, which a Python string may have
    except (KindError, UnicodeEncodeError) as error:
        raise RecordError(f"ExampleSqliteLogger: {key!r} cannot be stored: {error}") from error
    return columns


def _cells(column: np.ndarray) -> list[Any]:
    """A column as values that SQLite keeps: a number as it is, all else as JSON."""
    if column.dtype.kind == "c":
        column = np.stack([column.real, column.imag], axis=-1)
    return [_cell(value) for value in column.tolist()]


def _cell(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):  # SQLite would make NULL of nan
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return json.dumps(value, default=lambda text: text.decode(errors="replace"))


def _axes_of_all(records: list[dict[str, Any]]) -> list[str]:
    return [axis for axis in records[0] if all(axis in record for record in records)]


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    # A locked database is to be noticed soon: each run asks for it, and while it waits nothing else is written.
    with contextlib.closing(sqlite3.connect(path, timeout=0.2)) as database, database:
        database.executescript(_TABLES)
        yield database
