"""`load` of a folder: `Runs`, which can be narrowed, grouped, stacked and made a table of."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerWarning, RunFormatError, Runs, SaveLogger, UnreadableRunsError, load


@pytest.fixture
def sweep(tmp_path):
    """Three rates, two seeds each, logged once and without steps."""
    with SaveLogger(tmp_path / "sweep") as logger:
        for number, rate in enumerate([0.1, 0.01, 1.0]):
            for seed in range(2):
                state = logger.init(jax.random.key(10 * number + seed))
                logger.log(state, {"rate": jnp.float32(rate), "seed": seed, "model": {"width": 8 * (number + 1)}})
                for step in range(3 + seed):
                    logger.log(state, {"loss": rate * step, "grad": {"w": 1.0, "b": [step, 2.0]}}, step=step)
    return tmp_path / "sweep"


def test_what_was_logged_once_and_without_steps_is_config(sweep):
    runs = load(sweep)
    assert isinstance(runs, Runs)
    assert list(runs.configs.values())[:2] == [
        {"rate": 0.1, "seed": 0, "model/width": 8},
        {"rate": 0.1, "seed": 1, "model/width": 8},
    ]
    assert runs.constants == {"rate", "seed", "model"}
    assert "rate" in next(iter(runs.values()))  # it is still in the logs


def test_where_narrows(sweep):
    runs = load(sweep)
    for chosen in (
        runs.where(rate=0.01),
        runs.where(rate=np.float32(0.01)),
        runs.where({"model/width": 16}),
        runs.where(lambda config: config["rate"] < 0.05),
        runs.where(rate=0.01).where({"model/width": 16}),
    ):
        assert list(chosen) == ["000000000000000a", "000000000000000b"]
        assert isinstance(chosen, Runs)
    assert list(runs.where({"seed": 1}, rate=1.0)) == ["0000000000000015"]
    assert len(runs.where(rate="0.01")) == 0
    assert len(runs.where(seed=True)) == 0


def test_by_groups_in_the_order_of_the_values(sweep):
    runs = load(sweep)
    groups = runs.by("rate")
    assert list(groups) == [0.01, 0.1, 1.0]
    assert [len(group) for group in groups.values()] == [2, 2, 2]
    assert list(runs.by("rate", "seed")) == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1), (1.0, 0), (1.0, 1)]
    means = {rate: group.stack(pad=True)["loss"].max() for rate, group in groups.items()}
    assert means == pytest.approx({0.01: 0.03, 0.1: 0.3, 1.0: 3.0})


def test_a_group_has_the_runs_whose_values_are_equal():
    given = {
        str(i): config
        for i, config in enumerate([{"a": 1}, {"a": 1.0}, {"a": "1"}, {}, {"a": [1]}, {"a": float("nan")}])
    }
    groups = Runs(dict.fromkeys(given, lox.logdict()), given).by("a")
    assert [list(group) for group in groups.values()] == [["0", "1"], ["5"], ["2"], ["4"], ["3"]]
    assert next(iter(groups)) == 1
    assert list(groups[None]) == ["3"]
    assert list(groups["[1]"]) == ["4"]


@pytest.mark.parametrize("ask", [lambda runs: runs.by("lr"), lambda runs: runs.where(lr=1)])
def test_a_key_that_no_run_has_is_an_error_that_says_what_there_is(sweep, ask):
    with pytest.raises(RunFormatError, match="no run has 'lr' in its config. Available: rate, seed, model/width"):
        ask(load(sweep))


def test_keys_reads_some_only(sweep):
    run = next(iter(load(sweep, keys="loss").values()))
    assert list(run) == ["loss"]
    run = next(iter(load(sweep, keys=["grad/b/1", "lo*"]).values()))
    assert run["grad"]["b"][1].tolist() == [2.0] * 3
    assert list(run) == ["loss", "grad"]
    with pytest.raises(
        RunFormatError, match=r"no key matches los. Available keys: grad/b/0, .*, loss, model/width, rate, seed"
    ):
        load(sweep, keys="los")
    with pytest.raises(lox.LoxError, match="keys must be"):
        load(sweep, keys=3)


def test_a_run_that_was_resumed_keeps_its_config(tmp_path):
    for _ in range(2):
        with SaveLogger(tmp_path, if_exists="resume") as logger:
            logger.log(logger.init(jax.random.key(0)), {"rate": 0.1, "v": jnp.ones(2)})
    assert list(load(tmp_path).configs.values()) == [{"rate": 0.1, "v": [1.0, 1.0]}]


def test_stacked_runs_of_different_length_are_filled_up(sweep):
    runs = load(sweep)
    with pytest.raises(RunFormatError, match=r"3 and 4 records of 'loss'; load\(path\).stack\(pad=True\) pads"):
        runs.stack()
    stacked = runs.stack(pad=True)
    assert stacked["loss"].shape == (6, 4)
    assert stacked["grad"]["b"][0].tolist()[0] == [0, 1, 2, 0]
    assert stacked.counts["loss"].tolist() == [3, 4] * 3
    one = jax.tree.map(lambda leaf: leaf[0], stacked).trim()
    assert one["loss"].shape == (3,)
    assert one.step["loss"].tolist() == [0, 1, 2]


def test_stacked_runs_may_lack_a_key(tmp_path):
    with SaveLogger(tmp_path) as logger:
        for seed, record in enumerate([{"x": 1.0, "y": jnp.ones(2)}, {"x": 2.0}]):
            logger.log(logger.init(jax.random.key(seed)), record, step=seed)
    with pytest.raises(RunFormatError, match="only one of them has 'y'"):
        load(tmp_path, stack=True)
    stacked = load(tmp_path).stack(pad=True)
    assert stacked["y"].tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]]
    assert stacked.counts["y"].tolist() == [1, 0]
    assert load(tmp_path, True, keys="x")["x"].tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (({"x": jnp.ones(3)}, {"step": 0}), r"a record of 'x' has the shape \[\(\)\] in one and \[\(3,\)\]"),
        (({"x": 1.0}, {"epoch": 0}), r"'x' has the step axes \['step'\] in one and \['epoch'\]"),
    ],
)
def test_runs_that_cannot_be_stacked_say_why(tmp_path, other, message):
    with SaveLogger(tmp_path) as logger:
        for seed, (record, steps) in enumerate([({"x": 1.0}, {"step": 0}), other]):
            logger.log(logger.init(jax.random.key(seed)), record, **steps)
    for pad in (False, True):
        with pytest.raises(RunFormatError, match=message):
            load(tmp_path).stack(pad=pad)


def test_a_tidy_table(sweep):
    pytest.importorskip("pandas")
    table = load(sweep, keys=["loss", "rate", "seed"]).to_pandas()
    assert table.columns.tolist() == ["run", "rate", "seed", "step", "loss"]
    assert len(table) == 3 * 7
    assert table.iloc[1].tolist() == ["0000000000000000", 0.1, 0, 1, 0.1]
    means = table[table["step"] == 2].groupby("rate")["loss"].mean().to_dict()
    assert means == pytest.approx({0.01: 0.02, 0.1: 0.2, 1.0: 2.0})


def test_a_table_of_runs_with_a_config_only_and_of_none(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = Runs(
        {"a": lox.logdict(), "b": lox.logdict({"x": np.arange(2)}, stacked=["x"])}, {"a": {"n": [1, 2]}}
    ).to_pandas()
    assert table["run"].tolist() == ["a", "b", "b"]
    assert table["n"][0] == [1, 2]
    assert pandas.isna(table["n"][1])
    assert len(Runs({}).to_pandas()) == 0


def test_a_name_that_is_config_and_metric_is_an_error():
    pytest.importorskip("pandas")
    logs = lox.logdict({"loss": np.arange(2)}, stacked=["loss"])
    with pytest.raises(RunFormatError, match="'loss' is both in its config and a key"):
        Runs({"a": logs}, {"a": {"loss": "mse"}}).to_pandas()


def test_runs_are_found_at_any_depth_and_named_by_the_way_to_them(tmp_path):
    for place, seed in (("a/b", 1), ("a/c/d", 2), (".", 3)):
        with SaveLogger(tmp_path / place) as logger:
            logger.log(logger.init(jax.random.key(seed)), {"x": seed}, step=0)
    (tmp_path / ".git" / "0").mkdir(parents=True)
    (tmp_path / ".git" / "0" / "lox.json").write_text("not a run")
    assert list(load(tmp_path)) == ["a/b/0000000000000001", "a/c/d/0000000000000002", "0000000000000003"]
    assert list(load(tmp_path / "a" / "c")) == ["d/0000000000000002"]
    assert load(tmp_path / "a/b/0000000000000001")["x"].tolist() == [1]


def test_a_run_with_another_below_it_is_not_taken_for_all_there_is(tmp_path):
    with SaveLogger(tmp_path) as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 0}, step=0)
    with SaveLogger(tmp_path / "0000000000000000" / "more") as logger:
        logger.log(logger.init(jax.random.key(1)), {"x": 1}, step=0)
    assert list(load(tmp_path / "0000000000000000")) == [".", "more/0000000000000001"]


def test_bad_files_are_named_and_the_others_are_read(sweep):
    names = list(load(sweep))
    (sweep / names[1] / "lox.json").write_text("{")
    (sweep / names[4] / "loss.npy").write_bytes(b"nothing")
    with pytest.raises(UnreadableRunsError) as caught:
        load(sweep)
    message = str(caught.value)
    assert message.startswith("2 of 6 runs cannot be read:\n")
    assert f"{sweep / names[1]}/lox.json is damaged" in message
    assert f"{sweep / names[4]}/loss.npy is damaged" in message
    assert list(caught.value.runs) == [name for name in names if name not in (names[1], names[4])]
    assert len(caught.value.errors) == 2
    with pytest.warns(LoggerWarning, match="2 of 6 runs cannot be read"):
        runs = load(sweep, on_error="warn")
    assert len(runs) == 4
    with pytest.raises(RunFormatError, match="is damaged") as alone:
        load(sweep / names[1])
    assert not isinstance(alone.value, UnreadableRunsError)


def test_options_are_checked(tmp_path):
    with pytest.raises(lox.LoxError, match="on_error='ignore'; it must be 'raise' or 'warn'"):
        load(tmp_path, on_error="ignore")
    with pytest.raises(lox.LoxError, match="no reader 'svae' is installed; installed: .*save"):
        load(tmp_path, readers="svae")


def test_an_unknown_run_says_which_there_are(sweep):
    with pytest.raises(KeyError, match="no run 'x'. Runs: 0000000000000000, .* and 1 more"):
        load(sweep)["x"]


# Readers of others.


def publish(folder, monkeypatch, points):
    info = folder / "other_lox-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-lox\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lox.readers]\n" + points)
    monkeypatch.syspath_prepend(str(folder))


def test_anyone_can_publish_a_reader(tmp_path, monkeypatch):
    (tmp_path / "lox_numbers.py").write_text(
        """
import numpy as np
import lox
from lox.loggers import Reader, Recording, RunFormatError

class NumbersReader(Reader):
    patterns = ("*.numbers",)

    def read(self, run, wanted):
        try:
            numbers = np.asarray([float(line) for line in run.files[0].read_text().split()])
        except ValueError as error:
            raise RunFormatError(f"{run.files[0]}: {error}") from error
        return Recording(lox.logdict({"x": numbers}, stacked=["x"]), {"length": len(numbers)})
"""
    )
    publish(tmp_path, monkeypatch, "numbers = lox_numbers:NumbersReader\n")
    runs = tmp_path / "runs"
    (runs / "deep").mkdir(parents=True)
    (runs / "deep" / "a10.numbers").write_text("1 2 3")
    (runs / "deep" / "a9.numbers").write_text("4")
    (runs / "bad.numbers").write_text("one")
    with pytest.raises(UnreadableRunsError, match=r"bad.numbers: could not convert") as caught:
        load(runs)
    found = caught.value.runs
    assert list(found) == ["deep/a9", "deep/a10"]
    assert found.where(length=3)["deep/a10"]["x"].tolist() == [1.0, 2.0, 3.0]
    assert load(runs / "deep" / "a9.numbers")["x"].tolist() == [4.0]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (
            "bad = no_such_module:Reader",
            r"'bad' \(no_such_module:Reader from other-lox 1\) cannot be used: ModuleNotFound",
        ),
        ("bad = json:dumps", "is not a subclass of lox.loggers.Reader"),
        ("bad = lox.loggers:Reader", "cannot be used: TypeError"),
        ("save = lox.loggers._readers.save:Reader", "cannot be used|claimed twice"),
    ],
)
def test_a_reader_that_cannot_be_used_is_an_error_and_can_be_left_out(tmp_path, monkeypatch, point, message):
    publish(tmp_path, monkeypatch, point + "\n")
    with SaveLogger(tmp_path / "runs") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1}, step=0)
    with pytest.raises(lox.LoxError, match=message):
        load(tmp_path / "runs")
    if not point.startswith("save"):
        assert len(load(tmp_path / "runs", readers=["save"])) == 1


def test_a_run_that_two_readers_find_is_read_once_by_the_first_or_the_one_that_is_named(tmp_path, monkeypatch):
    (tmp_path / "lox_twin.py").write_text(
        "from lox.loggers._readers.save import SaveReader\nclass Twin(SaveReader):\n    pass\n"
    )
    publish(tmp_path, monkeypatch, "twin = lox_twin:Twin\n")
    with SaveLogger(tmp_path / "runs") as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1}, step=0)
    for readers in (None, "save", "twin"):
        assert len(load(tmp_path / "runs", readers=readers)) == 1


def test_the_manifest_is_json_for_everyone(sweep):
    run = next(iter(load(sweep)))
    assert json.loads((sweep / run / "lox.json").read_text())["run"] == run
