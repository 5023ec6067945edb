"""What every backend promises, on event files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers.testing import LoggerContract, ReaderContract
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


class TestTensorBoardReader(ReaderContract):
    """The same, read by our own reader."""

    reader = "tensorboard"

    def make(self, folder: Path, **options: Any) -> TensorBoardLogger:
        return TensorBoardLogger(folder, step_axis=("step", "epoch"), **options)

    def read(self, folder: Path, name: str) -> lox.logdict:
        logs = super().read(folder, name)
        assert logs is not None
        if "epoch" not in logs:
            return logs
        # An axis that is not TensorBoard's step is a scalar of its own.
        epochs = dict(zip(logs.steps["step"]["epoch"].tolist(), logs["epoch"].tolist(), strict=True))
        rest = logs.filter(lambda key: key != "epoch")
        by_epoch = {
            key: np.array([epochs[step] for step in steps.tolist()])
            for key, steps in rest.steps["step"].items()
            if set(steps.tolist()) <= epochs.keys()
        }
        return lox.logdict(dict(rest), steps={**rest.steps, "epoch": by_epoch}, stacked=list(rest))
