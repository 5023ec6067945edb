"""The README's first command, run twice in an empty folder."""

import subprocess
import sys

import numpy as np
import pytest

from tests.packaging.wheels import ROOT

SEEDS, STEPS = 3, 200


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, ROOT / "examples/demo.py", f"--seeds={SEEDS}", f"--steps={STEPS}"]
    return folder, [
        subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True) for _ in range(2)
    ]


def test_a_second_run_takes_the_place_of_the_first(demo):
    import lox.loggers

    folder, _ = demo
    runs = lox.loggers.load(folder / ".lox")
    assert len(runs) == SEEDS
    for logs in runs.values():
        assert logs["train/loss"].shape == (STEPS,)
        for key in ("train/loss", "train/accuracy"):
            np.testing.assert_array_equal(logs.step[key], np.arange(STEPS))
        assert logs["train/loss"][-1] < logs["train/loss"][0]


def test_the_demo_logs_to_the_console_while_it_runs(demo):
    for result in demo[1]:
        lines = [line for line in result.stdout.splitlines() if "train/loss=" in line]
        assert len({line.split()[0] for line in lines}) == SEEDS  # a run for each seed


def test_the_demo_ends_with_what_was_saved_and_how_to_read_it(demo):
    for result in demo[1]:
        end = result.stdout[result.stdout.index(f"{SEEDS} networks trained") :]
        assert end.count(f" {STEPS} ") == SEEDS
        assert "lox.loggers.load('.lox')" in end
