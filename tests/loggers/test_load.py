"""Reading saved runs back, and going on with them."""

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


def test_load_says_what_is_wrong(tmp_path):
    with pytest.raises(RunFormatError, match="is not a folder"):
        load(tmp_path / "nothing")
    with pytest.raises(RunFormatError, match="holds no saved runs"):
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
