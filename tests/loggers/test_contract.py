"""Our own backends keep the contract that `lox.loggers.testing` checks."""

import csv
import io
import json

import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers.testing import LoggerContract


class TestSave(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.SaveLogger(folder, **options)

    def read(self, folder, name):
        return lox.loggers.load(folder / name)


class TestMemory(LoggerContract):
    def make(self, folder, **options):
        self._last = lox.loggers.MemoryLogger(**options)
        return self._last

    def read(self, folder, name):
        return self._last.logs[name]


class TestJsonl(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.JsonlLogger(folder, **options)

    def read(self, folder, name):
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        return column([json.loads(line) for line in lines])


class TestCsv(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.CsvLogger(folder, **options)

    def read(self, folder, name):
        with open(folder / f"{name}.csv", newline="") as file:
            rows = [
                {k: float(v) for k, v in row.items() if k in ("step", "loss") and v} for row in csv.DictReader(file)
            ]
        return column(rows)


class TestConsoleLines(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.ConsoleLogger(file=io.StringIO(), **options)


class TestConsoleTable(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.ConsoleLogger(file=io.StringIO(), live=True, **options)


class TestProgress(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.ProgressLogger(20, file=io.StringIO(), **options)


class TestProgressBar(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.ProgressLogger(20, metrics="*", file=io.StringIO(), live=True, **options)


def column(rows):
    rows = [row for row in rows if "loss" in row]
    values = np.asarray([row["loss"] for row in rows])
    steps = np.asarray([row["step"] for row in rows]).astype(int)
    return lox.logdict({"loss": values}, steps={"step": {"loss": steps}}, stacked=["loss"])


def test_the_suite_notices_a_backend_that_loses_records(tmp_path):
    """The contract can fail: a writer that forgets every other record does not pass."""

    kept = []
    suite = LoggerContract()
    suite.make = lambda folder, **options: ForgetfulLogger(**options)
    suite.read = lambda folder, name: column([{"step": i, "loss": value} for i, value in enumerate(kept)])
    suite._folder, suite._made = tmp_path, []

    class ForgetfulLogger(lox.loggers.Logger):
        def open(self, run):
            return ForgetfulWriter()

    class ForgetfulWriter:
        seen = 0

        def write(self, logs):
            self.seen += 1
            if self.seen % 2:
                kept.extend(logs["loss"].tolist())

        def flush(self):
            pass

        close = flush

    with pytest.raises(AssertionError):
        suite.test_many_records_keep_their_order()
