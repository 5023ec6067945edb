"""SaveLogger: the files, what becomes of odd keys and dtypes, and reading them back."""

import contextlib
import json
import os
import subprocess
import sys
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import RecordError, Run, RunFormatError, SaveLogger, load
from lox.loggers._names import escape, step_file, value_file
from lox.loggers._npy import NpyFile


def table(data, steps=None):
    columns = {key: np.asarray(value) if type(value) is list else value for key, value in data.items()}
    by_axis = {axis: dict.fromkeys(columns, np.asarray(step)) for axis, step in (steps or {}).items()}
    return lox.logdict(columns, steps=by_axis, stacked=list(columns))


def save(path, *tables, name="run"):
    writer = SaveLogger(path).open(Run(name))
    for each in tables:
        writer.write(each)
    writer.close()
    return path / name


# --- the files


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
        assert not [link for link in open_files() if str(tmp_path) in link]


def open_files():
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        pytest.skip("needs /proc")
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"{folder}/{name}"))
    return found


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "complex64", "<U3"])
def test_a_growing_npy_file_is_what_np_load_expects(tmp_path, dtype, shape):
    file = NpyFile.create(tmp_path / "x.npy", np.dtype(dtype), shape)
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


# --- keys

ODD_KEYS = [
    *("a/b", "a\\b", "..", "../x", "/etc/passwd", "a%2Fb", "%", "", " ", "a\nb", ".hidden", "a:b*?", "a@step", "a~b"),
    *("Loss", "loss", "LOSS", "con", "nul.x", "a.npy", "lox.json", "x" * 300, "x" * 299 + "y"),
    *("é", "e\u0301", "\ud800", "日本語"),
]


def test_odd_keys_stay_in_the_folder_and_come_back(tmp_path):
    with SaveLogger(tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {key: i for i, key in enumerate(ODD_KEYS)}, step=1)
    folder = tmp_path / "runs" / "0000000000000000"
    assert {key: value.tolist() for key, value in load(folder).items()} == {k: [i] for i, k in enumerate(ODD_KEYS)}
    assert os.listdir(tmp_path) == ["runs"]
    assert os.listdir(tmp_path / "runs") == [folder.name]
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


# --- values

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_jax_comes_back_bit_for_bit(tmp_path, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    folder = save(tmp_path, table({"x": rows}))
    np.load(folder / "x.npy", allow_pickle=False)
    back = load(folder)["x"]
    assert back.dtype == dtype
    assert back.tobytes() == rows.tobytes()


def test_keys_of_every_kind_come_back_as_keys(tmp_path):
    def f(key):
        lox.log({"key": key, "nested": {"keys": jax.random.split(key, 2)}})

    for impl in ("threefry2x32", "rbg"):
        for transform in ("spool", "tap"):
            with SaveLogger(tmp_path / impl / transform) as logger:
                state = logger.init(jax.random.key(0))
                jax.jit(getattr(logger, transform)(f, state))(jax.random.key(3, impl=impl))
                logger.log(state, {"key": jax.random.key(4, impl=impl)})
            (logs,) = load(tmp_path / impl / transform).values()
            assert str(jax.random.key_impl(logs["key"])) == impl
            assert jax.random.key_data(logs["key"]).tolist() == [
                jax.random.key_data(jax.random.key(seed, impl=impl)).tolist() for seed in (3, 4)
            ]
            assert logs["nested"]["keys"].shape == (1, 2)


class Pair(NamedTuple):
    first: object
    second: object


def test_nested_values_come_back_nested_and_unknown_classes_as_dicts(tmp_path):
    value = {"a": [np.ones(2), (np.zeros(2), {"b": np.ones((2, 3))})], "pair": Pair(np.ones(2), {"x": np.ones(2)})}
    back = load(save(tmp_path, table({"v": value})))["v"]
    expected = {**value, "pair": {"first": np.ones(2), "second": {"x": np.ones(2)}}}
    assert jax.tree.structure(back) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, expected))


def test_a_dtype_that_has_to_grow_does(tmp_path):
    writer = SaveLogger(tmp_path).open(Run("run"))
    for value in (np.array([True]), np.array([2], np.int32), np.array([0.5]), np.array([1j])):
        writer.write(table({"x": value}))
        writer.flush()
    writer.write(table({"half": np.array([1], ml_dtypes.bfloat16)}))
    writer.flush()
    writer.write(table({"half": np.array([0.1], np.float32)}))
    writer.write(table({"text": np.array(["a"])}))
    writer.write(table({"text": np.array(["longer"])}))
    writer.close()
    logs = load(tmp_path / "run")
    assert logs["x"].tolist() == [1, 2, 0.5, 1j]
    assert (logs["half"].dtype, logs["half"].tolist()) == (np.float32, [1.0, float(np.float32(0.1))])
    assert logs["text"].tolist() == ["a", "longer"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (table({"x": np.ones((1, 2))}), table({"x": np.ones((1, 3))}), r"shape \(2,\) and now has \(3,\)"),
        (table({"x": np.ones(1)}), table({"x": {"a": np.ones(1)}}), "one array with no steps and now has"),
        (table({"x": np.ones(1)}, {"step": [0]}), table({"x": np.ones(1)}), "steps step and now has .* no steps"),
        (table({"x": np.ones(1)}), table({"x": np.array(["a"])}), "no dtype holds both"),
    ],
)
def test_records_that_do_not_fit_are_named_and_the_others_are_written(tmp_path, first, second, message):
    writer = SaveLogger(tmp_path).open(Run("run"))
    writer.write(first)
    writer.write(second | table({"y": [5]}))
    writer.write(first)
    with pytest.raises(RecordError, match=message) as caught:
        writer.flush()
    assert "'x'" in str(caught.value)
    assert caught.value.lost_records == 1
    writer.close()
    logs = load(tmp_path / "run")
    assert len(logs["x"]) == 2
    assert logs["y"].tolist() == [5]


def test_a_disk_that_fails_is_an_error_and_leaves_whole_files(tmp_path, monkeypatch):
    writer = SaveLogger(tmp_path).open(Run("run"))
    writer.write(table({"a": [1], "b": [1]}, {"step": [0]}))
    writer.flush()
    real = os.pwrite
    monkeypatch.setattr("lox.loggers._npy._pwrite", lambda fd, data, at: real(fd, data[:3], at) if at < 140 else full())

    def full():
        raise OSError(28, "No space left on device")

    writer.write(table({"a": [2, 3], "b": [2, 3]}, {"step": [1, 2]}))
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    logs = load(tmp_path / "run")
    assert (logs["a"].tolist(), logs["b"].tolist()) == ([1], [1])
    writer.write(table({"a": [4], "b": [4]}, {"step": [3]}))
    writer.close()
    logs = load(tmp_path / "run")
    assert (logs["a"].tolist(), logs.step["a"].tolist(), logs["b"].tolist()) == ([1, 4], [0, 3], [1, 4])


def test_a_manifest_that_cannot_be_written_is_written_with_the_next_rows(tmp_path, monkeypatch):
    writer = SaveLogger(tmp_path).open(Run("run"))

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lox.loggers._manifest.replace_file", full)
    writer.write(table({"a": [1]}))
    with pytest.raises(OSError, match="No space left"):
        writer.flush()
    monkeypatch.undo()
    writer.write(table({"a": [2]}))
    writer.close()
    assert load(tmp_path / "run")["a"].tolist() == [1, 2]


def test_a_file_that_cannot_be_made_costs_only_its_own_key(tmp_path):
    writer = SaveLogger(tmp_path).open(Run("run"))
    (tmp_path / "run" / ".a.npy.tmp").mkdir()  # in the way
    writer.write(table({"a": [1], "b": [1]}))
    with pytest.raises(OSError, match="a.npy"):
        writer.flush()
    writer.close()
    assert load(tmp_path / "run")["b"].tolist() == [1]


def test_nothing_is_ever_pickled(tmp_path):
    with SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        with pytest.raises(TypeError, match="cannot be logged"):
            logger.log(state, {"x": np.array([object()])})
    writer = SaveLogger(tmp_path).open(Run("other"))
    writer.write(table({"x": np.array([object()])}))
    with pytest.raises(RecordError, match="object"):
        writer.flush()


# --- load


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


# --- runs that exist


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
