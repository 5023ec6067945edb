"""The contract of lox's backends, and what is our own."""

import contextlib
import dataclasses
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
from lox.loggers import LoggerWarning, RecordError
from lox.loggers.testing import LoggerContract


class TestExampleSqlite(LoggerContract):
    def make(self, folder, **options):
        return ExampleSqliteLogger(folder / "runs.db", **options)

    def read(self, folder, name):
        return read(folder / "runs.db", name)

    def read_config(self, folder, name):
        with connect(folder / "runs.db") as database:
            ((config,),) = database.execute("SELECT config FROM runs WHERE name = ?", [name])
        return json.loads(config)


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


@contextlib.contextmanager
def locked(path):
    """Somebody else writes to the database."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def test_rows_that_could_not_be_written_are_written_later(tmp_path):
    with ExampleSqliteLogger(tmp_path / "runs.db") as logger:
        writer = logger.open(lox.loggers.Run("run"))
        writer.write(lox.logdict({"loss": np.ones(3)}, stacked=["loss"]))
        with locked(tmp_path / "runs.db"), pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.flush()
        writer.flush()
        assert read(tmp_path / "runs.db", "run")["loss"].tolist() == [1.0, 1.0, 1.0]


def test_a_run_that_is_closed_gives_up_its_own_rows_only(tmp_path):
    with ExampleSqliteLogger(tmp_path / "runs.db") as logger:
        one, other = (logger.open(lox.loggers.Run(name)) for name in ("one", "other"))
        one.write(lox.logdict({"loss": np.ones(3)}, stacked=["loss"]))
        other.write(lox.logdict({"loss": np.ones(2)}, stacked=["loss"]))
        with locked(tmp_path / "runs.db"), pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            one.close()
        assert caught.value.lost_records == 3
        other.close()
        assert [list(read(tmp_path / "runs.db", name)) for name in ("one", "other")] == [[], ["loss"]]


def test_what_is_lost_in_the_end_is_counted(tmp_path):
    logger = ExampleSqliteLogger(tmp_path / "runs.db", on_error="warn")
    state = logger.init(jax.random.key(0))

    def log_and_close():
        for step in range(4):
            logger.log(state, {"loss": 1.0, "accuracy": 0.5}, step=step)
        logger.close()

    with locked(tmp_path / "runs.db"), pytest.warns(LoggerWarning, match="4 records were lost"):
        log_and_close()


@pytest.mark.parametrize("record", [{"a\ud800": 1.0}, {"x": "a\ud800"}, {"x": np.datetime64("2020-01-01")}])
def test_what_cannot_be_stored_costs_its_own_record_only(tmp_path, record):
    logger = ExampleSqliteLogger(tmp_path / "runs.db")
    state = logger.init(jax.random.key(0))
    for step, logged in enumerate([{"x": 1.0}, record, {"x": 2.0}]):
        logger.log(state, logged, step=step)
    with pytest.raises(RecordError, match="cannot be stored"):
        logger.close()
    assert read(tmp_path / "runs.db", "0000000000000000")["x"].tolist() == [1.0, 2.0]
