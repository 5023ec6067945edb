"""Reading saved runs back, and going on with them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import RunFormatError, SaveLogger, load
from tests.loggers.saving import save, table


def seeds(path, lengths=(3, 3)):
    with SaveLogger(path) as logger:
        for seed, length in enumerate(lengths):
            state = logger.init(jax.random.key(seed))
            for i in range(length):
                logger.log(state, {"x": 10.0 * seed + i, "n": {"a": i}}, step=i)


def test_load_of_a_run_a_folder_and_a_stack(tmp_path):
    seeds(tmp_path)
    run = load(tmp_path / "0000000000000001")
    assert isinstance(run, lox.logdict)
    assert run["x"].tolist() == [10.0, 11.0, 12.0]
    assert run.step["x"].tolist() == [0, 1, 2]
    assert run.counts["x"] == 3
    folder = load(str(tmp_path))
    assert list(folder) == ["0000000000000000", "0000000000000001"]
    stacked = load(tmp_path, stack=True)
    assert stacked["x"].tolist() == [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]
    assert stacked["n"]["a"].shape == (2, 3) == stacked.step["x"].shape
    assert stacked.counts["x"].tolist() == [3, 3]
    mean = jax.vmap(lambda logs: logs["x"].mean())(stacked)  # a pytree with a lane axis, as from vmap(spool(f))
    assert mean.tolist() == [1.0, 11.0]


def test_vmapped_runs_are_loaded_in_the_order_of_their_lanes(tmp_path):
    keys = jax.random.split(jax.random.key(0), 6)
    with SaveLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(keys)
        names = [run.name for run in logger.runs]
        jax.vmap(lambda state, lane: logger.log(state, {"lane": lane}))(states, jnp.arange(6))
    assert names != sorted(names)
    assert list(load(tmp_path)) == names
    assert load(tmp_path, stack=True)["lane"].tolist() == [[0], [1], [2], [3], [4], [5]]


def test_runs_keep_their_order_when_they_are_resumed_and_new_ones_come_last(tmp_path, monkeypatch):
    def open_runs(*seeds, process=0, **options):
        monkeypatch.setattr(jax, "process_index", lambda: process)
        with SaveLogger(tmp_path, **options) as logger:
            for seed in seeds:
                logger.log(logger.init(jax.random.key(seed)), {"x": seed})
            return [run.name for run in logger.runs]

    two, one = open_runs(2, 1)
    monkeypatch.setattr(time, "time_ns", lambda: 5)  # a clock that was set back, and stands still: within a process
    three, zero = open_runs(3, 0)  # it does not matter
    assert list(load(tmp_path)) == [two, one, three, zero]
    monkeypatch.undo()
    open_runs(1, 0, if_exists="resume")
    (again,) = open_runs(1)
    assert list(load(tmp_path)) == [two, one, three, zero, again]
    other = open_runs(9, 8, process=1, processes="all")
    (later,) = open_runs(7)
    assert list(load(tmp_path)) == [two, one, three, zero, again, later, *other]


def test_runs_of_a_version_that_did_not_tell_their_order_come_first_by_name(tmp_path):
    with SaveLogger(tmp_path) as logger:
        for seed in (3, 2, 1, 0):
            logger.log(logger.init(jax.random.key(seed)), {"x": seed})
        names = [run.name for run in logger.runs]
    for name in names[1:3]:
        manifest = tmp_path / name / "lox.json"
        lines = manifest.read_text().splitlines()
        manifest.write_text("\n".join(line for line in lines if '"order"' not in line))
    assert list(load(tmp_path)) == [names[2], names[1], names[0], names[3]]


def test_load_says_what_is_wrong(tmp_path):
    with pytest.raises(RunFormatError, match="nothing does not exist. Pass the path of a run"):
        load(tmp_path / "nothing")
    with pytest.raises(RunFormatError, match="there are no runs in .* or below it; installed readers: save"):
        load(tmp_path)
    seeds(tmp_path, lengths=(3, 2))
    with pytest.raises(RunFormatError, match="3 and 2 records of 'x'"):
        load(tmp_path, stack=True)
    manifest = tmp_path / "0000000000000000" / "lox.json"
    text = manifest.read_text()
    for broken, message in (
        (text[: len(text) // 2], "damaged"),
        (text.replace('"format": 1', '"format": 99'), "format 99"),
        (text.replace('"x.npy"', '"../x.npy"'), "not a file in the run's folder"),
    ):
        manifest.write_text(broken)
        with pytest.raises(RunFormatError, match=message):
            load(tmp_path)


def test_large_files_are_mapped_not_read(tmp_path):
    rows = np.random.default_rng(0).normal(size=(3000, 100))
    back = load(save(tmp_path, table({"x": rows})))["x"]
    assert isinstance(back, np.memmap)
    assert np.array_equal(back, rows)


def test_replace_deletes_only_what_is_a_run(tmp_path):
    (tmp_path / "0000000000000000").mkdir()
    (tmp_path / "0000000000000000" / "thesis.txt").write_text("years of work")
    logger = SaveLogger(tmp_path, if_exists="replace")
    with pytest.raises(RunFormatError, match="is not a saved run"):
        logger.init(jax.random.key(0))
    logger.close()
    assert (tmp_path / "0000000000000000" / "thesis.txt").read_text() == "years of work"


def test_two_loggers_on_one_folder_do_not_share_a_run(tmp_path, monkeypatch):
    """Also when both look at the same time: who makes the folder has it."""
    monkeypatch.setattr(SaveLogger, "exists", lambda self, name: False)
    with SaveLogger(tmp_path) as one, SaveLogger(tmp_path) as other:
        one.init(jax.random.key(0))
        other.init(jax.random.key(0))
        assert [one.runs[0].name, other.runs[0].name] == ["0000000000000000", "0000000000000000-2"]


def test_resume_knows_steps_by_value_and_along_all_axes(tmp_path):
    def log(logger, pairs):
        state = logger.init(jax.random.key(0))
        for epoch, step in pairs:
            logger.log(state, {"x": 10 * epoch + step}, epoch=epoch, step=step)

    with SaveLogger(tmp_path) as logger:
        log(logger, [(0, 0), (0, 1), (1, 0)])
    with SaveLogger(tmp_path, if_exists="resume") as logger:
        log(logger, [(0, jnp.int32(1)), (np.float32(1.0), 0), (1, 1), (1, 1)])
    (logs,) = load(tmp_path).values()
    assert logs["x"].tolist() == [0, 1, 10, 11, 11]  # what was new is written as often as it was logged


def test_resume_without_steps_appends(tmp_path):
    for _ in range(2):
        with SaveLogger(tmp_path, if_exists="resume") as logger:
            logger.log(logger.init(jax.random.key(0)), {"x": 1})
    (logs,) = load(tmp_path).values()
    assert logs["x"].tolist() == [1, 1]
