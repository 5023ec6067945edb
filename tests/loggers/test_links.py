"""Folders into which somebody else put links or files: nothing outside of a run is touched, and nothing that is not lox's."""

import os

import jax
import numpy as np
import pytest

import lox.loggers
from tests.faults.plain import BACKENDS, make, place_of

NAME = "0000000000000000"
PRECIOUS = "precious"


def log(backend, path, *records, **options):
    with make(backend, path, **options) as logger:
        state = logger.init(jax.random.key(0))
        for step, record in enumerate(records):
            logger.log(state, record, step=step)


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim"
    file.write_text(PRECIOUS)
    return file


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("if_exists", ["resume", "replace"])
def test_a_run_that_is_a_link_is_not_written_to(tmp_path, backend, if_exists):
    log(backend, tmp_path / "outside", {"x": 1.0})
    outside = place_of(backend, tmp_path / "outside", NAME)
    before = content(outside)
    (tmp_path / "runs").mkdir()
    place_of(backend, tmp_path / "runs", NAME).symlink_to(outside)
    with pytest.raises(lox.loggers.RunFormatError, match="is a link"):
        log(backend, tmp_path / "runs", {"x": 2.0}, {"x": 3.0}, if_exists=if_exists)
    assert content(outside) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_link_that_leads_nowhere_is_a_name_that_is_taken(tmp_path, backend):
    (tmp_path / "runs").mkdir()
    place_of(backend, tmp_path / "runs", NAME).symlink_to(tmp_path / "not there")
    log(backend, tmp_path / "runs", {"x": 2.0})
    assert place_of(backend, tmp_path / "runs", f"{NAME}-2").exists()
    assert not (tmp_path / "not there").exists()


def content(place):
    if place.is_dir():
        return {file.name: file.read_bytes() for file in place.iterdir()}
    return place.read_bytes()


@pytest.mark.parametrize("name", [".lox.json.tmp", ".y.npy.tmp", "y.npy"])
def test_links_in_a_saved_run_are_not_written_through(tmp_path, victim, name):
    log("save", tmp_path, {"x": 1.0})
    (tmp_path / NAME / name).symlink_to(victim)
    log("save", tmp_path, {"x": 1.0}, {"y": 2.0}, if_exists="resume")
    assert victim.read_text() == PRECIOUS
    assert lox.loggers.load(tmp_path / NAME)["y"].tolist() == [2.0]
    assert not (tmp_path / NAME / "lox.json").is_symlink()


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
def test_links_beside_a_text_file_are_not_written_through(tmp_path, victim, backend):
    for name in (f".{NAME}.{backend}.tmp", f"{NAME}.{backend}.json"):
        (tmp_path / name).symlink_to(victim)
    log(backend, tmp_path, {"x": 1.0}, {"late": 2.0})
    assert victim.read_text() == PRECIOUS


def test_a_column_that_leads_out_of_the_folder_is_neither_read_nor_written(tmp_path):
    log("save", tmp_path, {"x": 1.0})
    secret = tmp_path / "secret.npy"
    np.save(secret, np.arange(5.0))
    before = secret.read_bytes()
    (tmp_path / NAME / "x.npy").unlink()
    (tmp_path / NAME / "x.npy").symlink_to(secret)
    with pytest.raises(lox.loggers.RunFormatError, match=r"x\.npy is a link that leads out"):
        lox.loggers.load(tmp_path / NAME)
    with pytest.raises(lox.loggers.RunFormatError, match=r"x\.npy is a link"):
        log("save", tmp_path, {"x": 1.0}, {"x": 2.0}, if_exists="resume")
    assert secret.read_bytes() == before


def test_a_link_within_the_folder_can_be_read_but_not_written(tmp_path):
    log("save", tmp_path, {"x": 1.0})
    os.rename(tmp_path / NAME / "x.npy", tmp_path / NAME / "moved.npy")
    (tmp_path / NAME / "x.npy").symlink_to("moved.npy")
    assert lox.loggers.load(tmp_path / NAME)["x"].tolist() == [1.0]
    with pytest.raises(lox.loggers.RunFormatError, match="does not write through links"):
        log("save", tmp_path, {"x": 1.0}, {"x": 2.0}, if_exists="resume")


def test_a_manifest_that_leads_out_of_the_folder_is_not_read(tmp_path):
    log("save", tmp_path, {"x": 1.0})
    os.rename(tmp_path / NAME / "lox.json", tmp_path / "lox.json")
    (tmp_path / NAME / "lox.json").symlink_to("../lox.json")
    with pytest.raises(lox.loggers.RunFormatError, match="leads out"):
        lox.loggers.load(tmp_path / NAME)


@pytest.mark.parametrize("backend", ["save", BACKENDS[3]])
def test_replace_removes_what_lox_wrote_and_nothing_else(tmp_path, backend):
    log(backend, tmp_path / "runs", {"x": 1.0}, {"old": 2.0})
    run = tmp_path / "runs" / NAME
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "best.pkl").write_text(PRECIOUS)
    (run / "notes.npy").write_text(PRECIOUS)
    (run / "events.out.tfevents.1.theirs").write_bytes(b"")
    outside = tmp_path / "data"
    outside.mkdir()
    (outside / "f").write_text(PRECIOUS)
    (run / "linked").symlink_to(outside)
    log(backend, tmp_path / "runs", {"x": 3.0}, if_exists="replace")
    assert (run / "checkpoints" / "best.pkl").read_text() == (run / "notes.npy").read_text() == PRECIOUS
    assert (run / "events.out.tfevents.1.theirs").exists()
    assert (outside / "f").read_text() == PRECIOUS
    assert (run / "linked").is_symlink()
    if backend == "save":
        assert dict(lox.loggers.load(run)) == {"x": np.asarray([3.0])}
        assert not (run / "old.npy").exists()


def test_replace_leaves_a_folder_alone_whose_manifest_says_nothing(tmp_path):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "lox.json").write_text("{}")
    (tmp_path / NAME / "thesis.txt").write_text(PRECIOUS)
    with pytest.raises(lox.loggers.RunFormatError, match="lox.json is damaged"):
        log("save", tmp_path, {"x": 1.0}, if_exists="replace")
    assert (tmp_path / NAME / "thesis.txt").read_text() == PRECIOUS
