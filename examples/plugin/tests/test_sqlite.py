"""The contract of lox's backends, and what is our own."""

import json

import jax
import numpy as np
from lox_sqlite import SqliteLogger, connect

import lox
import lox.loggers
from lox.loggers.testing import LoggerContract


class TestSqlite(LoggerContract):
    def make(self, folder, **options):
        return SqliteLogger(folder / "runs.db", **options)

    def read(self, folder, name):
        query = "SELECT steps, value FROM records WHERE run = ? AND key = 'loss' ORDER BY rowid"
        with connect(folder / "runs.db") as database:
            rows = database.execute(query, [name]).fetchall()
        steps = np.asarray([json.loads(steps)["step"] for steps, _ in rows])
        values = np.asarray([value for _, value in rows])
        return lox.logdict({"loss": values}, steps={"step": {"loss": steps}}, stacked=["loss"])


def test_it_is_found_by_name(tmp_path):
    with lox.loggers.create("sqlite", path=tmp_path / "runs.db") as logger:
        assert type(logger) is SqliteLogger
        logger.log(logger.init(jax.random.key(0)), {"loss": 0.5, "w": np.ones(2)}, step=3)
    with connect(tmp_path / "runs.db") as database:
        rows = database.execute("SELECT * FROM records ORDER BY key").fetchall()
    name = "0000000000000000"
    assert rows == [(name, "loss", '{"step": 3}', 0.5), (name, "w", '{"step": 3}', "[1.0, 1.0]")]
