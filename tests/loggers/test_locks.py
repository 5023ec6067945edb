"""A run has one writer at a time, among the loggers of a process and among processes."""

import contextlib
import gc
import os
import re
import signal
import threading

import jax
import jax.numpy as jnp
import pytest

import lox.loggers
from lox.loggers import RunExistsError, RunLock
from lox.loggers._delivery import locks
from tests.faults.plain import BACKENDS, make, rows_of
from tests.loggers.programs import finish, start

NAME = "0000000000000000"

HOLDING = """
from pathlib import Path
from tests.faults.plain import make
logger = make(sys.argv[1], Path(sys.argv[2]), if_exists=sys.argv[3])
state = logger.init(jax.random.key(0))
logger.log(state, {"x": 1.0}, step=0)
logger.flush()
print("open", flush=True)
sys.stdin.readline()
logger.log(state, {"x": 2.0}, step=1)
logger.close()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_another_process_writes_is_refused_and_that_process_is_named(tmp_path, backend):
    process = start(HOLDING, backend, tmp_path, "resume")
    assert process.stdout.readline() == "open\n", process.stderr.read()
    for if_exists in ("resume", "replace", "error"):
        with pytest.raises(RunExistsError, match=f"process {process.pid} is writing the run .*{NAME}"):
            make(backend, tmp_path, if_exists=if_exists).init(jax.random.key(0))
    with make(backend, tmp_path) as logger:  # "new": it does not matter
        logger.init(jax.random.key(0))
        assert [run.name for run in logger.runs] == [f"{NAME}-2"]
    if backend == "save":
        assert lox.loggers.load(tmp_path / NAME)["x"].tolist() == [1.0]  # reading needs no lock
    process.stdin.write("\n")
    _, err = finish(process)
    assert process.returncode == 0, err
    with make(backend, tmp_path, if_exists="resume") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 3.0}, step=2)
    assert [(step, float(x)) for step, x in rows_of(backend, tmp_path, NAME)["x"]] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_the_death_of_a_process_frees_its_runs(tmp_path):
    process = start(HOLDING, "jsonl", tmp_path, "new")
    assert process.stdout.readline() == "open\n", process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with make("jsonl", tmp_path, if_exists="resume") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 2.0}, step=1)
    assert len(rows_of("jsonl", tmp_path, NAME)["x"]) == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("if_exists", ["resume", "replace", "error"])
def test_a_run_that_another_logger_of_the_process_has_open_is_refused(tmp_path, backend, if_exists):
    with make(backend, tmp_path, if_exists=if_exists) as first:
        state = first.init(jax.random.key(0))
        first.log(state, {"x": 1.0}, step=0)
        first.flush()
        with pytest.raises(RunExistsError, match="another logger of this process has the run .* open"):
            make(backend, tmp_path, if_exists=if_exists).init(jax.random.key(0))
        first.log(state, {"x": 2.0}, step=1)
    assert len(rows_of(backend, tmp_path, NAME)["x"]) == 2


def test_a_logger_that_was_dropped_is_waited_for(tmp_path):
    """Its thread still writes what it had."""
    slow = threading.Event()

    class SlowWriter:
        def write(self, logs):
            slow.wait(60)

        def flush(self):
            pass

        def close(self):
            pass

    class Slow(lox.loggers.Logger):
        def lock(self, name):
            return RunLock(tmp_path, name)

        def open(self, run):
            return SlowWriter()

    logger = Slow()
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    del logger
    gc.collect()
    opened = []
    thread = threading.Thread(target=lambda: opened.append(Slow().init(jax.random.key(0))))
    thread.start()
    assert not opened
    slow.set()
    thread.join(60)
    assert opened


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_many_runs_need_one_open_file(tmp_path):
    with make("jsonl", tmp_path) as logger:
        jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 300))
        assert len(open_below(tmp_path)) <= 2
    assert open_below(tmp_path) == []


def open_below(folder):
    """The files in a folder that this process has open."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, by another thread
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in names if name.startswith(str(folder))]


def test_a_run_that_cannot_be_opened_is_not_left_locked(tmp_path):
    others = set(locks._LockFile.open_files)
    (tmp_path / f"{NAME}.jsonl").write_text("not ours")
    for _ in range(2):
        with pytest.raises(lox.loggers.RunFormatError):
            make("jsonl", tmp_path, if_exists="resume").init(jax.random.key(0))
    assert set(locks._LockFile.open_files) <= others


def test_a_forked_child_holds_no_lock_and_takes_none_from_its_parent(tmp_path):
    lock = RunLock(tmp_path, "run")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            RunLock(tmp_path, "run")
        except RunExistsError as error:
            os.write(writing, str(error).encode())
        lock.release()  # the copy
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as told:
        assert re.match(f"process {os.getpid()} is writing the run", told.read())
    with pytest.raises(RunExistsError):
        RunLock(tmp_path, "run")
    lock.release()
    RunLock(tmp_path, "run").release()


def test_a_file_system_without_locks_is_no_error(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "lockf", refuse)
    first = RunLock(tmp_path, "run")
    with pytest.raises(RunExistsError):
        RunLock(tmp_path, "run")
    first.release()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / locks.FILE).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match=locks.FILE):
        make("jsonl", tmp_path / "runs").init(jax.random.key(0))


def test_threads_may_open_runs_at_once():
    failed = []
    with lox.loggers.create("memory", if_exists="replace") as logger:

        def go(number):
            try:
                for i in range(50):
                    key = jnp.uint32([0, i % 5 if number < 2 else 1000 * number + i])
                    logger.log(logger.init(key), {"x": 1.0})
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=go, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert len(logger.runs) == 300
