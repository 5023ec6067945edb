"""Runs: how they are named and grouped, what they leave alone, and what happens to one that exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import wandb

from lox.loggers import Config, LoggerClosedError, LoggerOptionError, LoggerStateError, RunExistsError
from lox.wandb import WandbFinishedError
from tests.wandb.offline import all_rows, config, file_of, records, rows, summary, wait_until_whole

KEY = jax.random.key(7)
REPOSITORY = Path(__file__).parents[2]


def test_runs_are_named_after_their_keys_and_share_a_group(make):
    logger = make(tags=["seeds"], job_type="train", notes="why not")
    keys = jax.random.split(KEY, 3)
    state = jax.vmap(logger.init)(keys)
    assert state.run.shape == (3,)
    names = ["".join(f"{word:08x}" for word in row) for row in np.asarray(jax.random.key_data(keys))]
    assert [run.name for run in logger.runs] == [run.id for run in logger.runs] == names
    assert len({run.group for run in logger.runs}) == 1
    assert all(run.group and run.tags == ("seeds",) and run.job_type == "train" for run in logger.runs)
    paths = [file_of(run) for run in logger.runs]
    logger.close()
    assert logger.runs == ()
    assert {record.run_group for path in paths for record in records(path, "run")} == {
        records(paths[0], "run")[0].run_group
    }


def test_a_group_goes_into_the_id(make):
    logger = make(group="a/b")
    logger.init(KEY)
    (run,) = logger.runs
    assert (run.name, run.group) == ("0000000000000007", "a/b")
    assert run.id.startswith("a_b-")
    assert run.id.endswith("-0000000000000007")


def test_names_and_groups_are_filled_in_for_each_run(make):
    logger = make(name="lr={rate}/seed={lane}", group="lr={rate}")
    rates = jnp.array([0.1, 0.1, 0.5])
    jax.vmap(logger.init)(jax.random.split(KEY, 3), Config(rate=rates, env="CartPole"))
    runs = logger.runs
    assert [run.name for run in runs] == ["lr=0.1/seed=0", "lr=0.1/seed=1", "lr=0.5/seed=2"]
    assert [run.group for run in runs] == ["lr=0.1", "lr=0.1", "lr=0.5"]
    assert len({run.id for run in runs}) == 3
    assert not any(set("/=") & set(run.id) for run in runs)
    paths = [file_of(run) for run in runs]
    logger.close()
    stored = [(records(path, "run")[0], config(path)) for path in paths]
    assert [(run.display_name, run.run_group, told) for run, told in stored] == [
        ("lr=0.1/seed=0", "lr=0.1", {"rate": 0.1, "env": "CartPole"}),
        ("lr=0.1/seed=1", "lr=0.1", {"rate": 0.1, "env": "CartPole"}),
        ("lr=0.5/seed=2", "lr=0.5", {"rate": 0.5, "env": "CartPole"}),
    ]


def test_a_group_with_an_unknown_field_is_told_before_a_run_opens(make):
    logger = make(group="lr={rat}")
    with pytest.raises(LoggerOptionError, match=r"WandbLogger: group='lr=\{rat\}' has the field 'rat'.*'rate'"):
        logger.init(KEY, {"rate": 0.1})
    assert logger.runs == ()


def test_the_run_of_the_user_is_left_alone(make, tmp_path):
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    own = wandb.init(project="own", mode="offline", dir=tmp_path, settings=settings)
    try:
        logger = make()
        state = jax.vmap(logger.init)(jax.random.split(KEY, 2))
        assert wandb.run is own
        jax.vmap(lambda state, x: logger.log(state, {"theirs": x}))(state, jnp.arange(2))
        own.log({"mine": 1})
        logger.close()
        own.log({"mine": 2})
        assert wandb.run is own
    finally:
        own.finish()
    assert rows(wait_until_whole(file_of(own))) == [{"mine": 1}, {"mine": 2}]


def test_two_loggers_in_one_process(make):
    first, second = make(), make(project="other")
    one, two = first.init(KEY), second.init(KEY)
    first.log(one, {"a": 1})
    second.log(two, {"a": 2})
    paths = [file_of(logger.runs[0]) for logger in (first, second)]
    first.close()
    second.close()
    assert [rows(path) for path in paths] == [[{"a": 1}], [{"a": 2}]]


def test_two_open_loggers_with_one_key_in_different_folders(make, tmp_path):
    first, second = make(path=tmp_path / "one"), make(path=tmp_path / "two")
    for value, logger in enumerate((first, second)):
        logger.log(logger.init(KEY), {"a": value})
    runs = [logger.runs[0] for logger in (first, second)]
    assert [run.id for run in runs] == ["0000000000000007", "0000000000000007-2"]  # wandb has one run of an id open
    first.close()
    second.close()
    assert [rows(file_of(run)) for run in runs] == [[{"a": 0}], [{"a": 1}]]


def test_a_run_that_another_logger_has_open_cannot_be_resumed(make):
    first = make(if_exists="resume")
    first.init(KEY)
    with pytest.raises(RunExistsError, match="another logger of this process has the run"):
        make(if_exists="resume").init(KEY)


def test_config_of_the_logger_and_of_each_lane(make):
    logger = make(config={"model": "mlp", "lr": 1.0})
    rates = jnp.array([0.1, 0.01, 0.001])
    state = jax.vmap(logger.init)(jax.random.split(KEY, 3), {"lr": rates, "sizes": jnp.arange(6).reshape(3, 2)})
    jax.jit(lambda key: logger.init(key, {"opt": {"name": "adam", "b1": 0.9}, "steps": 10}))(jax.random.key(1))
    paths = [file_of(run) for run in logger.runs]
    assert logger.runs[1].config["lr"] == 0.01
    assert len(set(state.run.tolist())) == 3
    logger.close()
    assert [config(path) for path in paths] == [
        {"model": "mlp", "lr": 0.1, "sizes": [0, 1]},
        {"model": "mlp", "lr": 0.01, "sizes": [2, 3]},
        {"model": "mlp", "lr": 0.001, "sizes": [4, 5]},
        {"model": "mlp", "lr": 1.0, "opt": {"name": "adam", "b1": 0.9}, "steps": 10},
    ]


def test_lanes_that_share_a_key_keep_their_own_config(make):
    logger = make()
    states = jax.vmap(logger.init, (None, 0))(KEY, {"rate": jnp.array([0.1, 0.2])})
    jax.vmap(lambda state, x: logger.log(state, {"x": x}))(states, jnp.array([1, 2]))
    raw = logger.init(jax.random.PRNGKey(7), {"rate": 0.3})
    logger.log(raw, {"x": 3})
    runs = logger.runs
    logger.close()
    assert [(config(file_of(run))["rate"], rows(file_of(run))) for run in runs] == [
        (0.1, [{"x": 1}]),
        (0.2, [{"x": 2}]),
        (0.3, [{"x": 3}]),
    ]


def test_a_wrong_key_is_told_also_with_a_config(make):
    logger = make()
    for wrong in (3, jax.random.split(KEY, 2), jnp.zeros(2)):
        with pytest.raises(LoggerStateError, match="init takes"):
            logger.init(wrong, {"rate": 0.1})


def test_config_that_is_no_mapping_is_refused_before_a_run_opens(make):
    logger = make()
    with pytest.raises(LoggerOptionError, match="WandbLogger: config must map names to values; got list"):
        logger.init(KEY, [1, 2])
    assert logger.runs == ()


def test_values_of_the_kind_hparams_go_to_the_config(make):
    logger = make(kinds={"lr": "hparams"})
    state = logger.init(KEY)
    logger.log(state, {"lr": jnp.float32(0.1), "loss": 1.0}, step=0)
    (run,) = logger.runs
    logger.close()
    assert config(file_of(run)) == {"lr": 0.1}
    assert rows(file_of(run)) == [{"step": 0, "loss": 1}]


def test_summary_by_pattern(make):
    logger = make(summary={"loss": "min", "eval/*": ("max", "mean"), "noise": "none"})
    state = logger.init(KEY)
    for step, value in enumerate([3.0, 1.0, 2.0]):
        logger.log(state, {"loss": value, "eval/acc": value, "other": value, "noise": value}, step=step)
    (run,) = logger.runs
    logger.close()
    kept = summary(file_of(run))
    assert kept["loss"] == {"min": 1}
    assert kept["eval/acc"] == {"max": 3, "mean": 2}
    assert kept["other"] == 2
    assert "noise" not in kept


def test_a_second_script_leaves_the_runs_of_the_first_alone(make):
    paths = []
    for value in (1, 2, 3):
        logger = make()
        logger.log(logger.init(KEY), {"a": value})
        (run,) = logger.runs
        paths.append((run.id, file_of(run)))
        logger.close()
    assert [run_id for run_id, _ in paths] == ["0000000000000007", "0000000000000007-2", "0000000000000007-3"]
    assert [rows(path) for _, path in paths] == [[{"a": 1}], [{"a": 2}], [{"a": 3}]]


def test_runs_of_another_project_do_not_count(make):
    for project in ("one", "two"):
        logger = make(project=project, if_exists="error")
        logger.init(KEY)
        assert logger.runs[0].id == "0000000000000007"
        logger.close()


def test_if_exists_error_names_the_run(make):
    logger = make(if_exists="error")
    logger.init(KEY)
    logger.close()
    with pytest.raises(RunExistsError, match="run '0000000000000007' already exists"):
        make(if_exists="error").init(KEY)


def test_if_exists_replace_starts_anew(make, tmp_path):
    for value in (1, 2):
        logger = make(if_exists="replace")
        logger.log(logger.init(KEY), {"a": value})
        logger.close()
    assert all_rows(tmp_path, "0000000000000007") == [{"a": 2}]


def test_resume_continues_the_run_without_doubled_rows(make, tmp_path):
    def train(begin, end, **options):
        logger = make(if_exists="resume", **options)
        keys = jax.random.split(KEY, 2)
        state = jax.vmap(logger.init)(keys)

        def log(state, x, step):
            logger.log(state, {"loss": x, "n": {"a": x}}, step=step, epoch=step // 5)
            logger.log(state, {"return": 1}, episode=step)

        for step in range(begin, end):
            jax.vmap(log, (0, 0, None))(state, jnp.arange(2) + step * 10, step)
        runs = [(run.id, run.group) for run in logger.runs]
        logger.close()
        return runs

    first, second = train(0, 12), train(8, 20)
    assert first == second
    for number, (run_id, _) in enumerate(first):
        found = all_rows(tmp_path, run_id)
        assert [row for row in found if "loss" in row] == [
            {"step": i, "epoch": i // 5, "loss": number + i * 10, "n/a": number + i * 10} for i in range(20)
        ]
        assert [row["episode"] for row in found if "return" in row] == list(range(20))


def test_a_resumed_run_numbers_its_rows_after_the_earlier_ones(make, tmp_path):
    for begin in (0, 3):
        logger = make(if_exists="resume")
        state = logger.init(KEY)
        for step in range(begin, begin + 3):
            logger.log(state, {"a": step}, step=step)
        path = file_of(logger.runs[0])
        logger.close()
    assert [history.step.num for history in records(path, "history")] == [3, 4, 5]
    assert records(path, "run")[0].resumed or records(path, "run")[0].run_id == "0000000000000007"


def test_resume_fills_in_what_the_earlier_run_lacks(make, tmp_path):
    logger = make(if_exists="resume")
    state = logger.init(KEY)
    logger.log(state, {"a": 1}, step=0)
    logger.close()
    logger = make(if_exists="resume")
    state = logger.init(KEY)
    logger.log(state, {"a": 1, "b": 2}, step=0)
    logger.log(state, {"a": 5}, step=1)
    logger.log(state, {"a": 6}, step=1)  # a step that repeats is no doubled row
    logger.close()
    assert all_rows(tmp_path, "0000000000000007") == [
        {"a": 1, "step": 0},
        {"b": 2, "step": 0},
        {"a": 5, "step": 1},
        {"a": 6, "step": 1},
    ]


def test_runs_of_another_group_are_not_resumed(make):
    ids = []
    for group in ("one", "two"):
        logger = make(if_exists="resume", group=group)
        logger.init(KEY)
        ids.append(logger.runs[0].id)
        logger.close()
    assert ids == ["one-0000000000000007", "two-0000000000000007"]


def test_logging_to_a_run_that_the_user_finished(make):
    logger = make()
    state = logger.init(KEY)
    logger.runs[0].finish()
    logger.log(state, {"a": 1})
    with pytest.raises(WandbFinishedError, match="'0000000000000007' is finished"):
        logger.flush()


def test_logging_to_a_closed_logger(make):
    logger = make()
    state = logger.init(KEY)
    logger.close()
    with pytest.raises(LoggerClosedError):
        logger.log(state, {"a": 1})


def test_runs_are_light_unless_asked_for_more(make, monkeypatch):
    logger = make()
    logger.init(KEY)
    light = logger.runs[0].settings
    assert (light.console, light.x_disable_stats, light.disable_git, light.silent) == ("off", True, True, True)
    monkeypatch.setenv("WANDB_SILENT", "false")
    logger = make(settings={"x_disable_stats": False})
    logger.init(KEY)
    asked = logger.runs[0].settings
    assert asked.x_disable_stats is False
    assert asked.silent is False
    assert asked.disable_git is True


def test_disabled_runs_write_nothing(make, tmp_path):
    logger = make(mode="disabled")
    state = jax.vmap(logger.init)(jax.random.split(KEY, 2), {"lr": jnp.arange(2.0)})
    jax.vmap(lambda state: logger.log(state, {"a": 1}, step=1))(state)
    assert all(run.disabled for run in logger.runs)
    logger.flush()
    logger.close()
    assert not (tmp_path / "wandb").exists()


def test_another_process_sees_the_rows_after_flush(make):
    logger = make()
    state = logger.init(KEY)
    for step in range(300):
        logger.log(state, {"a": step}, step=step)
    logger.flush()
    code = "import sys, pathlib; from tests.wandb.offline import rows; print(len(rows(pathlib.Path(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(file_of(logger.runs[0]))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.stdout.strip() == "300"
