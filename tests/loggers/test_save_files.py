"""SaveLogger: the files, their names, and what survives."""

import contextlib
import json
import os
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lox.loggers import Run, SaveLogger, load
from lox.loggers._backends.save.names import escape, step_file, value_file
from lox.loggers._backends.save.npy import NpyFile
from tests.loggers.saving import save, table

ODD_KEYS = [
    *("a/b", "a\\b", "..", "../x", "/etc/passwd", "a%2Fb", "%", "", " ", "a\nb", ".hidden", "a:b*?", "a@step", "a~b"),
    *("Loss", "loss", "LOSS", "con", "nul.x", "a.npy", "lox.json", "x" * 300, "x" * 299 + "y"),
    *("é", "e\u0301", "\ud800", "日本語"),
]


def test_there_is_a_file_for_each_key_and_step_axis(tmp_path):
    steps = {"step": [0, 1], "episode": [5, 5]}
    folder = save(
        tmp_path, table({"loss": np.float32([1, 2]), "w": {"a": np.ones((2, 3)), "b": (np.int8([1, 2]),)}}, steps)
    )
    assert sorted(os.listdir(folder)) == [
        "loss.npy",
        "loss@episode.npy",
        "loss@step.npy",
        "lox.json",
        "w@episode.npy",
        "w@step.npy",
        "w~a.npy",
        "w~b~0.npy",
    ]
    assert np.load(folder / "loss.npy").tolist() == [1.0, 2.0]
    assert np.load(folder / "loss.npy").dtype == np.float32
    assert np.load(folder / "w~a.npy").shape == (2, 3)
    assert np.load(folder / "loss@episode.npy").tolist() == [5, 5]


def test_the_manifest_says_what_the_files_hold(tmp_path):
    with SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(7))
        logger.log(state, {"loss": jnp.bfloat16(1), "v": jnp.ones(3)}, step=1)
    manifest = json.loads((tmp_path / "0000000000000007" / "lox.json").read_text())
    assert manifest["run"] == "0000000000000007"
    assert manifest["key"] == [0, 7]
    assert set(manifest["versions"]) == {"python", "lox-core", "lox-loggers", "jax", "numpy"}
    assert manifest["logs"]["loss"]["values"][0]["dtype"] == "bfloat16"
    assert manifest["logs"]["v"]["values"][0]["shape"] == [3]
    assert manifest["logs"]["v"]["steps"]["step"]["file"] == "v@step.npy"


def test_appending_leaves_the_rows_before_in_place(tmp_path):
    """O(new rows): neither the file nor the bytes that are there already are touched."""
    writer = SaveLogger(tmp_path).open(Run("run"))
    file = tmp_path / "run" / "x.npy"
    writer.write(table({"x": np.arange(1000)}))
    writer.flush()
    before = file.stat()
    with open(file, "r+b") as stream:  # a mark in the first row, which appending must not rewrite
        stream.seek(128)
        stream.write(np.int64(-1).tobytes())
    for n in range(10):
        writer.write(table({"x": np.full(100, n)}))
        writer.flush()
    rows = np.load(file)
    assert file.stat().st_ino == before.st_ino
    assert file.stat().st_size == before.st_size + 10 * 100 * 8
    assert rows[0] == -1
    assert rows[1000::100].tolist() == list(range(10))


def test_no_file_is_kept_open(tmp_path):
    with SaveLogger(tmp_path) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 50))
        jax.vmap(lambda s, x: logger.log(s, {"a": x, "b": x}, step=0))(states, jnp.arange(50.0))
        logger.flush()
        assert [link for link in open_files() if str(tmp_path) in link] == [str(tmp_path / ".lox.lock")]


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "<U3"])
def test_a_growing_npy_file_is_what_np_load_expects(tmp_path, dtype, shape):
    file = NpyFile.create(tmp_path / "x.npy", np.empty((0, *shape), dtype))
    rows = np.ones((5, *shape)).astype(dtype)
    for count in (0, 2, 5):
        file.write(0, rows[:count])
        for mode in (None, "r"):
            loaded = np.load(tmp_path / "x.npy", mmap_mode=mode, allow_pickle=False)
            assert loaded.shape == (count, *shape)
            assert loaded.dtype == dtype
            assert np.array_equal(loaded, rows[:count])
    file.truncate(3)
    assert np.load(tmp_path / "x.npy").shape == (3, *shape)


def test_a_half_written_append_is_not_seen_and_is_written_over(tmp_path):
    folder = save(tmp_path, table({"x": [1, 2, 3]}, {"step": [0, 1, 2]}))
    with open(folder / "x.npy", "ab") as stream:
        stream.write(b"\x07" * 13)  # what a kill leaves: data that no header tells of
    NpyFile(folder / "x@step.npy", np.dtype(np.int64), ()).write(3, np.array([3]))  # and one file ahead of the other
    assert np.load(folder / "x.npy").tolist() == [1, 2, 3]
    logs = load(folder)
    assert (logs["x"].tolist(), logs.step["x"].tolist()) == ([1, 2, 3], [0, 1, 2])
    writer = SaveLogger(tmp_path, if_exists="resume").open(Run("run", resume=True))
    writer.write(table({"x": [9]}, {"step": [9]}))
    writer.close()
    logs = load(folder)
    assert (logs["x"].tolist(), logs.step["x"].tolist()) == ([1, 2, 3, 9], [0, 1, 2, 9])


def test_odd_keys_stay_in_the_folder_and_come_back(tmp_path):
    with SaveLogger(tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {key: i for i, key in enumerate(ODD_KEYS)}, step=1)
    folder = tmp_path / "runs" / "0000000000000000"
    assert {key: value.tolist() for key, value in load(folder).items()} == {k: [i] for i, k in enumerate(ODD_KEYS)}
    assert os.listdir(tmp_path) == ["runs"]
    assert sorted(os.listdir(tmp_path / "runs")) == [".lox.lock", folder.name]
    names = os.listdir(folder)
    assert len({name.casefold() for name in names}) == 2 * len(ODD_KEYS) + 1
    assert all(len(name.encode()) <= 255 and name.isascii() and "/" not in name for name in names)


@hypothesis.given(st.text(), st.text())
def test_two_keys_never_share_a_file_whatever_the_file_system(one, other):
    names = {
        f(key).casefold()
        for key in (one, other)
        for f in (escape, lambda k: value_file(k, ["a"]), lambda k: step_file(k, "a"))
    }
    assert len(names) == (3 if one == other else 6)
    assert not any(name.startswith(".") or set(name) & set('/\\:*?"<>|\0 ') for name in names)


@pytest.mark.skipif(sys.platform == "win32", reason="a shell to ask")
def test_files_are_readable_by_a_process_that_knows_nothing_of_lox(tmp_path):
    folder = save(tmp_path, table({"train/loss": [1.5, 2.5]}))
    program = "import sys, numpy; print(numpy.load(sys.argv[1]).tolist(), 'jax' in sys.modules)"
    out = subprocess.check_output([sys.executable, "-c", program, folder / "train%2Floss.npy"], text=True)
    assert out == "[1.5, 2.5] False\n"


def test_a_disk_that_fails_is_an_error_and_leaves_whole_files(tmp_path, monkeypatch):
    writer = SaveLogger(tmp_path).open(Run("run"))
    writer.write(table({"a": [1], "b": [1]}, {"step": [0]}))
    writer.flush()
    real = os.pwrite
    monkeypatch.setattr(
        "lox.loggers._backends.save.npy._pwrite", lambda fd, data, at: real(fd, data[:3], at) if at < 140 else full()
    )

    def full():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        writer.write(table({"a": [2, 3], "b": [2, 3]}, {"step": [1, 2]}))
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    logs = load(tmp_path / "run")
    assert (logs["a"].tolist(), logs["b"].tolist()) == ([1], [1])
    writer.write(table({"a": [4], "b": [4]}, {"step": [3]}))
    writer.close()
    logs = load(tmp_path / "run")
    assert (logs["a"].tolist(), logs.step["a"].tolist(), logs["b"].tolist()) == (
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [1, 2, 3, 4],
    )


def test_a_manifest_that_cannot_be_written_is_written_with_the_next_rows(tmp_path, monkeypatch):
    writer = SaveLogger(tmp_path).open(Run("run"))

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lox.loggers._backends.save.manifest._files.replace", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(table({"a": [1]}))
    monkeypatch.undo()
    writer.write(table({"a": [2]}))
    writer.close()
    assert load(tmp_path / "run")["a"].tolist() == [1, 2]


def test_a_file_that_cannot_be_made_costs_only_its_own_key(tmp_path):
    writer = SaveLogger(tmp_path).open(Run("run"))
    (tmp_path / "run" / "a.npy").mkdir()  # in the way
    with pytest.raises(OSError, match="a.npy") as caught:
        writer.write(table({"a": [1], "b": [1]}))
    assert caught.value.lost_records == 1
    writer.close()
    assert np.load(tmp_path / "run" / "b.npy").tolist() == [1]


def open_files():
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        pytest.skip("needs /proc")
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"{folder}/{name}"))
    return found
