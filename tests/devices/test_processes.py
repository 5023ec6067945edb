"""Several JAX processes, as on several machines: real ones, on 127.0.0.1."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lox.loggers

WORKER = Path(__file__).with_name("worker.py")


def start(processes, folder, scenario):
    """What each process printed, and how it ended: `[(exit status, stdout, stderr), ...]`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [sys.executable, WORKER, address, str(processes), str(index), folder, scenario],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for index in range(processes)
    ]
    try:
        ended = [process.communicate(timeout=400) for process in started]
    finally:
        for process in started:
            process.kill()  # only if it hangs: the others have ended
    return [(process.returncode, *output) for process, output in zip(started, ended, strict=True)]


def succeed(processes, folder, scenario):
    ended = start(processes, folder, scenario)
    for status, _, err in ended:
        assert status == 0, err
    # The libraries underneath print too, in pieces.
    return [re.findall(r"worker: (.*)", out) for _, out, _ in ended]


@pytest.mark.every(2)
@pytest.mark.parametrize("processes", [2, 4])
def test_process_0_writes_each_record_once(tmp_path, processes):
    printed = succeed(processes, tmp_path, "everything")
    assert printed == [["runs [0, 0, 0, 0, 0, 0]"], *[["runs []"]] * (processes - 1)]
    runs = lox.loggers.load(tmp_path)
    x = np.arange(4 * processes)
    assert sorted(runs) == [f"{number:016x}" for number in range(6)]
    for name, logs in runs.items():
        assert logs.step["mean"].tolist() == [0, 1, 2]
        expected = x.mean() + np.array([1, 2, 3])
        if "c" in logs:
            np.testing.assert_allclose(logs["mean"], expected)
            np.testing.assert_array_equal(logs["c"], x + np.array([[1], [2], [3]]))
            continue
        # Spooled, the values of all devices; tapped, of those that process 0 has.
        devices = {4: 2 * processes, 5: 2}[int(name, 16)]
        np.testing.assert_allclose(logs["mean"], np.repeat(expected[:, None], devices, axis=1))
        own = x.reshape(-1, 2).sum(1) + 2 * np.array([[1], [2], [3]])
        np.testing.assert_array_equal(logs["own"], own[:, :devices])


def test_with_all_each_process_has_runs_of_its_own(tmp_path):
    printed = succeed(2, tmp_path, "each_its_own")
    for index, (line,) in enumerate(printed):
        assert line == f"runs {[(f'{key:016x}-p{index}', index) for key in range(2)]}"
    runs = lox.loggers.load(tmp_path)
    assert len(runs) == 4
    own = np.arange(8).reshape(-1, 2).sum(1) + 2 * np.array([[1], [2], [3]])
    for index in range(2):
        logs = runs[f"{0:016x}-p{index}"]
        assert logs["index"].tolist() == [index]
        np.testing.assert_array_equal(logs["c"], np.arange(8) + np.array([[1], [2], [3]]))
        np.testing.assert_array_equal(runs[f"{1:016x}-p{index}"]["own"], own[:, 2 * index : 2 * index + 2])


def test_a_value_that_the_writer_has_only_a_part_of_is_refused(tmp_path):
    printed = succeed(2, tmp_path, "refused")
    for lines in printed:
        (line,) = lines
        assert "'x' is spread over several processes" in line
        assert "process_allgather" in line
    (logs,) = lox.loggers.load(tmp_path).values()
    assert logs["mean"].tolist() == [3.5]


def test_nobody_hangs_when_the_others_stop_early(tmp_path):
    printed = succeed(2, tmp_path, "others_stop_early")
    assert printed == [[], ["stops"]]
    (logs,) = lox.loggers.load(tmp_path).values()
    assert logs.step["mean"].tolist() == list(range(50))


def test_what_the_writer_logged_before_it_died_is_there(tmp_path):
    (status, _, err), (other, _, _) = start(2, tmp_path, "the_writer_fails")
    assert status != 0
    assert "my own mistake" in err
    assert other is not None  # it ended; JAX decides how
    (logs,) = lox.loggers.load(tmp_path).values()
    assert logs.step["mean"].tolist() == [0, 1, 2]
