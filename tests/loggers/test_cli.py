"""The `lox` command."""

import csv
import json
import subprocess
import sys
from importlib.metadata import entry_points

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox.loggers
from lox.loggers._cli.main import main
from lox.loggers._cli.plot import Curve, draw, over_runs
from lox.loggers._delivery.run import short_names


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
    out = subprocess.check_output([sys.executable, "-m", "lox.loggers._cli.main", "loggers"], text=True)
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
    assert lox_command(capsys, "loggers", "--check") == (1, out, "")


def test_loggers_check_is_content_if_nothing_is_broken(capsys):
    assert lox_command(capsys, "loggers", "--check")[0] == 0


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


def test_show_of_several_paths_names_the_folder_where_runs_have_one_name(capsys, runs, tmp_path):
    with lox.loggers.SaveLogger(tmp_path / "other") as logger:
        logger.log(logger.init(jax.random.key(1)), {"loss": 7.0}, step=1)
        logger.log(logger.init(jax.random.key(5)), {"loss": 8.0}, step=1)
    status, out, _ = lox_command(capsys, "show", runs / "0000000000000000", tmp_path / "other", runs, "-k", "loss")
    assert status == 0
    names = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert names == [
        f"{runs}/0000000000000000",
        f"{tmp_path}/other/0000000000000001",
        "0000000000000005",
        f"{runs}/0000000000000001",
        "0000000000000002",
    ]


def test_show_of_many_runs_is_one_table(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        for seed in range(9):
            state = logger.init(jax.random.key(seed))
            logger.log(state, {"loss": 1.0 * seed, "odd": float("nan") if seed == 8 else seed})
            if seed > 6:
                logger.log(state, {"rare": seed, "loss": 4.0})
    _, out, _ = lox_command(capsys, "show", tmp_path)
    title, head, loss, odd, rare = out.splitlines()
    assert title == "9 runs (--each: a table for each)"
    assert head.split("  ")[1] == "key"
    assert loss.split() == ["loss", "9", "1..2", "3.222", "±", "1.812"] + [
        *("0", "0000000000000000"),
        *("6", "0000000000000006"),
    ]
    assert odd.split()[3:] == ["nan", "±", "nan", "0", "0000000000000000", "7", "0000000000000007"]
    assert rare.split()[:3] == ["rare", "2", "1"]
    _, out, _ = lox_command(capsys, "show", tmp_path, "--each")
    assert len(out.splitlines()) == 9 * 4 + 8 + 2


def test_plot_in_the_terminal(capsys, runs):
    status, out, _ = lox_command(capsys, "plot", runs, "-k", "loss")
    assert status == 0
    assert out.startswith("loss (mean of 3 runs ± std)\n")
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


def test_the_mean_at_a_step_is_taken_over_the_runs_that_have_come_so_far():
    one = Curve("a", np.array([0.0, 2.0, 4.0]), np.array([0.0, 2.0, 4.0]))
    other = Curve("b", np.array([1.0, 3.0]), np.array([3.0, 5.0]))
    mean = over_runs([one, other])
    assert mean.name == "mean of 1 to 2 runs ± std"
    assert mean.steps.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert mean.mean.tolist() == [0.0, 2.0, 3.0, 4.0, 4.0]
    assert mean.low.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert mean.high.tolist() == [0.0, 3.0, 4.0, 5.0, 4.0]


def test_on_a_logarithmic_axis_the_band_goes_from_the_smallest_to_the_largest():
    steps = np.arange(2.0)
    mean = over_runs([Curve("a", steps, np.array([0.01, 1.0])), Curve("b", steps, np.array([1.0, 3.0]))], log=True)
    assert mean.name == "mean of 2 runs, min to max"
    assert (mean.low.tolist(), mean.high.tolist()) == ([0.01, 1.0], [1.0, 3.0])


def test_a_run_that_went_astray_is_seen_in_the_mean():
    steps = np.arange(3.0)
    mean = over_runs([Curve("a", steps, np.array([1.0, np.nan, np.nan])), Curve("b", steps[:2], np.ones(2))])
    assert np.isnan(mean.mean).tolist() == [False, True, True]


def test_a_logarithmic_axis(capsys, runs, tmp_path):
    steps = np.arange(5.0)
    picture = draw("loss", "step", [Curve("a", steps, 10.0**-steps)], 5, 5, log=True).splitlines()
    assert [line[12:] for line in picture[1:6]] == ["•", " •", "  •", "   •", "    •"]
    assert picture[1].split()[0] == "1"
    assert picture[5].split()[0] == "0.0001"
    band = Curve("a", steps, 10.0**-steps, 10.0**-steps - 0.5, 10.0**-steps + 0.5)
    assert draw("loss", "step", [band], 5, 5, log=True).splitlines()[5].split()[0] == "0.0001"
    assert draw("x", "step", [Curve("a", steps, -steps)], 5, 5, log=True) == "x: no positive values\n"
    assert lox_command(capsys, "plot", runs, "-k", "loss", "--log")[0] == 0
    pytest.importorskip("matplotlib")
    assert lox_command(capsys, "plot", runs, "-k", "loss", "--log", "-o", tmp_path / "plot.png")[0] == 0


def test_legends_have_as_many_leading_digits_as_tell_the_runs_apart():
    assert short_names(["0123456789abcdef", "0123456700000000", "ff"]) == {
        "0123456789abcdef": "012345678",
        "0123456700000000": "012345670",
        "ff": "ff",
    }
    assert list(short_names(["0123456789abcdef", "ff23456789abcdef"]).values()) == ["01234567", "ff234567"]
    assert list(short_names(["0123456789abcdef", "0123456789abcdef-2"]).values())[1] == "0123456789abcdef-"


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
        (["show", "nowhere"], "does not exist"),
        (["plot", ".", "-k", "x"], "holds no runs"),
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
        "no key has steps along 'epoch': 'loss' has steps along step"
        in lox_command(capsys, "plot", runs, "-k", "loss", "--axis", "epoch")[2]
    )


def test_a_reader_that_has_seen_enough_is_no_error(runs):
    command = f"{sys.executable} -m lox.loggers._cli.main export {runs} -f jsonl | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


def test_keys_that_do_not_have_an_axis_are_not_plotted_over_it(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(3):
            logger.log(state, {"loss": i}, step=i)
            logger.log(state, {"score": i}, step=i, epoch=i)
    out = lox_command(capsys, "plot", tmp_path, "-k", "*", "--axis", "epoch")[1]
    assert "score" in out
    assert "loss" not in out


def test_leaves_can_be_chosen_by_the_names_that_are_shown(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(3):
            logger.log(state, {"norm": {"a": 1.0 * i, "b": [i, 2 * i]}, "loss": 1.0}, step=i)
    for keys, labels in {
        ("norm/a",): ["norm/a"],
        ("norm/b/1",): ["norm/b/1"],
        ("norm/*",): ["norm/a", "norm/b/0", "norm/b/1"],
        ("norm",): ["norm/a", "norm/b/0", "norm/b/1"],
        ("*/b/*", "loss"): ["loss", "norm/b/0", "norm/b/1"],
    }.items():
        status, out, err = lox_command(capsys, "show", tmp_path, "-k", *keys)
        assert (status, err) == (0, "")
        shown = [line.split()[0] for line in out.splitlines()[2:]]
        assert sorted(label for label in shown if "/" in label or label == "loss") == labels
    table = lox_command(capsys, "export", tmp_path, "-k", "norm/b/1")[1].splitlines()
    assert table[0].split(",")[-1] == "norm/b/1"
    assert [row.split(",")[-1] for row in table[1:]] == ["0", "2", "4"]


def test_a_pattern_that_matches_nothing_beside_others_is_told(capsys, runs):
    status, out, err = lox_command(capsys, "show", runs, "-k", "loss", "los")
    assert (status, err) == (0, "lox: no key matches los\n")
    assert "loss" in out
