"""What makes batches fast: numbers are encoded in one go, without an event object for each row, and written in one call.

`hatch run bench:all` has the figures.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from lox.loggers import Run
from lox.tensorboard import TensorBoardLogger, _batch
from tests.tensorboard.reading import scalars, table

KEYS = [f"train/key{number}" for number in range(8)]
ROWS, BATCH = 1000, 128


@pytest.fixture
def calls(monkeypatch):
    """How often each of these was called."""
    counted = {"Event": 0, "scalar_records": 0, "os.write": 0}

    def count(name, function):
        def counting(*args, **kwargs):
            counted[name] += 1
            return function(*args, **kwargs)

        return counting

    monkeypatch.setattr(_batch, "Event", count("Event", _batch.Event))
    monkeypatch.setattr(_batch, "scalar_records", count("scalar_records", _batch.scalar_records))
    monkeypatch.setattr(os, "write", count("os.write", os.write))
    return counted


def write(logger, columns, calls):
    writer = logger.open(Run("lox"))
    calls.update(dict.fromkeys(calls, 0))  # what opening a run takes does not matter
    for first in range(0, ROWS, BATCH):
        steps = np.arange(first, min(first + BATCH, ROWS))
        writer.write(table({key: column[steps] for key, column in columns.items()}, step=steps))
    writer.flush()
    writer.close()


def test_a_batch_of_numbers_is_encoded_at_once_and_written_in_one_call(tmp_path, calls):
    values = np.random.default_rng(0).normal(size=(8, ROWS)).astype(np.float32)
    with TensorBoardLogger(tmp_path) as logger:
        write(logger, dict(zip(KEYS, values, strict=True)), calls)
    batches = -(-ROWS // BATCH)
    assert calls == {"Event": 0, "scalar_records": batches, "os.write": batches + 1}  # one more: the closing event
    found = scalars(tmp_path / "lox")
    assert found[KEYS[5]] == [(step, value) for step, value in enumerate(values[5].tolist())]


def test_histograms_have_an_event_for_each_row_and_still_one_call(tmp_path, calls):
    with TensorBoardLogger(tmp_path) as logger:
        write(logger, {"weights": np.zeros((ROWS, 3), np.float32)}, calls)
    assert calls["Event"] == ROWS
    assert calls["os.write"] == -(-ROWS // BATCH) + 1
