"""`--watch`, on files that a process is writing, and on what it left when it was killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.loggers.recording import wait_until

COMMAND = ("-m", "lox.loggers._cli.main")
WRITER = """
import sys, time, jax, lox.loggers
kind, path = sys.argv[1:]
logger = lox.loggers.create(kind, path=path)
state = logger.init(jax.random.key(0), {"rate": 0.1})
for step in range(100000):
    logger.log(state, {"loss": 1.0 / (step + 1)}, step=step)
    logger.flush()
    print(step, flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def start():
    """Starts processes, which end with the test."""
    processes = []

    def popen(*arguments):
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "80"}
        command = [sys.executable, *map(str, arguments)]
        processes.append(subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=environment))
        return processes[-1]

    yield popen
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def lines_until(process, found, seconds=90):
    """What a process prints, up to a line that is looked for."""
    read, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        read.append(line)
        if found(line):
            return read
        assert line, f"it ended: {read}"
    raise AssertionError(f"not found in {read}")


@pytest.mark.parametrize("kind", ["save", "csv", "jsonl", "tensorboard"])
def test_show_follows_a_run_and_reads_what_a_kill_left(tmp_path, start, kind):
    path = tmp_path / "runs"
    path.mkdir()
    watcher = start(*COMMAND, "show", path, "--watch", "0.1")
    lines_until(watcher, lambda line: "there are no runs in" in line)  # which is waited for
    writer = start("-c", WRITER, kind, path)
    lines_until(watcher, lambda line: line.split()[:1] == ["loss"])
    lines_until(writer, lambda line: int(line) >= 3)
    counts = [int(lines_until(watcher, lambda line: line.split()[:1] == ["loss"])[-1].split()[1]) for _ in range(3)]
    assert counts == sorted(set(counts))  # only what has changed is printed
    writer.kill()
    last = int(writer.stdout.read().split()[-1])
    if counts[-1] <= last:  # what was flushed before the kill, and not shown yet
        lines_until(watcher, lambda line: line.split()[:1] == ["loss"] and int(line.split()[1]) > last)
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(30) == 0
    done = subprocess.run([sys.executable, *COMMAND, "show", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rate=0.1" in done.stdout


def test_plot_writes_its_figure_again(tmp_path, start):
    pytest.importorskip("matplotlib")
    path, figure = tmp_path / "runs", tmp_path / "curves.png"
    writer = start("-c", WRITER, "save", path)
    lines_until(writer, lambda line: int(line) >= 2)
    watcher = start(*COMMAND, "plot", path, "-o", figure, "--watch", "0.1")
    lines_until(watcher, lambda line: line == f"wrote {figure}\n")
    first = figure.stat().st_mtime_ns
    wait_until(lambda: figure.stat().st_mtime_ns > first, seconds=60)
    assert figure.read_bytes().startswith(b"\x89PNG")
    watcher.kill()
    watcher.wait()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".png"] == ["curves.png"]
