from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lox.loggers import Run
from lox.tensorboard import TensorBoardLogger


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes tables of records to a run called `run` and closes it; gives the run's folder."""

    def write_run(*tables: Any, resume: bool = False, **options: Any) -> Path:
        with TensorBoardLogger(tmp_path, **options) as logger:
            writer = logger.open(Run("run", resume=resume))
            for logs in tables:
                writer.write(logs)
            writer.close()
        return tmp_path / "run"

    return write_run
