"""The `lox` command on what others sent: nothing reaches the terminal that it would obey, and nothing is a traceback."""

import json
import os
import re
import shutil
import sys

import jax
import numpy as np
import pytest

import lox.loggers
from lox.loggers._cli.main import main
from tests.loggers.terminal import Terminal

NAME = "0000000000000000"
EVIL = "a\x1b]0;PWNED\x07\x1b[2Jb\r\nfake line\x9b31m"
COMMANDS = [
    *(["show", *options] for options in ([], ["--each"], ["--json"], ["--keys", "nomatch"], ["--by", "zz"])),
    *(["plot", *options] for options in ([], ["--each"], ["--log"], ["--json"], ["--axis", "zz"])),
    *(["export", *options] for options in ([], ["-f", "jsonl"])),
]

# All that a terminal obeys, but for the end of a line and a tab.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def checked_run(capfd, *arguments):
    """The status and output of a command, which ends well or with a message, never with a traceback."""
    status = main(list(map(str, arguments)))
    out, err = capfd.readouterr()
    assert status in (0, 1)
    assert "Traceback" not in err
    assert "did not expect" not in err
    assert status == 0 or err.startswith("lox: ")
    return status, out, err


@pytest.fixture
def evil(tmp_path):
    runs = tmp_path / "runs"
    with lox.loggers.SaveLogger(runs) as logger:
        state = logger.init(jax.random.key(0), {EVIL: EVIL, "rate": 0.1})
        for step in range(3):
            record = {EVIL: 1.0 * step, "p": {"\x1b[31mleaf": 2.0}, "t": "\x1b]52;c;ZXZpbA==\x07"}
            logger.log(state, record, **{"step": step, "ax\x1b[1m": 1})
    shutil.copytree(runs / NAME, runs / "\x1b]0;title\x07run")
    return runs


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_control_characters_do_not_reach_the_terminal(evil, capfd, command):
    _, out, err = checked_run(capfd, command[0], evil, *command[1:])
    assert not CONTROL.search(err)
    if (
        command[0] != "export" or "jsonl" in command
    ):  # here its output is data, for files: csv quotes it, JSON escapes it
        assert not CONTROL.search(out)


def test_a_table_that_is_exported_to_a_terminal_has_no_control_characters(evil, monkeypatch):
    terminal = Terminal(200)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal.file)
        assert main(["export", str(evil)]) == 0
    out = terminal.text().replace("\r\n", "\n")
    assert "a\\x1b]0;PWNED\\x07" in out
    assert not CONTROL.search(out)


@pytest.mark.parametrize(
    "damage",
    [
        lambda run: (run / "lox.json").write_text(json.dumps({"format": "\x1b]0;x\x07"})),
        lambda run: (run / "lox.json").write_text("\x1b]0;x\x07"),
        lambda run: (run / "x.npy").write_text("\x1b[31m"),
        lambda run: (run / "config.json").write_text('"\\u001b[31m"'),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_its_control_characters(tmp_path, capfd, damage):
    folder = tmp_path / "\x1b[31mruns"
    with lox.loggers.SaveLogger(folder) as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    damage(folder / NAME)
    status, out, err = checked_run(capfd, "show", folder)
    assert status == 1
    assert not CONTROL.search(out + err)


def check_commands(capfd, folder):
    for command, *options in COMMANDS:
        checked_run(capfd, command, folder, *options)


VALUES = {
    "extreme": [1.7e308, -1.7e308, 5e-324],
    "nothing finite": [float("nan"), float("inf"), -float("inf")],
    "only nan": [float("nan")] * 3,
    "only text": ["a", "\udc80 lone", "c"],
    "one huge": [1e308],
    "large whole numbers": [2**63 - 1, -(2**63), 0],
    "unsigned": [np.uint64(2**64 - 1), np.uint64(0)],
    "complex": [1 + 2j, 3.0j],
    "bool": [True, False],
    "vectors": [np.full(3, 1e308), np.full(3, -1e308)],
    "none at all": [],
}


@pytest.mark.parametrize("backend", ["save", "csv", "jsonl"])
@pytest.mark.parametrize("name", VALUES)
def test_whatever_the_values_are(tmp_path, capfd, name, backend):
    with lox.loggers.create(backend, path=tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0))
        for step, value in enumerate(VALUES[name]):
            logger.log(state, {"v": value, "\udcff": 1.0}, step=step)
    check_commands(capfd, tmp_path / "runs")


@pytest.mark.parametrize("step", [1.7e308, float("nan"), -float("inf"), 2**63 - 1, 5e-324])
def test_whatever_the_steps_are(tmp_path, capfd, step):
    with lox.loggers.SaveLogger(tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0))
        for value in (1.0, 2.0):
            logger.log(state, {"v": value}, step=step)
    check_commands(capfd, tmp_path / "runs")


@pytest.mark.parametrize("output", ["no/such/folder/x.csv", "there", "x.nothing"])
@pytest.mark.parametrize("command", ["plot", "export"])
def test_outputs_that_cannot_be_written(tmp_path, capfd, command, output):
    with lox.loggers.SaveLogger(tmp_path / "runs") as logger:
        logger.log(logger.init(jax.random.key(0)), {"v": 1.0}, step=0)
    (tmp_path / "there").mkdir()
    status, _, err = checked_run(capfd, command, tmp_path / "runs", "-o", tmp_path / output)
    if output != "x.nothing":
        assert status == 1
        assert os.path.basename(output) in err


@pytest.mark.parametrize("path", ["not there", ".", "\udc80", "a\0b"])
def test_paths_that_are_none(tmp_path, capfd, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for command in ("show", "plot", "export"):
        assert checked_run(capfd, command, path)[0] == 1
