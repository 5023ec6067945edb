"""The `lox` command."""

import csv
import json
import shutil
import subprocess
import sys
from importlib.metadata import entry_points

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox.loggers
from lox.loggers._cli.main import main
from lox.loggers._compare.characters import draw
from lox.loggers._compare.curves import Curve, Look, Panel, Series, describe, over_runs
from lox.loggers._delivery.names import short_names


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
        p.name for p in runs.iterdir() if p.is_dir()
    )
    line = next(line for line in out.splitlines() if line.strip().startswith("loss"))
    assert line.split() == ["loss", "20", "step", "0..19", line.split()[4], "0.05", "0.1799", "0.05", "1"]
    assert line.split()[4].startswith("█")
    assert "train/v (mean of 3)" in out
    status, out, _ = lox_command(capsys, "show", runs / "0000000000000001", "--keys", "tr*")
    assert "loss" not in out
    assert out.startswith("0000000000000001\n")


def test_several_paths_are_several_experiments(capsys, runs, tmp_path):
    with lox.loggers.SaveLogger(tmp_path / "other") as logger:
        logger.log(logger.init(jax.random.key(1)), {"loss": 7.0}, step=1)
        logger.log(logger.init(jax.random.key(5)), {"loss": 8.0}, step=1)
    status, out, _ = lox_command(capsys, "show", runs / "0000000000000000", tmp_path / "other", "-k", "loss")
    assert status == 0
    names = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert names == ["0000000000000000", "other:", "0000000000000001", "0000000000000005"]
    _, out, _ = lox_command(capsys, "plot", runs, tmp_path / "other", "-k", "loss")
    assert out.splitlines()[1:3] == [
        f"            • {runs.name}: mean of 3 runs ± std",
        "            + other: mean of 2 runs ± std",
    ]
    _, out, _ = lox_command(capsys, "plot", runs, tmp_path / "other", "-k", "loss", "--json")
    ((panel),) = json.loads(out)
    assert [(curve["name"], curve["runs"]) for curve in panel["curves"]] == [(runs.name, [3, 3]), ("other", [2, 2])]
    assert panel["curves"][1]["values"] == [7.5]
    _, out, _ = lox_command(capsys, "export", runs, tmp_path / "other", "-k", "loss")
    assert {line.split(",")[0] for line in out.splitlines()} == {"experiment", runs.name, "other"}
    status, _, err = lox_command(capsys, "show", runs, f"{runs}/")
    assert (status, "is given twice" in err) == (1, True)


def test_show_of_many_runs_is_one_table(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        for seed in range(9):
            state = logger.init(jax.random.key(seed))
            logger.log(state, {"rate": 0.1 * (seed % 3)})
            for step in range(1 + (seed > 6)):
                logger.log(
                    state, {"loss": 4.0 * step or 1.0 * seed, "odd": float("nan") if seed == 8 else seed}, step=step
                )
            if seed > 6:
                logger.log(state, {"rare": seed}, step=0)
    _, out, _ = lox_command(capsys, "show", tmp_path)
    title, config, head, loss, odd, rare = out.splitlines()
    assert title == "9 runs (--each: a table for each)"
    assert config == "  rate=0, 0.1, 0.2"
    assert head.split("  ")[1] == "key"
    assert loss.split() == ["loss", "9", "1..2", "3.222", "±", "1.812"] + [
        *("0", "0000000000000000"),
        *("6", "0000000000000006"),
    ]
    assert odd.split()[3:] == ["nan", "±", "nan", "0", "0000000000000000", "7", "0000000000000007"]
    assert rare.split()[:3] == ["rare", "2", "1"]
    _, out, _ = lox_command(capsys, "show", tmp_path, "--each")
    assert len(out.splitlines()) == 9 * 5 + 8 + 2


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three rates in the config, four seeds each; a hyperparameter that is logged."""
    path = tmp_path_factory.mktemp("sweep")
    with lox.loggers.SaveLogger(path) as logger:
        for seed in range(12):
            config = {"rate": [0.01, 0.1, 1.0][seed % 3], "model": {"kind": "mlp", "width": None}}
            state = logger.init(jax.random.key(seed), config)
            logger.log(state, {"depth": seed % 2 + 1})
            for step in range(5):
                logger.log(state, {"loss": config["rate"] * step + seed, "score": -step}, step=step)
    return path


def test_show_by(capsys, sweep):
    status, out, _ = lox_command(capsys, "show", sweep, "--by", "rate", "-k", "loss", "--band", "minmax")
    assert status == 0
    title, head, *rows = out.splitlines()
    assert title == "12 runs by rate"
    assert head.split()[:2] == ["rate", "key"]
    assert [row.split()[:7] for row in rows] == [
        ["0.01", "loss", "4", "5", "4.54", "[0.04,", "9.04]"],
        ["0.1", "loss", "4", "5", "5.9", "[1.4,", "10.4]"],
        ["1", "loss", "4", "5", "10.5", "[6,", "15]"],
    ]
    _, out, _ = lox_command(capsys, "show", sweep, "--by", "rate", "--by", "depth", "--center", "median", "-k", "loss")
    assert [line.split()[:4] for line in out.splitlines()[2:4]] == [
        ["0.01", "1", "loss", "2"],
        ["0.01", "2", "loss", "2"],
    ]
    assert "median 3.04 ±" in out


def test_show_sort(capsys, sweep):
    _, out, _ = lox_command(capsys, "show", sweep, "--sort=-loss", "-k", "loss", "depth")
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows[0] == ["run", "rate", "model/kind", "model/width", "depth", "loss"]
    assert rows[1] == ["000000000000000b", "1", "mlp", "None", "2", "15"]
    numbers = [float(row[-1]) for row in rows[1:]]
    assert numbers == sorted(numbers, reverse=True)
    _, out, _ = lox_command(capsys, "show", sweep, "--sort", "rate")
    assert [row.split()[1] for row in out.splitlines()[2:]] == ["0.01"] * 4 + ["0.1"] * 4 + ["1"] * 4


def test_where(capsys, sweep):
    for condition in ("rate=0.1", "rate=1e-1", "model/kind=mlp", "model/width=None", "model/width=null"):
        status, out, _ = lox_command(capsys, "export", sweep, "--where", condition, "-k", "loss")
        assert status == 0
        assert len(out.splitlines()) == 1 + 5 * (4 if "rate" in condition else 12)
    rows = list(csv.DictReader(lox_command(capsys, "export", sweep, "-w", "rate=0.1", "-w", "depth=2")[1].splitlines()))
    assert {(row["rate"], row["depth"], row["model/kind"]) for row in rows} == {("0.1", "2", "mlp")}
    assert "loss" in rows[0]


def test_hyperparameters_are_columns_and_never_curves(capsys, sweep):
    _, out, _ = lox_command(capsys, "plot", sweep, "--json")
    assert [panel["key"] for panel in json.loads(out)] == ["loss", "score"]
    _, out, _ = lox_command(capsys, "show", sweep, "--json")
    run = json.loads(out)[sweep.name]["0000000000000001"]
    assert run["config"] == {"rate": 0.1, "model": {"kind": "mlp", "width": None}, "depth": 2}
    assert run["keys"]["loss"] == {
        "records": 5, "shape": [], "steps": {"step": [0, 4]}, "last": 1.4, "mean": 1.2, "min": 1.0, "max": 1.4,
    }  # fmt: skip
    assert list(run["keys"]) == ["loss", "score"]
    status, _, err = lox_command(capsys, "plot", sweep, "-k", "depth")
    assert (status, "nothing to draw, because only config and text were logged" in err) == (1, True)


def test_plot_by(capsys, sweep):
    _, out, _ = lox_command(
        capsys, "plot", sweep, "--by", "rate", "-k", "loss", "--band", "ci95", "--center", "iqm", "--json"
    )
    (panel,) = json.loads(out)
    assert [curve["name"] for curve in panel["curves"]] == ["rate = 0.01", "rate = 0.1", "rate = 1"]
    assert panel["curves"][2]["values"] == [6.5, 7.5, 8.5, 9.5, 10.5]
    assert panel["curves"][2]["low"][0] < 6.5 < panel["curves"][2]["high"][0]
    _, out, _ = lox_command(capsys, "plot", sweep, "--by", "rate", "-k", "loss", "--band", "quartiles")
    assert "• rate = 0.01: mean of 4 runs, quartiles" in out
    _, out, _ = lox_command(capsys, "plot", sweep, "--by", "rate", "-k", "loss", "--each", "--json")
    (panel,) = json.loads(out)
    assert [curve["name"] for curve in panel["curves"]] == ["rate = 0.01"] * 4 + ["rate = 0.1"] * 4 + ["rate = 1"] * 4
    assert panel["curves"][0]["run"] == "0000000000000000"


def test_many_lines_have_no_legend_that_nobody_can_read(capsys, sweep):
    _, out, _ = lox_command(capsys, "plot", sweep, "-k", "loss", "--each")
    assert out.startswith("loss (12 runs; choose some with --where, or group them with --by)\n")


@pytest.mark.parametrize("kind", ["save", "csv", "jsonl", "tensorboard"])
def test_plot_over_time(capsys, tmp_path, kind):
    with lox.loggers.create(
        kind, path=tmp_path, time=kind != "tensorboard"
    ) as logger:  # whose events have a time anyway
        for seed in range(2):
            state = logger.init(jax.random.key(seed))
            for step in range(3):
                logger.log(state, {"loss": 1.0 * step}, step=step)
    status, out, err = lox_command(capsys, "plot", tmp_path, "-k", "loss", "--axis", "time", "--json")
    assert (status, err) == (0, "")
    (panel,) = json.loads(out)
    assert panel["axis"] == "time"
    (curve,) = panel["curves"]
    assert curve["steps"] == sorted(curve["steps"])
    assert curve["runs"][1] == 2
    assert min(curve["steps"]) >= 0


def test_smoothing(capsys, sweep):
    _, out, _ = lox_command(capsys, "plot", sweep, "-k", "score", "--smooth", "0.5", "--json")
    assert json.loads(out)[0]["curves"][0]["values"][:2] == pytest.approx([0, -2 / 3])
    status, _, err = lox_command(capsys, "plot", sweep, "--smooth", "1")
    assert (status, "smooth=1.0; it must be at least 0 and less than 1" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "--by", "lr"], "no run has 'lr' in its config. Available: rate, model/kind, model/width, depth"),
        (["show", "--by", "lr"], "no run has 'lr' in its config"),
        (["show", "--sort", "lr"], "no run has 'lr'. Available: rate, model/kind, model/width, depth, loss, score"),
        (["show", "--where", "lr=1"], "no run has 'lr' in its config"),
        (["show", "--where", "rate=3"], "has rate=3. Values of rate: 0.01, 0.1, 1"),
        (["show", "--where", "rate"], "--where 'rate': write KEY=VALUE"),
        (["show", "--reader", "svae"], "no reader 'svae' is installed; installed:"),
        (["plot", "--axis", "time"], "no key has steps along 'time': 'loss' has steps along step; 'score'"),
        (["plot", "-o", "no/such/folder.png"], "cannot write no/such/folder.png"),
        (["plot", "-o", "plot.nothing"], "cannot write plot.nothing: Format 'nothing' is not supported"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(capsys, sweep, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = lox_command(capsys, arguments[0], sweep, *arguments[1:])
    assert (status, out) == (1, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_bad_files_are_named_and_the_others_shown(capsys, sweep, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(sweep, copy)
    (copy / "0000000000000003" / "lox.json").write_text("[]")
    for command in ("show", "plot", "export"):
        status, out, err = lox_command(capsys, command, copy, "-k", "loss")
        assert status == 1
        assert "loss" in out
        assert "1 of 12 runs cannot be read:\n" in err
        assert "0000000000000003/lox.json is damaged" in err


def test_a_stray_file_is_no_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n')
    status, out, err = lox_command(capsys, "show", ".")
    assert (status, out) == (1, "")
    assert "there are no runs in" in err


def test_extreme_numbers_are_drawn(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        for seed in range(2):
            state = logger.init(jax.random.key(seed))
            for step, value in enumerate([1e308, -1e308, np.nan, np.inf, -np.inf, 5e-324]):
                logger.log(state, {"x": np.float64(value), "nan": np.nan}, step=step)
    for arguments in (
        [],
        ["--log"],
        ["--each"],
        ["--band", "ci95", "--center", "iqm"],
        ["--json"],
        ["--smooth", "0.5"],
    ):
        status, out, err = lox_command(capsys, "plot", tmp_path, *arguments)
        assert (status, err) == (0, "")
        assert "Traceback" not in out
    assert lox_command(capsys, "show", tmp_path, "--json")[0] == 0
    assert lox_command(capsys, "show", tmp_path)[0] == 0
    pytest.importorskip("matplotlib")
    for arguments in ([], ["--log"]):
        assert lox_command(capsys, "plot", tmp_path, "-o", tmp_path / "x.png", *arguments)[0] == 0


def test_names_cannot_command_the_terminal(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0), {"rate": "\x1b[31mred"})
        for step in range(3):
            logger.log(state, {"evil\x1b[2J": step}, step=step)
    for arguments in (["show"], ["plot"], ["show", "-k", "\x1b[2J"], ["plot", "--by", "\x1b[2J"]):
        _, out, err = lox_command(capsys, arguments[0], tmp_path, *arguments[1:])
        assert "\x1b" not in out + err


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


def series(steps, values):
    return Series("", np.asarray(steps, float), np.asarray(values, float))


def test_the_mean_at_a_step_is_taken_over_the_runs_that_have_come_so_far():
    mean = over_runs("", [series([0, 2, 4], [0, 2, 4]), series([1, 3], [3, 5])], Look())
    assert describe(mean, Look()) == "mean of 1 to 2 runs ± std"
    assert mean.steps.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert mean.center.tolist() == [0.0, 2.0, 3.0, 4.0, 4.0]
    assert mean.low.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert mean.high.tolist() == [0.0, 3.0, 4.0, 5.0, 4.0]


def test_several_records_of_one_step_count_as_their_mean():
    mean = over_runs("", [series([0, 0, 1], [1, 3, 5]), series([0, 1, 1], [4, 6, 10])], Look())
    assert mean.center.tolist() == [3.0, 6.5]


def test_a_run_that_went_astray_is_seen_in_the_mean():
    for center in ("mean", "median", "iqm"):
        mean = over_runs("", [series([0, 1, 2], [1, np.nan, np.nan]), series([0, 1], [1, 1])], Look(center=center))
        assert np.isnan(mean.center).tolist() == [False, True, True]


def test_runs_of_very_many_different_steps_are_compared_at_fewer(monkeypatch):
    monkeypatch.setattr("lox.loggers._compare.curves._MOST_NUMBERS", 20)
    mean = over_runs("", [series(np.arange(100), np.arange(100)), series(np.arange(100) + 0.5, np.arange(100))], Look())
    assert len(mean.steps) == 10
    assert (mean.steps[0], mean.steps[-1]) == (0.0, 99.5)


def test_runs_without_a_common_axis_are_not_drawn_over_different_ones(capsys, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        logger.log(logger.init(jax.random.key(0)), {"loss": 1.0}, step=1)
        logger.log(logger.init(jax.random.key(1)), {"loss": 1.0}, epoch=1)
    status, _, err = lox_command(capsys, "plot", tmp_path)
    assert status == 1
    assert "no step axis of 'loss' in common: they have step, epoch" in err


def test_a_logarithmic_axis(capsys, runs, tmp_path):
    steps = np.arange(5.0)
    picture = draw(Panel("loss", "step", [Curve("a", steps, 10.0**-steps)]), Look(), 5, 5, log=True).splitlines()
    assert [line[12:] for line in picture[1:6]] == ["•", " •", "  •", "   •", "    •"]
    assert picture[1].split()[0] == "1"
    assert picture[5].split()[0] == "0.0001"
    band = Curve("a", steps, 10.0**-steps, 10.0**-steps - 0.5, 10.0**-steps + 0.5)
    assert draw(Panel("loss", "step", [band]), Look(), 5, 5, log=True).splitlines()[5].split()[0] == "0.0001"
    assert draw(Panel("x", "step", [Curve("", steps, -steps)]), Look(), 5, 5, log=True) == "x: no positive values\n"
    assert lox_command(capsys, "plot", runs, "-k", "loss", "--log")[0] == 0
    pytest.importorskip("matplotlib")
    assert lox_command(capsys, "plot", runs, "-k", "loss", "--log", "-o", tmp_path / "plot.png")[0] == 0


def test_legends_have_as_many_leading_digits_as_tell_the_runs_apart():
    assert short_names(["0123456789abcdef", "0123456700000000"]) == {
        "0123456789abcdef": "012345678",
        "0123456700000000": "012345670",
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
    assert [row["note"] for row in rows if "note" in row] == ["done"] * 60
    lox_command(capsys, "export", runs, "-o", tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 61


def test_export_to_parquet(capsys, runs, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert lox_command(capsys, "export", runs, "-o", tmp_path / "all.parquet")[0] == 0
    table = parquet.read_table(tmp_path / "all.parquet").to_pydict()
    assert len(table["run"]) == 60
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
        (["plot", ".", "-k", "x"], "there are no runs in"),
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
        "no key matches nothing. Available keys: loss, note, rng, train/v"
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
