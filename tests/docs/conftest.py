"""Fixtures of the tests of the documentation."""

import sys

import pytest


@pytest.fixture
def no_server(monkeypatch):
    """Examples log to no server. wandb reads its environment once in a process: what comes later has to read it anew."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
