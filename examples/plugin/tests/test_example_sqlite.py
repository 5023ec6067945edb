"""The contract of lox's backends, and what is our own."""

import dataclasses
import functools
import json
import math
import sqlite3

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lox_example_sqlite import ExampleSqliteLogger, connect

import lox
import lox.loggers
from lox.loggers import LoggerWarning
from lox.loggers.testing import LoggerContract


class TestExampleSqlite(LoggerContract):
    def make(self, folder, **options):
        return ExampleSqliteLogger(folder / "runs.db", **options)

    def read(self, folder, name):
        return read(folder / "runs.db", name)


def read(path, name):
    logs = lox.logdict()
    with connect(path) as database:
        rows = database.execute("SELECT name, steps, value FROM records WHERE run = ? ORDER BY rowid", [name])
        for leaf, steps, value in rows:
            value = json.loads(value) if isinstance(value, str) else value
            by_axis = {axis: {leaf: step} for axis, step in json.loads(steps).items()}
            logs = logs + lox.logdict({leaf: np.asarray(value)}, steps=by_axis)
    return logs


def test_it_is_found_by_name(tmp_path):
    with lox.loggers.create("example-sqlite", path=tmp_path / "runs.db") as logger:
        assert type(logger) is ExampleSqliteLogger
        logger.log(logger.init(jax.random.key(0)), {"loss": 0.5, "w": np.ones(2)}, step=3)
    with connect(tmp_path / "runs.db") as database:
        rows = database.execute("SELECT * FROM records ORDER BY key").fetchall()
    name = "0000000000000000"
    assert rows == [(name, "loss", "loss", '{"step": 3}', 0.5), (name, "w", "w", '{"step": 3}', "[1.0, 1.0]")]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Pair:
    left: float
    right: float


@pytest.mark.parametrize(
    ("value", "leaves"),
    [
        (math.nan, {"x": "NaN"}),
        (-math.inf, {"x": "-Infinity"}),
        (jnp.bfloat16(0.5), {"x": 0.5}),
        (jnp.int4(-3), {"x": -3.0}),
        (np.uint64(2**63), {"x": "9223372036854775808"}),
        (1 + 2j, {"x": "[1.0, 2.0]"}),
        ("a text", {"x": '"a text"'}),
        (True, {"x": True}),
        (Pair(1.0, 2.0), {"x/left": 1.0, "x/right": 2.0}),
        ({(0, 1): 5, (0, 2): [6, (7,)]}, {"x/(0, 1)": 5, "x/(0, 2)/0": 6, "x/(0, 2)/1/0": 7}),
        (np.array([[1.5, math.nan]]), {"x": "[[1.5, NaN]]"}),
    ],
    ids=str,
)
def test_every_value_that_jax_knows_is_kept(tmp_path, value, leaves):
    with ExampleSqliteLogger(tmp_path / "runs.db") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": value})
    with connect(tmp_path / "runs.db") as database:
        assert dict(database.execute("SELECT name, value FROM records").fetchall()) == leaves


@pytest.fixture
def impatient(monkeypatch):
    """Waits a moment for a lock, and not five seconds."""
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0.1))


def test_rows_that_could_not_be_written_are_written_later(tmp_path, impatient):
    with ExampleSqliteLogger(tmp_path / "runs.db") as logger:
        writer = logger.open(lox.loggers.Run("run"))
        writer.write(lox.logdict({"loss": np.ones(3)}, stacked=["loss"]))
        lock = sqlite3.connect(tmp_path / "runs.db")
        lock.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.flush()
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            writer.close()
        assert caught.value.lost_records == 3
        lock.close()
        writer.flush()
        assert read(tmp_path / "runs.db", "run")["loss"].tolist() == [1.0, 1.0, 1.0]


def test_what_is_lost_in_the_end_is_counted(tmp_path, impatient):
    logger = ExampleSqliteLogger(tmp_path / "runs.db", on_error="warn")
    state = logger.init(jax.random.key(0))
    lock = sqlite3.connect(tmp_path / "runs.db")
    lock.execute("BEGIN IMMEDIATE")

    def log_and_close():
        for step in range(4):
            logger.log(state, {"loss": 1.0, "accuracy": 0.5}, step=step)
        logger.close()

    with pytest.warns(LoggerWarning, match="4 records were lost"):
        log_and_close()
    lock.close()
