"""Runs that are opened again, in the same process or after a crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest
from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import SessionLog

from lox.loggers import Run, RunExistsError
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import files, join, raw_events, read, run_folders, scalars, table, value_events


def log_run(logdir, *tables, if_exists="resume", **options):
    """One process's worth of logging, under the same key each time."""
    with TensorBoardLogger(logdir, if_exists=if_exists, **options) as logger:
        state = logger.init(jax.random.key(7))
        for logs in tables:
            logger.log(state, logs)


def crash_run(logdir, *tables):
    """The same, ended as a killed process ends: everything is written, and nothing is closed."""
    with TensorBoardLogger(logdir, if_exists="resume") as logger:
        name = "0000000000000007"
        writer = logger.open(Run(name, resume=logger.exists(name)))
        for logs in tables:
            writer.write(logs)


def loss(steps, value):
    return table({"loss": np.full(len(steps), float(value))}, step=np.asarray(steps))


def test_what_is_there_when_a_closed_run_is_resumed_is_not_written_twice(tmp_path):
    log_run(tmp_path, loss(range(10), 1))
    log_run(tmp_path, loss(range(6, 12), 2))
    (folder,) = run_folders(tmp_path)
    assert len(files(folder)) == 2
    assert scalars(folder) == {"loss": [(step, 1) for step in range(10)] + [(10, 2), (11, 2)]}
    assert len(value_events(folder)) == 12


def test_a_new_key_of_a_resumed_run_has_all_its_steps(tmp_path):
    log_run(tmp_path, loss(range(4), 1))
    log_run(tmp_path, table({"loss": np.full(6, 2.0), "new": np.full(6, 2.0)}, step=np.arange(6)))
    (folder,) = run_folders(tmp_path)
    assert scalars(folder)["new"] == [(step, 2) for step in range(6)]
    assert [step for step, _ in scalars(folder)["loss"]] == list(range(6))


def test_after_a_crash_everything_from_the_resumed_step_on_is_purged(tmp_path):
    crash_run(tmp_path, loss(range(10), 1), table({"score": np.ones(2)}, step=[5, 9]))
    log_run(tmp_path, loss(range(6, 12), 2))
    (folder,) = run_folders(tmp_path)
    assert scalars(folder) == {
        "loss": [(step, 1) for step in range(6)] + [(step, 2) for step in range(6, 12)],
        "score": [(5, 1)],
    }


def test_a_run_can_crash_again_and_again(tmp_path):
    for number, start in enumerate([0, 8, 5, 12]):
        crash_run(tmp_path, loss(range(start, start + 10), number))
    (folder,) = run_folders(tmp_path)
    found = scalars(folder)["loss"]
    assert [step for step, _ in found] == list(range(22))
    assert [value for _, value in found] == [0] * 5 + [2] * 7 + [3] * 10


def test_resuming_after_the_last_step_purges_nothing(tmp_path):
    crash_run(tmp_path, loss(range(5), 1))
    log_run(tmp_path, loss(range(5, 8), 2))
    (folder,) = run_folders(tmp_path)
    assert [step for step, _ in scalars(folder)["loss"]] == list(range(8))


def test_steps_before_the_purge_are_not_written_twice(tmp_path):
    crash_run(tmp_path, join(loss(range(10), 1), table({"score": np.ones(3)}, step=[2, 4, 6])))
    # The first delivery resumes at step 5. The second brings steps from before: 4 is there, 3 is not.
    log_run(tmp_path, loss(range(5, 8), 2), table({"score": np.full(3, 2.0)}, step=[3, 4, 6]))
    (folder,) = run_folders(tmp_path)
    assert scalars(folder)["loss"] == [(step, 1) for step in range(5)] + [(5, 2), (6, 2), (7, 2)]
    assert sorted(scalars(folder)["score"]) == [(2, 1), (3, 2), (4, 1), (6, 2)]


@pytest.mark.parametrize("earlier", [log_run, crash_run])
def test_keys_without_steps_go_on_counting(tmp_path, earlier):
    earlier(tmp_path, table({"free": np.arange(3.0)}))
    log_run(tmp_path, table({"free": np.arange(2.0)}), table({"new": np.zeros(1)}))
    (folder,) = run_folders(tmp_path)
    assert scalars(folder) == {"free": [(0, 0), (1, 1), (2, 2), (3, 0), (4, 1)], "new": [(0, 0)]}


@pytest.mark.parametrize("free_first", [True, False])
def test_a_purge_leaves_keys_without_steps_alone(tmp_path, free_first):
    free = table({"free": np.arange(8.0), "w": np.ones((8, 3))})
    crash_run(tmp_path, loss(range(10), 1), free)
    for _ in range(2):
        again = [free, loss(range(4, 10), 2)]
        crash_run(tmp_path, *(again if free_first else reversed(again)))
    (folder,) = run_folders(tmp_path)
    assert sorted(scalars(folder)["free"]) == [(count, count % 8) for count in range(24)]
    assert sorted(event.step for event in read(folder).Histograms("w")) == list(range(24))
    assert [step for step, _ in scalars(folder)["loss"]] == list(range(10))


@pytest.mark.parametrize("scale", [1, 10_000], ids=["smaller", "larger"])
@pytest.mark.parametrize("epochs_first", [True, False])
def test_a_purge_leaves_keys_of_another_axis_alone(tmp_path, epochs_first, scale):
    """Whether its numbers are smaller or larger than the steps."""

    def course(first, last, value):
        epochs = np.arange(first // 10, last // 10 + 1)
        tables = [table({"epoch/loss": np.full(len(epochs), float(value))}, epoch=scale * epochs)]
        tables.append(loss(range(first, last), value))
        return tables if epochs_first else tables[::-1]

    crash_run(tmp_path, *course(0, 35, 1))
    crash_run(tmp_path, *course(30, 45, 2))
    log_run(tmp_path, *course(40, 55, 3))
    (folder,) = run_folders(tmp_path)
    shown = scalars(folder)
    assert shown["loss"] == [(step, 1 + (step >= 30) + (step >= 40)) for step in range(55)]
    assert sorted(step for step, _ in shown["epoch/loss"]) == [scale * epoch for epoch in range(6)]


def test_files_of_another_writer_are_purged_too(tmp_path):
    crash_run(tmp_path, loss(range(3), 1))
    (folder,) = run_folders(tmp_path)
    with SummaryWriter(str(folder), filename_suffix=".123.0") as theirs:
        for step in range(3, 10):
            theirs.add_scalar("loss", 5.0, step)
    log_run(tmp_path, loss(range(8, 12), 2))
    expected = [1.0] * 3 + [5.0] * 5 + [2.0] * 4
    assert sorted(scalars(folder)["loss"]) == list(enumerate(expected))


CRASHING = """
import os, signal, sys
import jax, numpy as np
import lox
from lox.tensorboard import TensorBoardLogger

logdir, start, stop = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
logger = TensorBoardLogger(logdir, if_exists="resume")
state = logger.init(jax.random.key(7))
for step in range(start, stop):
    steps = np.array([step])
    logger.log(state, lox.logdict({"loss": steps * 0.5}, steps={"step": {"loss": steps}}, stacked=["loss"]))
    if (step + 1) % 10 == 0:
        logger.flush()
        print(step, flush=True)
if stop == 1000:
    os.kill(os.getpid(), signal.SIGKILL)
logger.close()
"""


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_after_flush_and_kill_every_acknowledged_record_is_read_back(tmp_path):
    finished = run_script(CRASHING, tmp_path, 0, 1000)
    assert finished.returncode == -9, finished.stderr
    acknowledged = int(finished.stdout.split()[-1])
    assert acknowledged == 999
    (folder,) = run_folders(tmp_path)
    assert scalars(folder)["loss"] == [(step, step * 0.5) for step in range(1000)]


def test_a_killed_run_is_resumed_without_gap_or_double(tmp_path):
    run_script(CRASHING, tmp_path, 0, 1000)
    (folder,) = run_folders(tmp_path)
    (path,) = files(folder)
    with path.open("r+b") as file:  # what a crash of the machine leaves: half a record
        file.truncate(path.stat().st_size - 7)
    finished = run_script(CRASHING, tmp_path, 900, 1100)
    assert finished.returncode == 0, finished.stderr
    assert scalars(folder)["loss"] == [(step, step * 0.5) for step in range(1100)]
    starts = [event.step for event in raw_events(folder) if event.session_log.status == SessionLog.START]
    assert set(starts) == {900}


def test_by_default_a_second_run_of_a_key_gets_a_folder_of_its_own(tmp_path):
    log_run(tmp_path, loss(range(3), 1), if_exists="new")
    log_run(tmp_path, loss(range(3), 2), if_exists="new")
    first, second = run_folders(tmp_path)
    assert scalars(first)["loss"] == [(0, 1), (1, 1), (2, 1)]
    assert scalars(second)["loss"] == [(0, 2), (1, 2), (2, 2)]


def test_replace_starts_anew_and_spares_files_that_are_not_its_own(tmp_path):
    log_run(tmp_path, loss(range(9), 1), if_exists="replace")
    (folder,) = run_folders(tmp_path)
    (folder / "notes.txt").write_text("mine")
    log_run(tmp_path, loss(range(3), 2), if_exists="replace")
    assert scalars(folder) == {"loss": [(0, 2), (1, 2), (2, 2)]}
    assert (folder / "notes.txt").read_text() == "mine"


def test_error_refuses_a_run_that_exists(tmp_path):
    log_run(tmp_path, loss(range(3), 1), if_exists="error")
    with pytest.raises(RunExistsError, match="already exists"):
        log_run(tmp_path, loss(range(3), 2), if_exists="error")


def test_keys_of_another_axis_stay_when_the_resumed_process_never_logs_them(tmp_path):
    """A phase before the training, and a key without steps: the purge must not hide them."""
    warmup = table({"warmup/return": np.arange(50.0)}, frame=np.arange(0, 5000, 100))
    crash_run(tmp_path, warmup, table({"rate": np.ones(3)}), loss(range(100), 1))
    (folder,) = run_folders(tmp_path)
    before = scalars(folder)
    crash_run(tmp_path, loss(range(80, 120), 2))
    log_run(tmp_path, loss(range(110, 130), 3))
    after = scalars(folder)
    for tag in ("warmup/return", "rate"):
        assert sorted(after[tag]) == before[tag]
    assert [step for step, _ in after["loss"]] == list(range(130))


def test_lanes_tell_of_another_axis_too(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(jax.vmap(jax.random.key)(jax.numpy.arange(2)))
        for frame in range(3):
            jax.vmap(lambda s, i=frame: logger.log(s, {"warmup": 1.0 * i}, frame=i))(states)
    for folder in run_folders(tmp_path):
        (told,) = [event.log_message.message for event in raw_events(folder) if event.log_message.message]
        assert json.loads(told) == {"lox_aside": ["warmup"]}
        assert scalars(folder)["warmup"] == [(0, 0), (1, 1), (2, 2)]


def test_a_clock_that_is_set_back_between_two_processes_changes_no_order(tmp_path, monkeypatch):
    log_run(tmp_path, loss(range(5), 1))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    log_run(tmp_path, loss(range(5, 10), 2))
    (folder,) = run_folders(tmp_path)
    assert [step for step, _ in scalars(folder)["loss"]] == list(range(10))
    times = [event.wall_time for event in value_events(folder)]
    assert times == sorted(times)


def test_a_clock_that_is_set_back_during_a_run_changes_no_order(tmp_path, monkeypatch):
    real = time.time
    with TensorBoardLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(7))
        logger.log(state, loss(range(5), 1))
        logger.flush()
        monkeypatch.setattr(time, "time", lambda: real() - 86400)
        logger.log(state, loss(range(5, 10), 2))
    (folder,) = run_folders(tmp_path)
    times = [event.wall_time for event in value_events(folder)]
    assert times == sorted(times)
    assert len(times) == 10
