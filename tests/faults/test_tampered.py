"""Saved folders that were damaged, or made to harm whoever loads them: an error that names the file, and no code runs."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import lox.loggers
from lox.loggers import RunFormatError, SaveLogger

NAME = "0" * 16


class Harm:
    """What unpickling it does can be seen."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return Path.write_text, (self.witness, "harm was done")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A saved run."""
    with SaveLogger(tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0))
        for i in range(5):
            logger.log(state, {"x": float(i), "n": {"a": i}}, step=i)
    return tmp_path / "runs" / NAME


def resume(run: Path) -> None:
    with SaveLogger(run.parent, if_exists="resume") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 9.0, "n": {"a": 9}}, step=9)


def npy(header: str, data: bytes = b"\0" * 40) -> bytes:
    text = header.encode() + b" " * 8 + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


def stored(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


WHOLE = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}".format
FILES: dict[str, Callable[[bytes, Path], bytes]] = {
    "empty": lambda file, witness: b"",
    "half a header": lambda file, witness: file[:40],
    "cut": lambda file, witness: file[:-12],
    "wrong magic": lambda file, witness: b"NOTNUMPY" + file[8:],
    "another version": lambda file, witness: file[:6] + b"\x09\x00" + file[8:],
    "more rows than there are": lambda file, witness: npy(WHOLE("'<f8'", "(9999999999999999,)")),
    "rows below zero": lambda file, witness: npy(WHOLE("'<f8'", "(-5,)")),
    "no rows at all": lambda file, witness: stored(np.zeros(())),
    "no dtype": lambda file, witness: npy(WHOLE("'nonsense'", "(5,)")),
    "a pickle": lambda file, witness: pickle.dumps(Harm(witness)),
    "pickled objects": lambda file, witness: stored(np.array([Harm(witness)] * 5, object)),
    "code in the header": lambda file, witness: npy(WHOLE(f"open({str(witness)!r}, 'w')", "(5,)")),
    "text": lambda file, witness: b"hello",
}


@pytest.mark.parametrize("how", FILES)
def test_a_damaged_file_is_an_error_and_runs_no_code(how: str, run: Path, tmp_path: Path) -> None:
    file, witness = run / "x.npy", tmp_path / "witness"
    before = FILES[how](file.read_bytes(), witness)
    file.write_bytes(before)
    for use in (lox.loggers.load, resume):
        with pytest.raises(RunFormatError, match="x.npy"):
            use(run)
        assert file.read_bytes() == before
        assert not witness.exists()


def test_unpickling_the_harm_would_be_seen(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Harm(tmp_path / "witness")))
    assert (tmp_path / "witness").exists()


def change_column(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["logs"]["x"]["values"][0].update(fields)

    return change


def change_logs(logs: Any) -> Callable[[dict[str, Any]], Any]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["logs"] = logs

    return change


MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file elsewhere": change_column(file="/etc/passwd"),
    "a file above": change_column(file="../x.npy"),
    "the folder above": change_column(file=".."),
    "a file without a name": change_column(file=""),
    "a file that is a number": change_column(file=5),
    "an unknown dtype": change_column(dtype="nonsense"),
    "an unknown kind of key": change_column(dtype="key<nonsense>"),
    "logs that are a list": change_logs([1, 2]),
    "logs that are numbers": change_logs({"x": 3}),
    "a key without values": change_logs({"x": {"values": [], "steps": {}}}),
    "a format to come": lambda manifest: {**manifest, "format": 99},
    "a list": lambda manifest: [1],
}
TEXTS: dict[str, bytes] = {
    "null": b"null",
    "nothing": b"",
    "half": b'{"format": 1, "run": "x", "lo',
    "not text": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("how", [*MANIFESTS, *TEXTS])
def test_a_damaged_manifest(how: str, run: Path) -> None:
    manifest = run / "lox.json"
    if how in TEXTS:
        manifest.write_bytes(TEXTS[how])
    else:
        content = json.loads(manifest.read_text())
        changed = MANIFESTS[how](content)
        manifest.write_text(json.dumps(content if changed is None else changed))
    for use in (lox.loggers.load, resume):
        with pytest.raises(RunFormatError):
            use(run)


def test_a_file_that_was_written_again_by_numpy_can_be_resumed(run: Path) -> None:
    """Its header is laid out in another way."""
    np.save(run / "x.npy", np.load(run / "x.npy"))
    resume(run)
    assert np.load(run / "x.npy").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]
    assert lox.loggers.load(run)["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 9.0]


def test_a_file_of_another_shape_is_not_spoilt(run: Path) -> None:
    np.save(run / "x.npy", np.zeros((5, 2)))
    with pytest.raises(lox.LoxError, match="x"):
        resume(run)
    assert np.load(run / "x.npy").shape == (5, 2)


@pytest.mark.parametrize("leftover", [None, ".lox.json.0123456789abcdef.tmp"])
def test_a_run_that_was_killed_before_it_began_can_be_resumed(leftover: str | None, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    if leftover:
        (tmp_path / NAME / leftover).write_text('{"form')
    resume(tmp_path / NAME)
    assert lox.loggers.load(tmp_path / NAME)["x"].tolist() == [9.0]
