"""Keys that try to leave the folder, and characters that mean something to files and terminals."""

from __future__ import annotations

import io
import os
from pathlib import Path

import jax
import pytest

import lox.loggers
from tests.faults.plain import BACKENDS, make, numbers, rows_of

LEAVING = ["../x", "/etc/passwd", "..", ".", "a/../../b", "..\\x", "C:\\x", "~/x", "$HOME/x", "%2e%2e%2fx", "a/./b"]
CONTROL = ["a\nb", "a\0b", "a\x1b[2Jb", "a\tb", "a\x7fb", "a\x85b", "\u2028", "\u202eabc", 'a"b', "a,b", "a;b", " ", ""]
CARRIAGE_RETURN = "a\rb"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keys", [LEAVING, CONTROL], ids=["leaving", "control"])
def test_odd_keys_stay_in_the_folder_and_come_back(backend: str, keys: list[str], tmp_path: Path) -> None:
    runs = tmp_path / "above" / "runs"
    with make(backend, runs) as logger:
        state = logger.init(jax.random.key(0))
        for step in range(2):
            logger.log(state, {key: i + step for i, key in enumerate(keys)}, step=step)
    found = rows_of(backend, runs, "0" * 16)
    expected = {key: [(0, float(i)), (1, float(i + 1))] for i, key in enumerate(keys)}
    assert {key: numbers(rows) for key, rows in found.items()} == expected
    assert os.listdir(tmp_path) == ["above"]
    assert os.listdir(tmp_path / "above") == ["runs"]
    assert all(name.startswith(("0" * 16, ".lox.lock")) for name in os.listdir(runs))
    for folder, folders, _ in os.walk(runs):
        assert not folders or Path(folder) == runs


@pytest.mark.parametrize(
    ("backend", "text"),
    [(backend, text) for backend in ("csv", "jsonl") for text in (*CONTROL[:-1], CARRIAGE_RETURN)],
)
def test_odd_text_comes_back(backend: str, text: str, tmp_path: Path) -> None:
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for step in range(3):
            logger.log(state, {"text": text, "x": step}, step=step)
    found = rows_of(backend, tmp_path, "0" * 16)
    assert found["text"] == [(step, text) for step in range(3)]
    assert numbers(found["x"]) == [(step, float(step)) for step in range(3)]


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
def test_a_carriage_return_in_a_key(backend: str, tmp_path: Path) -> None:
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {CARRIAGE_RETURN: 1}, step=0)
        logger.log(state, {"later": 2}, step=1)
    found = rows_of(backend, tmp_path, "0" * 16)
    assert {key: numbers(rows) for key, rows in found.items()} == {CARRIAGE_RETURN: [(0, 1.0)], "later": [(1, 2.0)]}


@pytest.mark.parametrize("live", [False, True])
def test_a_key_says_nothing_to_the_terminal(live: bool) -> None:
    out = io.StringIO()
    with lox.loggers.ConsoleLogger(file=out, live=live) as logger:
        logger.log(logger.init(jax.random.key(0)), {"a\x1b]0;title\x07b\r\nc": 1.0}, step=0)
    assert "\x1b]" not in out.getvalue()
    assert not set(out.getvalue()) & {"\x07", "\r", "\x08"}
