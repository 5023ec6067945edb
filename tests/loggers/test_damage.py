"""Saved runs that a kill left unfinished, that others wrote into, or that are damaged."""

import io
import json
import os
import pickle
import shutil

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

import lox
from lox.loggers import RecordError, RunFormatError, SaveLogger, load
from tests.loggers.saving import save, table

NAME = "0000000000000000"
ROWS = [0.0, 1.0, 2.0]


@pytest.fixture
def run(tmp_path):
    """The folder of a run with three records."""
    log(tmp_path, range(3))
    return tmp_path / NAME


def log(path, steps, **options):
    with SaveLogger(path, **options) as logger:
        state = logger.init(jax.random.key(0))
        for step in steps:
            logger.log(state, {"x": float(step), "n": {"a": step}}, step=step)


def resume(run):
    log(run.parent, range(5), if_exists="resume")
    return load(run)


# A writer that was killed before it had written a manifest, or while it deleted a run.


@pytest.mark.parametrize("left", [[], [".lox.json.0123456789abcdef.tmp"]])
@pytest.mark.parametrize("if_exists", ["resume", "replace"])
def test_a_run_that_was_killed_before_it_began_begins(tmp_path, if_exists, left):
    (tmp_path / NAME).mkdir()
    for name in left:
        (tmp_path / NAME / name).write_text('{"form')
    log(tmp_path, range(2), if_exists=if_exists)
    assert load(tmp_path / NAME)["x"].tolist() == [0.0, 1.0]
    assert sorted(os.listdir(tmp_path / NAME)) == ["lox.json", "n@step.npy", "n~a.npy", "x.npy", "x@step.npy"]


def test_a_folder_of_somebody_else_is_not_resumed(tmp_path):
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFormatError, match="is not a saved run"):
        resume(tmp_path / NAME)
    assert os.listdir(tmp_path / NAME) == ["thesis.txt"]


def test_a_run_is_deleted_such_that_what_is_left_of_it_can_be_replaced(run, monkeypatch):
    """Whatever the file is at which the one who deletes it is killed."""
    files = len(os.listdir(run))
    for allowed in range(files + 1):
        left = allowed

        def kill(*args, real, **kwargs):
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            real(*args, **kwargs)
            left -= 1  # not for a file that is not there

        with monkeypatch.context() as patched:
            for name in ("unlink", "rmdir"):
                real = getattr(os, name)
                patched.setattr(os, name, lambda *args, real=real, **kwargs: kill(*args, real=real, **kwargs))
            with pytest.raises(KeyboardInterrupt):
                SaveLogger(run.parent).remove(NAME)
        assert len(os.listdir(run)) == files - allowed
        log(run.parent, range(3), if_exists="replace")
        assert load(run)["x"].tolist() == ROWS


# Files that others wrote.


def test_a_link_to_a_run_is_not_replaced(run, tmp_path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / NAME).symlink_to(run)
    with pytest.raises(RunFormatError, match="is a link, so it is not replaced"):
        log(tmp_path / "linked", range(1), if_exists="replace")
    assert load(run)["x"].tolist() == ROWS


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_that_was_written_again_by_numpy_is_gone_on_with(tmp_path, order):
    """Its header is laid out in another way, so that a count of rows must not be written into it."""
    rows = np.arange(12.0).reshape(3, 2, 2)
    folder = save(tmp_path, table({"x": rows}, {"step": range(3)}))
    np.save(folder / "x.npy", np.asarray(np.load(folder / "x.npy"), order=order))
    writer = SaveLogger(tmp_path).open(lox.loggers.Run("run", resume=True))
    writer.write(table({"x": rows + 12}, {"step": range(3, 6)}))
    writer.close()
    assert np.load(folder / "x.npy").tolist() == load(folder)["x"].tolist() == [*rows.tolist(), *(rows + 12).tolist()]


def test_a_file_that_is_missing_or_ahead_is_resumed_at_the_rows_that_all_have(run):
    np.save(run / "x@step.npy", np.arange(5))
    os.unlink(run / "n~a.npy")
    logs = resume(run)
    assert logs["x"].tolist() == logs.step["x"].tolist() == [0, 1, 2, 3, 4]
    assert logs["n"]["a"].tolist() == logs.step["n"].tolist() == [0, 1, 2, 3, 4]


def test_a_file_that_was_made_wider_before_the_manifest_could_say_so_is_taken(run):
    np.save(run / "n~a.npy", np.load(run / "n~a.npy").astype(np.float64))
    assert load(run)["n"]["a"].dtype == np.float64
    assert resume(run)["n"]["a"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "other", [np.zeros((3, 2)), np.zeros(3, ">f8"), np.array(["a"] * 3), np.zeros(3, "i4,f8"), np.zeros(())], ids=str
)
def test_a_file_that_contradicts_the_manifest_is_an_error_and_stays(run, other):
    np.save(run / "x.npy", other)
    before = (run / "x.npy").read_bytes()
    for use in (load, resume):
        with pytest.raises(RunFormatError, match=r"x\.npy is damaged"):
            use(run)
    assert (run / "x.npy").read_bytes() == before


# Damage.


def npz(array):
    stream = io.BytesIO()
    np.savez(stream, array)
    return stream.getvalue()


def objects(array):
    stream = io.BytesIO()
    np.save(stream, array.astype(object), allow_pickle=True)
    return stream.getvalue()


DAMAGE = {
    "empty": lambda file: b"",
    "half a header": lambda file: file[:40],
    "cut": lambda file: file[:-12],
    "wrong magic": lambda file: b"NOTNUMPY" + file[8:],
    "more rows than there are": lambda file: file.replace(b"               3,", b"9999999999999999,"),
    "rows below zero": lambda file: file.replace(b" 3,", b"-3,"),
    "a long header": lambda file: file[:8] + (20_000).to_bytes(2, "little") + file[10:] + b" " * 20_000,
    "a pickle": lambda file: pickle.dumps(np.zeros(3)),
    "objects": lambda file: objects(np.zeros(3)),
    "an archive": lambda file: npz(np.zeros(3)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it_and_gives_no_unsafe_advice(run, how):
    file = run / "x.npy"
    damaged = DAMAGE[how](file.read_bytes())
    assert damaged != file.read_bytes()
    file.write_bytes(damaged)
    for use in (load, resume):
        with pytest.raises(RunFormatError, match=r"x\.npy is damaged") as caught:
            use(run)
        assert "pickle" not in str(caught.value)
        assert caught.value.__suppress_context__
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("name", ["x.npy", "lox.json"])
def test_a_folder_in_place_of_a_file(run, name):
    os.unlink(run / name)
    (run / name).mkdir()
    for use in (load, resume):
        with pytest.raises(RunFormatError, match=name):
            use(run)


def test_keys_of_a_kind_that_jax_does_not_have(tmp_path):
    with SaveLogger(tmp_path) as logger:
        logger.log(logger.init(jax.random.key(0)), {"key": jax.random.key(1)})
    manifest = tmp_path / NAME / "lox.json"
    manifest.write_text(manifest.read_text().replace("fry", "nonsense"))
    with pytest.raises(RunFormatError, match=r"key\.npy"):
        load(tmp_path)


def check_refused_or_read(run, name):
    """Damage is told with the name of the file; if it is not seen, the run is as good as another, though maybe one that
    takes no such records."""
    for use in (load, resume):
        try:
            use(run)
        except RunFormatError as error:
            assert name in str(error)  # noqa: PT017 (it need not be raised)
        except RecordError as error:
            assert use is resume, error  # noqa: PT017


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    log(path, range(3))
    return path / NAME


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(at=st.integers(0, 151), new=st.binary(max_size=12), cut=st.booleans())
def test_whatever_the_bytes_of_a_file_are(whole, tmp_path_factory, at, new, cut):
    run = tmp_path_factory.mktemp("runs") / NAME
    shutil.copytree(whole, run)
    file = (run / "x.npy").read_bytes()
    (run / "x.npy").write_bytes(file[:at] + new + (b"" if cut else file[at + len(new) :]))
    check_refused_or_read(run, "x.npy")


def places(data, path=()):
    """The ways to all values in nested lists and dicts."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for name, child in children for place in places(child, (*path, name)))]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["..", "O", "f8,("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(data=st.data(), new=JSON)
def test_whatever_the_manifest_says(whole, tmp_path_factory, data, new):
    run = tmp_path_factory.mktemp("runs") / NAME
    shutil.copytree(whole, run)
    manifest = [json.loads((run / "lox.json").read_text())]
    *way, last = data.draw(st.sampled_from(places(manifest)[1:]))
    parent = manifest
    for name in way:
        parent = parent[name]
    parent[last] = new
    (run / "lox.json").write_text(json.dumps(manifest[0]))
    check_refused_or_read(run, str(run))


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[" * 100_000, b"", b"null", b'{"format": 1, "run": "x", "lo'])
def test_a_manifest_that_is_none(run, content):
    (run / "lox.json").write_bytes(content)
    for use in (load, resume):
        with pytest.raises(RunFormatError, match=r"lox\.json is damaged"):
            use(run)


@pytest.mark.parametrize("file", ["..", "", "/etc/passwd", "../x.npy", "..\\x.npy", "lox.json"])
def test_a_manifest_that_names_a_file_elsewhere(run, file):
    text = (run / "lox.json").read_text()
    (run / "lox.json").write_text(text.replace('"x.npy"', json.dumps(file)))
    for use in (load, resume):
        with pytest.raises(RunFormatError, match=r"lox\.json is damaged.*is not a file in the run's folder"):
            use(run)
