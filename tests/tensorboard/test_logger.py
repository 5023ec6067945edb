"""The logger as a whole: runs, files, and what goes wrong."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import time

import jax
import numpy as np
import pytest

import lox.loggers
from lox.loggers import LoggerOptionError, RecordError, Run
from lox.tensorboard import TensorBoardLogger
from tests.tensorboard.reading import files, raw_events, run_folders, scalars, table


def records(rows=3, start=0):
    return table({"loss": np.arange(rows) * 0.5}, step=np.arange(start, start + rows))


def test_it_is_found_by_its_name(tmp_path):
    with lox.loggers.create("tensorboard", logdir=tmp_path) as logger:
        assert type(logger) is TensorBoardLogger
        logger.log(logger.init(jax.random.key(0)), records())
    (folder,) = run_folders(tmp_path)
    assert scalars(folder) == {"loss": [(0, 0), (1, 0.5), (2, 1)]}


def test_a_plain_dict_is_one_record(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"loss": 1.5, "w": np.arange(3.0)}, step=7)
    (folder,) = run_folders(tmp_path)
    assert scalars(folder) == {"loss": [(7, 1.5)]}


def test_vmapped_runs_are_folders_of_their_own(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 8))
        jax.vmap(lambda state, x: logger.log(state, {"x": x}, step=3))(states, np.arange(8.0))
    folders = run_folders(tmp_path)
    assert len(folders) == 8
    assert sorted(scalars(folder)["x"][0] for folder in folders) == [(3, float(lane)) for lane in range(8)]


def test_tensorboard_shows_the_names_that_runs_were_given(tmp_path):
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    with TensorBoardLogger(tmp_path, name="lr={rate}/seed={lane}") as logger:
        states = jax.vmap(logger.init)(
            jax.random.split(jax.random.key(0), 2), {"rate": np.array([0.01, 0.1], np.float32)}
        )
        jax.vmap(lambda state, x: logger.log(state, {"x": x}, step=3))(states, np.arange(2.0))
    shown = EventMultiplexer().AddRunsFromDirectory(str(tmp_path)).Reload().Runs()
    assert sorted(shown) == ["lr=0.01/seed=0", "lr=0.1/seed=1"]


def test_more_runs_than_a_process_may_open_files(tmp_path):
    script = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        import numpy as np
        import lox
        from lox.loggers import Run
        from lox.tensorboard import TensorBoardLogger

        logger = TensorBoardLogger(sys.argv[1])
        writers = [logger.open(Run(f"run{i}")) for i in range(1000)]
        steps = np.arange(5)
        for number, writer in enumerate(writers):
            logs = lox.logdict({"x": steps + number}, steps={"step": {"x": steps}}, stacked=["x"])
            writer.write(logs)
        for writer in writers:
            writer.close()
        logger.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, timeout=300)
    folders = run_folders(tmp_path)
    assert len(folders) == 1000
    assert scalars(tmp_path / "run617") == {"x": [(step, 617 + step) for step in range(5)]}


def test_two_loggers_on_one_folder_in_the_same_second_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.25)  # no second passes between the two
    first, second = TensorBoardLogger(tmp_path), TensorBoardLogger(tmp_path)
    run = Run("same", resume=True)
    writers = [first.open(run), second.open(run)]
    for number, writer in enumerate(writers):
        writer.write(table({f"from{number}": np.arange(5.0)}, step=np.arange(5)))
        writer.close()
    first.close()
    second.close()
    assert len(files(tmp_path / "same")) == 2
    expected = [(step, float(step)) for step in range(5)]
    assert scalars(tmp_path / "same") == {"from0": expected, "from1": expected}


def test_two_processes_with_one_key_get_two_folders(tmp_path):
    script = """
        import sys, time
        import jax, numpy as np
        import lox
        from lox.tensorboard import TensorBoardLogger

        logger = TensorBoardLogger(sys.argv[1])
        time.sleep(max(0, float(sys.argv[2]) - time.time()))
        state = logger.init(jax.random.key(0))
        for step in range(100):
            logger.log(state, {"x": float(step)}, step=step)
        logger.close()
    """
    start = str(time.time() + 8)
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), start]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    folders = run_folders(tmp_path)
    assert len(folders) == 3
    for folder in folders:
        assert scalars(folder)["x"] == [(step, float(step)) for step in range(100)]


def test_a_name_that_is_taken_between_looking_and_opening_is_left_alone(tmp_path, monkeypatch):
    for value in (1.0, 2.0):
        with TensorBoardLogger(tmp_path) as logger:
            monkeypatch.setattr(logger, "exists", lambda name: False)  # it was not there when we looked
            logger.log(logger.init(jax.random.key(0)), {"x": value}, step=0)
    assert [scalars(folder)["x"] for folder in run_folders(tmp_path)] == [[(0, 1.0)], [(0, 2.0)]]


def test_files_sort_in_the_order_in_which_they_were_opened(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    paths = []
    for _ in range(5):
        writer = logger.open(Run("run", resume=True))
        paths += [path for path in files(tmp_path / "run") if path not in paths]
        writer.close()
    logger.close()
    assert paths == files(tmp_path / "run")
    assert len(paths) == 5


def test_each_batch_is_there_before_flush(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        writer = logger.open(Run("run"))
        writer.write(records())
        assert len(scalars(tmp_path / "run")["loss"]) == 3
        writer.close()


@pytest.mark.parametrize("method", ["flush", "close"])
def test_flush_and_close_wait_for_the_disk(tmp_path, monkeypatch, method):
    with TensorBoardLogger(tmp_path) as logger:
        writer = logger.open(Run("run"))
        writer.write(records())
        synced = []
        real = os.fsync
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino) or real(file))
        getattr(writer, method)()
    (path,) = files(tmp_path / "run")
    # The folder too, or the name of the new file could be lost.
    assert synced == [path.stat().st_ino, path.parent.stat().st_ino]


def test_a_batch_is_one_write(tmp_path, monkeypatch):
    with TensorBoardLogger(tmp_path) as logger:
        writer = logger.open(Run("run"))
        sizes = []
        real = os.write
        monkeypatch.setattr(os, "write", lambda file, data: sizes.append(len(data)) or real(file, data))
        writer.write(records(10_000))
        assert len(sizes) == 1
        writer.close()


@pytest.mark.parametrize("below", ["", "sub/folder"])
def test_a_path_that_is_a_file_is_an_error_that_names_it(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(LoggerOptionError, match=r"cannot write to path='.*file.*is a file.* Choose a writable folder"):
        TensorBoardLogger(tmp_path / "file" / below)


def test_a_path_that_cannot_be_written_to_is_an_error_that_names_it():
    # /proc takes no folders, not even from root.
    if not os.path.isdir("/proc/self"):
        pytest.skip("there is no /proc here, and root can write everywhere else")
    with pytest.raises(LoggerOptionError, match=r"cannot write to path='/proc/.*/runs'"):
        TensorBoardLogger("/proc/self/runs")


@pytest.mark.parametrize("path", [3, "gs://bucket/runs"])
@pytest.mark.parametrize("name", ["path", "logdir"])
def test_a_path_that_is_not_local_is_an_error(name, path):
    with pytest.raises(LoggerOptionError, match=name):
        TensorBoardLogger(**{name: path})


def test_logdir_is_another_name_of_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for logger in (
        lox.loggers.create("tensorboard", path="runs"),
        lox.loggers.create("tensorboard", logdir="runs"),
        TensorBoardLogger("runs"),
        TensorBoardLogger(),
    ):
        assert logger.path == tmp_path / "runs"
        logger.close()
    with pytest.raises(LoggerOptionError, match="two names for one option"):
        TensorBoardLogger("runs", logdir="other")


def test_a_logger_that_was_not_made_or_not_used_leaves_no_folder(tmp_path):
    with pytest.raises(LoggerOptionError, match="unexpected keyword argument 'colour'"):
        lox.loggers.create("tensorboard", path=tmp_path / "a" / "runs", colour="red")
    TensorBoardLogger(tmp_path / "a" / "runs").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"step_axis": 3},
        {"step_axis": ()},
        {"step_axis": ["a", None]},
        {"sample_rate": 0},
        {"sample_rate": 1.5},
        {"hparams": 3},
    ],
)
def test_wrong_options_are_type_errors_that_name_them(tmp_path, options):
    (name,) = options
    with pytest.raises(TypeError, match=f"TensorBoardLogger: {name}"):
        TensorBoardLogger(tmp_path, **options)


def test_a_run_that_is_deleted_while_open_is_an_error(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    writer = logger.open(Run("run"))
    writer.write(records())
    logger.remove("run")
    with pytest.raises(RecordError, match="was deleted while its run was open"):
        writer.write(records())
    logger.close()


def test_a_full_disk_leaves_whole_records_and_gets_the_rest_later(tmp_path):
    script = """
        import resource, signal, sys
        import numpy as np
        import lox
        from lox.loggers import Run
        from lox.tensorboard import TensorBoardLogger

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        logger = TensorBoardLogger(sys.argv[1])
        writer = logger.open(Run("run"))

        def write(start, stop):
            steps = np.arange(start, stop)
            writer.write(lox.logdict({"x": steps}, steps={"step": {"x": steps}}, stacked=["x"]))

        write(0, 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        try:
            write(100, 10_000)
        except OSError as error:
            print("failed:", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        write(10_000, 10_100)
        writer.close()
        logger.close()
    """
    assert hasattr(resource, "RLIMIT_FSIZE")
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert "failed:" in finished.stdout
    steps = [step for step, _ in scalars(tmp_path / "run")["x"]]
    assert steps == list(range(10_100))


def test_an_error_in_the_background_is_raised_at_the_next_call(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    state = logger.init(jax.random.key(0))
    logger.log(state, table({"loss": np.arange(2.0)}, update=[0, 1], epoch=[0, 0]))
    with pytest.raises(RecordError, match="'loss' has no step axis 'step'"):
        logger.flush()
    logger.log(state, records())
    logger.close()
    (folder,) = run_folders(tmp_path)
    assert len(scalars(folder)["loss"]) == 3


def test_the_first_event_tells_the_version(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        logger.open(Run("run")).close()
    assert raw_events(tmp_path / "run")[0].file_version == "brain.Event:2"
