"""The `lox` command."""

import csv
import json
import subprocess
import sys
from importlib.metadata import entry_points

import jax
import jax.numpy as jnp
import pytest

import lox.loggers
from lox.loggers._cli import main
from lox.loggers._cli_plot import Curve, over_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs")
    with lox.loggers.SaveLogger(path) as logger:
        for seed in range(3):
            state = logger.init(jax.random.key(seed))
            for step in range(20):
                record = {"loss": seed + 1.0 / (step + 1), "train/v": jnp.ones(3) * step, "rng": jax.random.key(step)}
                logger.log(state, record, step=step)
            logger.log(state, {"note": "done"})
    return path


def lox_command(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_command_is_installed():
    (script,) = entry_points(group="console_scripts", name="lox")
    assert script.load() is main
    out = subprocess.check_output([sys.executable, "-m", "lox.loggers._cli", "loggers"], text=True)
    assert "SaveLogger" in out


def test_loggers_tells_what_is_installed_and_what_is_broken(capsys, tmp_path, monkeypatch):
    info = tmp_path / "bad_lox-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-lox\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lox.loggers]\nbad = no_such_module:Bad\nmemory = other:MemoryLogger\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    status, out, _ = lox_command(capsys, "loggers")
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert rows["save"].endswith("ok")
    assert rows["bad"].endswith("broken")
    assert "the logger 'bad' (no_such_module:Bad from bad-lox 1) failed to import: ModuleNotFoundError" in out
    assert out.count("name claimed twice") == 1


def test_show(capsys, runs):
    status, out, _ = lox_command(capsys, "show", runs)
    assert status == 0
    assert [line for line in out.splitlines() if line and not line.startswith(" ")] == sorted(
        p.name for p in runs.iterdir()
    )
    line = next(line for line in out.splitlines() if line.strip().startswith("loss"))
    assert line.split() == ["loss", "20", "step", "0..19", line.split()[4], "0.05", "0.1799", "0.05", "1"]
    assert line.split()[4].startswith("█")
    assert "train/v (mean of 3)" in out
    status, out, _ = lox_command(capsys, "show", runs / "0000000000000001", "--keys", "tr*")
    assert "loss" not in out
    assert out.startswith("0000000000000001\n")


def test_plot_in_the_terminal(capsys, runs):
    status, out, _ = lox_command(capsys, "plot", runs, "-k", "loss")
    assert status == 0
    assert out.startswith("loss (mean of 3 runs)\n")
    assert "•" in out
    assert "░" in out
    assert out.splitlines()[-1].split() == ["step", "0", "19"]
    _, out, _ = lox_command(capsys, "plot", runs, "-k", "loss", "--each")
    assert "0000000000000002" in out
    assert "x" in out


def test_plot_to_a_file(capsys, runs, tmp_path):
    pytest.importorskip("matplotlib")
    status, out, _ = lox_command(capsys, "plot", runs, "-o", tmp_path / "plot.png")
    assert (status, out) == (0, f"wrote {tmp_path / 'plot.png'}\n")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_mean_over_runs_is_taken_where_they_overlap():
    one = Curve("a", jnp.array([0.0, 2.0, 4.0]), jnp.array([0.0, 2.0, 4.0]))
    other = Curve("b", jnp.array([1.0, 3.0]), jnp.array([3.0, 5.0]))
    mean = over_runs([one, other])
    assert mean.steps.tolist() == [1.0, 2.0, 3.0]
    assert mean.mean.tolist() == [2.0, 3.0, 4.0]
    assert mean.low.tolist() == [1.0, 2.0, 3.0]
    assert mean.high.tolist() == [3.0, 4.0, 5.0]


def test_export(capsys, runs, tmp_path):
    _, out, _ = lox_command(capsys, "export", runs, "-k", "loss", "train/v")
    rows = list(csv.DictReader(out.splitlines()))
    assert len(rows) == 60
    assert rows[21] == {"run": "0000000000000001", "step": "1", "loss": "1.5", "train/v": "[1.0, 1.0, 1.0]"}
    _, out, _ = lox_command(capsys, "export", runs, "--format", "jsonl")
    rows = [json.loads(line) for line in out.splitlines()]
    assert rows[0]["rng"] == [0, 0]
    assert [row["note"] for row in rows if "note" in row] == ["done"] * 3
    lox_command(capsys, "export", runs, "-o", tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 64


def test_export_to_parquet(capsys, runs, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert lox_command(capsys, "export", runs, "-o", tmp_path / "all.parquet")[0] == 0
    table = parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert len(table["run"]) == 63
    assert table["loss"][:2] == [1.0, 0.5]
    status, _, err = lox_command(capsys, "export", runs, "--format", "parquet")
    assert (status, "--output FILE" in err) == (1, True)


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("matplotlib", ["plot", "-o", "x.png"], "lox-loggers[plot]"),
        ("pyarrow", ["export", "-o", "x.parquet"], "[parquet]"),
    ],
)
def test_what_is_missing_is_named(capsys, runs, monkeypatch, module, arguments, extra):
    monkeypatch.setitem(sys.modules, module, None)
    status, _, err = lox_command(capsys, arguments[0], runs, *arguments[1:])
    assert status == 1
    assert "pip install" in err
    assert extra in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "nowhere"], "is not a folder"),
        (["plot", ".", "-k", "x"], "holds no saved runs"),
    ],
)
def test_mistakes_are_one_line_on_stderr(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = lox_command(capsys, *arguments)
    assert (status, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_keys_and_axes_that_are_not_there(capsys, runs):
    assert (
        "no key matches nothing; there are loss, note, rng, train/v"
        in lox_command(capsys, "show", runs, "-k", "nothing")[2]
    )
    assert (
        "no steps along 'epoch', only along step"
        in lox_command(capsys, "plot", runs, "-k", "loss", "--axis", "epoch")[2]
    )


def test_a_reader_that_has_seen_enough_is_no_error(runs):
    command = f"{sys.executable} -m lox.loggers._cli export {runs} -f jsonl | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""
