"""What every backend promises, on files of offline runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers.testing import LoggerContract, ReaderContract
from lox.wandb import WandbLogger
from lox.wandb._logger import _safe_id
from lox.wandb._runfile import find_run_files
from tests.wandb.offline import all_rows, config


class TestWandbLogger(LoggerContract):
    def make(self, folder: Path, **options: Any) -> WandbLogger:
        return WandbLogger(project="contract", mode="offline", path=folder, **options)

    def test_what_cannot_be_written_does_not_go_unnoticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lox.wandb._disk._PATIENCE", 3.0)  # it is not going to be written later either
        super().test_what_cannot_be_written_does_not_go_unnoticed()

    @pytest.mark.parametrize("transform", ["spool", "tap"])
    def test_vmapped_runs_get_their_own_lane(self, transform: str) -> None:
        """As in the suite, which asks `logger.runs` for their keys: here they are wandb's own, and have names only."""
        logger = self.logger()
        keys = jax.random.split(jax.random.key(1), 4)
        states = jax.vmap(logger.init)(keys)

        def train(state: Any, scale: Any) -> Any:
            def body(carry: Any, step: Any) -> Any:
                lox.log({"loss": scale * step}, step=step)
                return carry, None

            return getattr(logger, transform)(lambda: jax.lax.scan(body, 0, jnp.arange(5)), state)()

        jax.jit(jax.vmap(train))(states, jnp.arange(1.0, 5.0))
        logger.flush()
        names = ["".join(f"{word:08x}" for word in words) for words in np.asarray(jax.random.key_data(keys))]
        assert [run.name for run in logger.runs] == names
        for lane, name in enumerate(names):
            assert self.records(name) == (list(range(5)), [(lane + 1.0) * step for step in range(5)])

    def read_config(self, folder: Path, name: str) -> Any:
        merged: dict[str, Any] = {}
        for file in find_run_files(folder / "wandb", _safe_id(name)):
            merged |= config(file)
        return merged

    def read(self, folder: Path, name: str) -> lox.logdict:
        logs = lox.logdict()
        for row in all_rows(folder, _safe_id(name)):
            values = {key: np.asarray(value) for key, value in _leaves(row) if key not in ("step", "epoch")}
            steps = {axis: dict.fromkeys(values, row[axis]) for axis in ("step", "epoch") if axis in row}
            logs = logs + lox.logdict(values, steps=steps)
        return logs


def _leaves(row: dict[str, Any]) -> list[tuple[str, Any]]:
    """The numbers of a row; what wandb stores as an object (a histogram) is left out."""
    return [(key, value) for key, value in row.items() if isinstance(value, int | float)]


class TestWandbReader(ReaderContract):
    """The same, read by our own reader."""

    reader = "wandb"
    make = TestWandbLogger.make
    test_vmapped_runs_get_their_own_lane = TestWandbLogger.test_vmapped_runs_get_their_own_lane

    def test_what_cannot_be_written_does_not_go_unnoticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lox.wandb._disk._PATIENCE", 3.0)
        super().test_what_cannot_be_written_does_not_go_unnoticed()
