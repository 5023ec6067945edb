"""How fast rows are written, against the loop that lox saves its users."""

from __future__ import annotations

import time

import numpy as np
from tensorboardX import SummaryWriter

from lox.loggers import Run
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import scalars, table

KEYS = [f"train/key{number}" for number in range(8)]


def test_batches_are_at_least_15_times_as_fast_as_a_loop_of_add_scalar(tmp_path):
    values = np.random.default_rng(0).normal(size=(8, 20_000)).astype(np.float32)
    rows_of_loop, batch = 100, 128

    with SummaryWriter(str(tmp_path / "loop")) as loop:
        start = time.perf_counter()
        for step in range(rows_of_loop):
            for key, column in zip(KEYS, values, strict=True):
                loop.add_scalar(key, column[step], step)
        seconds_of_loop = time.perf_counter() - start

    with TensorBoardLogger(tmp_path) as logger:
        writer = logger.open(Run("lox"))
        start = time.perf_counter()
        for first in range(0, values.shape[1], batch):
            steps = np.arange(first, min(first + batch, values.shape[1]))
            writer.write(table(dict(zip(KEYS, values[:, steps], strict=True)), step=steps))
        writer.flush()
        seconds = time.perf_counter() - start
        writer.close()

    ratio = (values.shape[1] / seconds) / (rows_of_loop / seconds_of_loop)
    print(f"{values.shape[1] / seconds:,.0f} rows/s, {ratio:.0f} times the loop")
    assert ratio > 15
    found = scalars(tmp_path / "lox")
    assert found[KEYS[5]] == [(step, value) for step, value in enumerate(values[5].tolist())]
