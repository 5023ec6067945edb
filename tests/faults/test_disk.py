"""The disk is full, or somebody deletes what is being written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import lox.loggers
from tests.faults.plain import BACKENDS, INSTALLED, make, numbers, place_of, rows_of
from tests.loggers.programs import PRELUDE, finish, start

FILLING = """
import errno, resource, shutil
from pathlib import Path
from tests.faults.plain import make

backends, folder, limit = sys.argv[1].split(), Path(sys.argv[2]), sys.argv[3] == "limit"

def fill(full):
    if limit:
        size = 12_000 if full else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    elif full:
        free = shutil.disk_usage(folder).free
        (folder / "filler").write_bytes(bytes(free - 20_000))
    else:
        (folder / "filler").unlink()

def train(backend):
    logger = make(backend, folder / backend)
    state = logger.init(jax.random.key(0))

    def log(start, stop):
        for step in range(start, stop):
            logger.log(state, {"a": step, "b": float(step)}, step=step)
        logger.flush()

    log(0, 100)
    fill(True)
    written = 100
    try:
        while written < 10**5:
            log(written, written + 50)
            written += 50
    except OSError as error:
        print(backend, written, errno.errorcode[error.errno], flush=True)
    fill(False)
    log(10**6, 10**6 + 100)
    logger.close()

for backend in backends:
    train(backend)
    if not limit:  # this disk is gone when the process ends, and the next one needs its room
        shutil.move(folder / backend, sys.argv[4])
"""


def check_what_is_left(backend: str, folder: Path, acknowledged: int) -> None:
    """All that was acknowledged, whole rows in order, and all that came when there was room again."""
    found = rows_of(backend, folder, "0" * 16)
    assert set(found) == {"a", "b"}
    for rows in found.values():
        there = [step for step, _ in rows].index(10**6)
        assert there >= acknowledged
        steps = [*range(there), *range(10**6, 10**6 + 100)]
        assert numbers(rows) == [(step, float(step)) for step in steps]


def check_output(output: str, error: str, folder: Path) -> None:
    """What a process with a failing disk has printed, and what it has left."""
    told = [line.split() for line in output.splitlines()]
    assert [(backend, found) for backend, _, found in told] == [(backend, error) for backend in INSTALLED]
    for backend, written, _ in told:
        check_what_is_left(backend, folder / backend, int(written))


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    process = start(FILLING, " ".join(INSTALLED), tmp_path, "limit")
    out, err = finish(process)
    assert process.returncode == 0, err
    check_output(out, "EFBIG", tmp_path)


def can_mount() -> bool:
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def test_a_disk_without_room(tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("a small disk can be mounted neither here nor in a namespace of our own")
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    copy.mkdir()
    mount = f'mount -t tmpfs -o size=1m none {disk} && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "-"]
    command += [sys.executable, "-c", PRELUDE + FILLING, " ".join(INSTALLED), disk, "full", copy]
    finished = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert finished.returncode == 0, finished.stderr
    check_output(finished.stdout, "ENOSPC", copy)


@pytest.mark.parametrize("what", ["run", "folder"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_deleted_under_the_writer_is_an_error(backend: str, what: str, tmp_path: Path) -> None:
    logger = make(backend, tmp_path / "runs")
    states = [logger.init(jax.random.key(seed)) for seed in range(2)]
    for state in states:
        logger.log(state, {"x": 1}, step=0)
    logger.flush()
    place = place_of(backend, tmp_path / "runs", "0" * 16)
    remove(place if what == "run" else tmp_path / "runs")
    logger.log(states[0], {"x": 2}, step=1)
    with pytest.raises((OSError, lox.loggers.RecordError), match="0" * 16):
        logger.flush()
    assert not place.exists() or not os.listdir(place)
    logger.log(states[1], {"x": 2}, step=1)
    if what == "folder":
        with pytest.raises((OSError, lox.loggers.RecordError)):
            logger.close()
        return
    try:
        logger.close()
    except lox.loggers.RecordError:  # tensorboard has a last word to write, and nowhere to write it
        assert backend == "tensorboard"
    assert numbers(rows_of(backend, tmp_path / "runs", f"{1:016x}")["x"]) == [(0, 1.0), (1, 2.0)]


def remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
