"""The recipe with orbax checkpoints, in processes that get a real SIGTERM in mid-epoch."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import lox.loggers
from tests.packaging.wheels import ROOT

pytest.importorskip("orbax.checkpoint", reason="orbax-checkpoint is not installed: hatch run libs:test")

EPOCHS, LENGTH, WIDTH = 4, 150, 500  # a step takes some milliseconds, so that there is a middle to be hit


def program():
    """The function of the page, called with what the command line says."""
    page = (ROOT / "docs" / "recipes.md").read_text()
    (block,) = [block for block in page.split("```python\n") if "def train_with_checkpoints" in block]
    function = block.split("```")[0].split("\n\n\ntrain_with_checkpoints(")[0]
    imports = "import sys\nimport jax\nimport jax.numpy as jnp\nimport lox\nimport lox.loggers\n"
    return f"{imports}{function}\n\ntrain_with_checkpoints(sys.argv[1], *map(int, sys.argv[2:]))\n"


def start(path):
    arguments = [sys.executable, "-c", program(), str(path), *map(str, (EPOCHS, LENGTH, WIDTH))]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)


def records(path):
    try:
        return len(lox.loggers.load(path / "logs")["loss"])
    except (FileNotFoundError, ValueError, KeyError):  # not there yet
        return 0


def interrupt_in_epoch(path, number):
    """Starts the program, and sends SIGTERM when it is about in the middle of an epoch. Returns how far the files got."""
    process = start(path)
    deadline = time.monotonic() + 300
    while records(path) < (number + 0.3) * LENGTH:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM
    return records(path)


def finish(path):
    process = start(path)
    assert process.wait(timeout=300) == 0, process.communicate()[1]
    return lox.loggers.load(path / "logs")


def test_sigterm_in_mid_epoch_leaves_no_gap_and_no_repeat(tmp_path):
    undisturbed = finish(tmp_path / "undisturbed")
    path = tmp_path / "interrupted"
    for epoch in (0, 2):
        there = interrupt_in_epoch(path, epoch)
        assert epoch * LENGTH < there < (epoch + 1) * LENGTH, "not in the middle of the epoch"
        assert (
            sorted(int(step.name) for step in (path / "checkpoints").iterdir() if step.name.isdigit())[-1:]
            == [epoch][:epoch]
        )
    logs = finish(path)
    assert logs.step["loss"].tolist() == list(range(EPOCHS * LENGTH))
    np.testing.assert_array_equal(logs["loss"], undisturbed["loss"])
