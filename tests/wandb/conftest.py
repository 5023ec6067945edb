from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")


@pytest.fixture(autouse=True)
def nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the machine says about wandb must not decide a test."""
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)  # where wandb writes if it is not told where


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """wandb reads its environment once in a process: whatever else is tested there has to read it anew."""
    yield
    import wandb

    wandb.teardown()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes offline loggers in `tmp_path`, and closes them."""
    from lox.wandb import WandbLogger

    made = []

    def make_logger(**options: Any) -> WandbLogger:
        logger = WandbLogger(**{"project": "tests", "mode": "offline", "path": tmp_path, **options})
        made.append(logger)
        return logger

    yield make_logger
    for logger in made:
        logger.close()
