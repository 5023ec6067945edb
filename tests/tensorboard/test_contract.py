"""What every backend promises, on event files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers.testing import LoggerContract
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import scalars


class TestTensorBoardLogger(LoggerContract):
    def make(self, folder: Path, **options: Any) -> TensorBoardLogger:
        # The suite logs one key along another axis; TensorBoard has one step, so it has to be told which to use.
        return TensorBoardLogger(folder, step_axis=("step", "epoch"), **options)

    def read(self, folder: Path, name: str) -> lox.logdict:
        found = scalars(folder / name)
        epochs = dict(found.pop("epoch", ()))  # an axis that is not TensorBoard's step is a scalar of its own
        steps = {tag: np.array([step for step, _ in series]) for tag, series in found.items()}
        by_epoch = {tag: [epochs[step] for step in mine] for tag, mine in steps.items() if set(mine) <= epochs.keys()}
        return lox.logdict(
            {tag: np.array([value for _, value in series]) for tag, series in found.items()},
            steps={"step": steps, "epoch": {tag: np.array(mine) for tag, mine in by_epoch.items()}},
            stacked=found,
        )

    def read_config(self, folder: Path, name: str) -> Any:
        path = folder / name / "config.json"
        return json.loads(path.read_text()) if path.exists() else {}
