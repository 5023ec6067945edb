"""What is wrong is said when the logger is made, before any run opens."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import jax
import pytest
import wandb

import lox
import lox.loggers
from lox.loggers import LoggerOptionError
from lox.loggers.kinds import KindError
from lox.wandb import WandbError, WandbLogger, WandbLoginError, WandbOptionError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projct": "p"}, "neither WandbLogger nor wandb.init takes 'projct'. Did you mean 'project'?"),
        ({"if_exist": "new"}, "takes 'if_exist'. Did you mean 'if_exists'?"),
        ({"step": 3}, "takes 'step'"),
        ({"id": "x"}, "id='x' cannot be given: lox gives each run its own id"),
        ({"resume": "must"}, 'pass if_exists="resume"'),
        ({"reinit": True}, "all runs of a logger are open at the same time"),
        ({"project": "a/b"}, "wandb refuses project='a/b': Invalid project name"),
        ({"project": 3}, "wandb refuses project=3: project: Input should be a valid string"),
        ({"tags": 3}, "wandb refuses tags=3"),
        ({"settings": {"no_such": 1}}, "wandb refuses settings: no_such"),
        ({"settings": 3}, "settings must be a dict or wandb.Settings; got int"),
        ({"mode": "onlin"}, "mode='onlin'; it must be one of 'online', 'offline', 'disabled'"),
        ({"mode": "shared"}, "mode='shared'; it must be one of"),
        ({"summary": {"loss": "median"}}, "'median' is not one of 'min', 'max'"),
        ({"summary": {"loss": 3}}, "3 is not one of 'min', 'max'"),
        ({"fps": 0}, "fps must be a whole number"),
        ({"sample_rate": 0.5}, "sample_rate must be a whole number"),
        ({"dir": "elsewhere"}, "two names for one option"),
    ],
)
def test_wrong_options(tmp_path, options, message):
    with pytest.raises(WandbOptionError) as caught:
        WandbLogger(**{"project": "p", "mode": "offline", "path": tmp_path, **options})
    assert message in str(caught.value)
    assert isinstance(caught.value, lox.LoxError)
    assert isinstance(caught.value, TypeError)
    assert not list(tmp_path.iterdir())


def test_options_of_the_base_and_kinds_are_checked_too(tmp_path):
    with pytest.raises(LoggerOptionError, match="if_exists='maybe'"):
        WandbLogger(mode="offline", path=tmp_path, if_exists="maybe")
    with pytest.raises(KindError, match="Did you mean 'image'"):
        WandbLogger(mode="offline", path=tmp_path, kinds={"*": "imge"})


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WandbOptionError, match="is a file. Choose a writable folder"):
        WandbLogger(mode="offline", path=tmp_path / "file" / "runs")


def test_found_by_the_registry(tmp_path):
    assert "wandb" in lox.loggers.available()
    logger = lox.loggers.create("wandb", project="p", mode="offline", path=tmp_path)
    assert isinstance(logger, WandbLogger)
    logger.close()


def test_mode_of_the_environment_counts_whenever_it_is_set(monkeypatch, tmp_path):
    for given, mode in (("disabled", "disabled"), ("offline", "offline"), ("dryrun", "offline")):
        monkeypatch.setenv("WANDB_MODE", given)
        logger = WandbLogger(project="p", path=tmp_path)
        logger.init(jax.random.key(0))
        assert logger.mode == mode
        assert logger.runs[0].disabled is (mode == "disabled")
        assert logger.runs[0].offline is (mode == "offline")
        logger.close()
    monkeypatch.setenv("WANDB_MODE", "of")
    with pytest.raises(WandbOptionError, match="mode='of'"):
        WandbLogger(project="p")


def test_what_is_given_wins_over_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert WandbLogger(mode="offline", path=tmp_path).mode == "offline"
    assert WandbLogger(settings={"mode": "offline"}, path=tmp_path).mode == "offline"


def test_folder_group_and_project_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_RUN_GROUP", "mine")
    monkeypatch.setenv("WANDB_PROJECT", "elsewhere")
    for _ in range(2):
        logger = WandbLogger(mode="offline", if_exists="resume")
        logger.init(jax.random.key(0))
        run = logger.runs[0]
        assert (run.group, run.project, run.id) == ("mine", "elsewhere", "mine-0000000000000000")
        assert run.settings.sync_file.startswith(str(tmp_path))
        logger.close()


@pytest.mark.parametrize("given", ["environment", "settings", "netrc"])
def test_a_key_is_found_wherever_wandb_finds_it(monkeypatch, tmp_path, given):
    options = {}
    if given == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    elif given == "settings":
        options["settings"] = {"api_key": "k" * 40}
    else:
        (tmp_path / "netrc").write_text(f"machine wandb.example.com login user password {'k' * 40}\n")
        options["settings"] = {"base_url": "https://wandb.example.com"}
    assert WandbLogger(project="p", path=tmp_path, **options).mode == "online"


def test_online_without_a_key_says_how_to_log_in_or_go_offline(tmp_path):
    """On a terminal wandb asks for a key, and waits. The logger fails instead."""
    code = "from lox.wandb import WandbLogger; WandbLogger(project='p')"
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")},
        )
        _, errors = process.communicate(timeout=120)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 1
    assert b"WandbLoginError" in errors
    for way in (b"wandb login", b"WANDB_API_KEY", b'mode="offline"', b"WANDB_MODE=offline"):
        assert way in errors


def test_a_server_that_cannot_be_reached_is_tried_once_for_all_lanes(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    settings = {"base_url": "http://127.0.0.1:9", "init_timeout": 2}
    logger = WandbLogger(project="p", path=tmp_path, settings=settings)
    attempts = []
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: attempts.append(options["id"]) or init(**options))
    with pytest.raises(WandbError, match='(?s)cannot reach its server.*mode="offline"') as caught:
        jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 16))
    assert not isinstance(caught.value, WandbLoginError)
    assert len(attempts) == 1
    logger.close()


def test_a_time_axis_does_not_go_with_resume():
    with pytest.raises(WandbOptionError, match="time=True does not work with"):
        WandbLogger(mode="offline", time=True, if_exists="resume")
