"""Our own backends keep the contract that `lox.loggers.testing` checks."""

import contextlib
import importlib
import io
import json
import sys

import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers.testing import LoggerContract, ReaderContract

pytest_plugins = "pytester"


class TestSave(ReaderContract):
    reader = "save"

    def make(self, folder, **options):
        return lox.loggers.SaveLogger(folder, **options)


class TestMemory(LoggerContract):
    def make(self, folder, **options):
        self._last = lox.loggers.MemoryLogger(**options)
        return self._last

    def read(self, folder, name):
        return self._last.logs[name]

    def read_config(self, folder, name):
        return self._last.configs[name]


class TestJsonl(LoggerContract):
    def make(self, folder, **options):
        return lox.loggers.JsonlLogger(folder, **options)

    def read(self, folder, name):
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        return from_rows({label: number(cell) for label, cell in json.loads(line).items()} for line in lines)

    def read_config(self, folder, name):
        return read_config(folder / f"{name}.jsonl.config.json")


class TestJsonlReader(ReaderContract):
    reader = "jsonl"

    def make(self, folder, **options):
        return lox.loggers.JsonlLogger(folder, **options)


class TestCsv(ReaderContract):
    reader = "csv"

    def make(self, folder, **options):
        return lox.loggers.CsvLogger(folder, **options)


def number(cell):
    """What a cell says; numbers that JSON has no way to write are words."""
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except json.JSONDecodeError:  # True
        return float(cell) if cell.lower() in ("nan", "inf", "-inf", "infinity", "-infinity") else cell


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


def read_config(path):
    return json.loads(path.read_text()) if path.exists() else {}


def from_rows(rows, axes=("step", "epoch")):
    """The logs of flat rows of steps and values."""
    logs = lox.logdict()
    for row in rows:
        values = {label: np.asarray(cell) for label, cell in row.items() if label not in axes}
        steps = {axis: dict.fromkeys(values, row[axis]) for axis in axes if axis in row}
        logs = logs + lox.logdict(values, steps=steps)
    return logs


# The contract can fail. Each of these mutants of a backend is wrong in one way, and the suite has to notice.


class JsonMutant(lox.loggers.JsonlLogger):
    def open(self, run):
        return MutantWriter(super().open(run), self.change)

    def change(self, logs):
        return logs


class MutantWriter:
    def __init__(self, writer, change):
        self.writer, self.change = writer, change

    def write(self, logs):
        self.writer.write(self.change(logs))

    def flush(self):
        self.writer.flush()

    def close(self):
        self.writer.close()


class Forgetful(JsonMutant):
    """Forgets every other write."""

    writes = 0

    def change(self, logs):
        self.writes += 1
        return logs if self.writes % 2 else lox.logdict()


class Flat(JsonMutant):
    """Drops nested values."""

    def change(self, logs):
        return logs.filter(lambda key: isinstance(logs[key], np.ndarray))


class OnlyLoss(JsonMutant):
    """Keeps the key `loss` only."""

    def change(self, logs):
        return logs.filter(lambda key: key == "loss")


class OnlyStep(JsonMutant):
    """Drops every axis but `step`."""

    def change(self, logs):
        steps = {axis: by_key for axis, by_key in logs.steps.items() if axis == "step"}
        return lox.logdict(dict(logs), steps=steps, stacked=list(logs))


class Silent(JsonMutant):
    """Swallows all its own errors."""

    def open(self, run):
        writer = super().open(run)
        writer.write = lambda logs: suppress(writer.writer.write, logs)
        writer.flush = lambda: suppress(writer.writer.flush)
        return writer


def suppress(call, *args):
    with contextlib.suppress(Exception):
        call(*args)


MUTANTS = {
    Forgetful: "test_many_records_keep_their_order",
    Flat: "test_every_leaf_of_a_nested_value_is_kept",
    OnlyLoss: "test_keys_and_axes_may_come_and_go",
    OnlyStep: "test_every_step_axis_is_kept",
    Silent: "test_what_cannot_be_written_does_not_go_unnoticed",
}


@pytest.mark.parametrize(("mutant", "test"), MUTANTS.items())
def test_the_suite_notices_a_backend_that_is_wrong(mutant, test, tmp_path):
    def run_it(logger, folder):
        suite = TestJsonl()
        suite.make = lambda folder, **options: logger(folder, **options)
        suite._folder, suite._made = folder, []
        getattr(suite, test)()

    run_it(JsonMutant, tmp_path / "right")
    with pytest.raises(AssertionError):
        run_it(mutant, tmp_path / "wrong")


def test_a_failure_shows_what_was_compared_and_resume_says_why_it_is_skipped(pytester):
    pytester.makepyfile(
        test_mine="""
        import lox.loggers
        from lox.loggers.testing import LoggerContract, ReaderContract

        class Mine(lox.loggers.JsonlLogger):
            def written(self, name):
                return {}

        class TestMine(LoggerContract):
            def make(self, folder, **options):
                return Mine(folder, **options)

            def read(self, folder, name):
                import json
                logs = lox.logdict()
                for line in (folder / f"{name}.jsonl").read_text().splitlines():
                    row = json.loads(line)
                    logs = logs + lox.logdict({"loss": row["loss"]}, steps={"step": {"loss": row["step"]}})
                return logs

        class TestDoubled(TestMine):
            def read(self, folder, name):
                logs = super().read(folder, name).table()
                return lox.logdict({"loss": 2 * logs["loss"]}, steps=logs.steps, stacked=["loss"])
        """
    )
    result = pytester.runpytest(
        "-rs", "-k", "after_flush or resume_continues or resume_knows", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=1, failed=1, skipped=4)
    result.stdout.fnmatch_lines(["*assert (*3*1.0*) == (*3*0.5*)"])
    result.stdout.fnmatch_lines(["*written returns no steps, so all records were written again"])


def test_without_pytest_the_suite_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "lox.loggers.testing")
    with pytest.raises(ImportError, match=r"needs pytest: pip install 'lox-loggers\[testing\]'"):
        importlib.import_module("lox.loggers.testing")
