"""Online runs, against a server in this process."""

from __future__ import annotations

import contextlib
import threading
import time

import jax
import jax.numpy as jnp
import pytest

from lox.loggers import LoggerWarning, RunExistsError
from lox.wandb import WandbError, WandbLogger
from tests.wandb.offline import file_of, rows
from tests.wandb.server import WandbServer

KEY = jax.random.key(3)


@pytest.fixture
def server():
    server = WandbServer()
    yield server
    server.close()


@pytest.fixture
def online(server, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    made = []

    def make(**options):
        settings = {"base_url": server.url, "init_timeout": 20, "x_file_stream_transmit_interval": 0.1}
        logger = WandbLogger(**{"project": "online", "path": tmp_path, "settings": settings, **options})
        made.append(logger)
        return logger

    yield make
    server.reachable = True
    for logger in made:
        logger.close()


def arrived(server, run_id):
    return [{name: value for name, value in row.items() if name[0] != "_"} for row in server.rows[run_id]]


def test_rows_and_configs_of_vmapped_runs_arrive(online, server):
    logger = online(config={"model": "mlp"})
    assert logger.mode == "online"
    state = jax.vmap(logger.init)(jax.random.split(KEY, 3), {"rate": jnp.array([0.1, 0.2, 0.3])})
    for step in (2, 0, 1):
        jax.vmap(lambda state, x, step=step: logger.log(state, {"x": x}, step=step))(state, jnp.arange(3) * 10 + step)
    ids = [run.id for run in logger.runs]
    logger.close()
    for lane, run_id in enumerate(ids):
        assert arrived(server, run_id) == [{"step": step, "x": lane * 10 + step} for step in (2, 0, 1)]
        assert server.configs[run_id]["model"] == "mlp"
        assert server.configs[run_id]["rate"] == [0.1, 0.2, 0.3][lane]


def test_a_run_that_only_the_server_has_is_left_alone(online, server, tmp_path):
    first = online(path=tmp_path / "one")
    first.log(first.init(KEY), {"x": 1})
    first.close()
    second = online(path=tmp_path / "another machine")
    second.log(second.init(KEY), {"x": 2})
    (run,) = second.runs
    second.close()
    assert run.id == "0000000000000003-2"
    assert (arrived(server, "0000000000000003"), arrived(server, run.id)) == ([{"x": 1}], [{"x": 2}])


def test_if_exists_error_counts_runs_that_only_the_server_has(online, server, tmp_path):
    server.configs["0000000000000009"] = {}
    server.rows["0000000000000009"] = []
    with pytest.raises(RunExistsError, match="the server already has a run '0000000000000009'"):
        online(if_exists="error").init(jax.random.key(9))


def test_resume_goes_on_with_the_run_of_the_server(online, server):
    for begin, end in ((0, 5), (3, 8)):
        logger = online(if_exists="resume")
        state = logger.init(jax.random.key(4))
        for step in range(begin, end):
            logger.log(state, {"x": step}, step=step)
        logger.close()
    assert arrived(server, "0000000000000004") == [{"step": step, "x": step} for step in range(8)]


def test_resume_on_another_machine_asks_the_server_what_is_there(online, server, tmp_path):
    for begin, end in ((0, 5), (3, 8)):
        logger = online(if_exists="resume", path=tmp_path / f"machine {begin}")
        state = logger.init(jax.random.key(5))
        for step in range(begin, end):
            logger.log(state, {"x": step}, step=step)
        logger.close()
    assert arrived(server, "0000000000000005") == [{"step": step, "x": step} for step in range(8)]


def test_if_the_server_does_not_tell_what_is_there_a_warning_does(online, server, tmp_path):
    for begin in (0, 1):
        logger = online(if_exists="resume", path=tmp_path / f"machine {begin}")
        server.silent_about.add("Viewer" if begin else "nothing")
        with pytest.warns(LoggerWarning, match="some may be written twice") if begin else contextlib.nullcontext():
            state = logger.init(jax.random.key(6))
        logger.log(state, {"x": 1}, step=1)
        logger.close()
    assert arrived(server, "0000000000000006") == [{"step": 1, "x": 1}] * 2


def test_a_network_that_goes_away_stops_nothing(online, server):
    logger = online()
    state = logger.init(KEY)
    (run,) = logger.runs
    server.reachable = False
    done = threading.Event()

    def train():
        for step in range(2000):
            logger.log(state, {"x": step}, step=step)
        logger.flush()  # to the disk, not to the server
        done.set()

    threading.Thread(target=train, daemon=True).start()
    assert done.wait(120)
    assert len(rows(file_of(run))) == 2000
    assert not server.rows[run.id]
    server.reachable = True
    logger.close()
    deadline = time.monotonic() + 60
    while len(server.rows[run.id]) < 2000 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert arrived(server, run.id) == [{"step": step, "x": step} for step in range(2000)]


def test_an_upload_that_does_not_end_is_told_and_how_to_do_it_later(online, server, caplog):
    """What wandb reports meanwhile is told once, not once for each attempt and each run."""
    logger = online(close_timeout=2.0)
    states = jax.vmap(logger.init)(jax.random.split(KEY, 2))
    log = jax.vmap(lambda state, i: logger.log(state, {"x": i * 1.0}, step=i), in_axes=(0, None))
    log(states, 0)
    logger.flush()
    files = [file_of(run) for run in logger.runs]
    server.reachable = False
    for step in range(1, 6):
        log(states, step)
    with pytest.raises(WandbError, match=r"did not end within 2 seconds .* All of its 6 rows .*`wandb sync ") as caught:
        logger.close()
    assert "1 more failure" in "".join(caught.value.__notes__)
    assert "lost" not in "".join(caught.value.__notes__)
    assert [len(list(rows(file))) for file in files] == [6, 6]
    told = [record.getMessage() for record in caplog.records if record.name == "lox.wandb"]
    reports = [message for message in told if "wandb reports about the run" in message]
    assert len(reports) == len(set(reports)) >= 1
    assert any("error" in message or "EOF" in message for message in reports)


def test_close_can_be_told_how_long_to_wait_for_the_upload(online, server):
    logger = online()
    state = logger.init(KEY)
    logger.flush()
    (run,) = logger.runs
    file = file_of(run)
    server.reachable = False
    for step in range(6):
        logger.log(state, {"x": step}, step=step)
    with pytest.raises(WandbError, match=r"did not end within 1 seconds .* All of its 6 rows .*`wandb sync "):
        logger.close(timeout=1.0)
    assert len(list(rows(file))) == 6
    server.reachable = True
