"""Reading run files: against wandb's own reader, and whatever state they were left in."""

from __future__ import annotations

import jax
import numpy as np

import lox
from lox.wandb._runfile import RunReader, find_run_files, read_rows
from tests.wandb.offline import file_of, records, rows, rows_by_wandb

KEY = jax.random.key(0)


def write(make, count, text=0):
    logger = make(kinds={"text": "text"})
    state = logger.init(KEY)
    steps = np.random.default_rng(1).permutation(count)
    values = {"a": steps / 7, "b": steps}
    logger.log(state, lox.logdict(values, steps={"step": dict.fromkeys(values, steps)}, stacked=values))
    if text:  # longer than a block of the file
        logger.log(state, {"text": np.frombuffer(b"x" * text, np.uint8)}, step=-1)
    path = file_of(logger.runs[0])
    logger.close()
    return path


def test_wandbs_own_reader_finds_the_same_rows(make):
    path = write(make, 1000)
    found = rows(path)
    assert len(found) == 1000
    assert found == rows_by_wandb(path)


def test_records_longer_than_a_block(make):
    path = write(make, 5, text=100_000)
    assert rows(path)[-1] == {"step": -1, "text": "x" * 100_000}


def test_a_file_cut_off_anywhere_gives_what_is_whole(make, tmp_path):
    path = write(make, 20, text=40_000)
    data = path.read_bytes()
    whole = list(read_rows(path))
    cut = tmp_path / "cut.wandb"
    counts = []
    for length in [*range(0, len(data), 997), len(data)]:
        cut.write_bytes(data[:length])
        found = list(read_rows(cut))
        assert found == whole[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert counts[-1] == 21


def test_a_reader_goes_on_where_it_stopped(make, tmp_path):
    data = write(make, 50, text=70_000).read_bytes()
    growing = tmp_path / "growing.wandb"
    reader = RunReader(growing)
    assert reader.read_on() == 0  # not even there
    found = 0
    for length in [*range(0, len(data), 1231), len(data)]:
        growing.write_bytes(data[:length])
        found += reader.read_on()
    assert found == 51
    assert reader.read_on() == 0


def test_only_folders_of_runs_are_looked_at(make, tmp_path):
    path = write(make, 3)
    run_id = path.stem.removeprefix("run-")
    (path.parent.parent / "run-notes").write_text("")
    assert find_run_files(path.parent.parent, run_id) == [path]  # latest-run, a link to the same, is left out
    assert find_run_files(tmp_path / "nowhere", run_id) == []
    assert records(path, "run")[0].run_id == run_id
