"""Reading csv and JSON lines: those of lox by their legend, those of others when they are asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox.loggers
from lox.loggers import CsvLogger, JsonlLogger, RunFormatError, load


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_everything_comes_back(tmp_path, kind):
    with kind(tmp_path / "runs") as logger:
        state = logger.init(jax.random.key(0), {"rate": 0.1, "model": {"name": "mlp", "width": None}})
        logger.log(state, {"note": "begun", "depth": 2})
        for step in range(3):
            values = {
                "loss": jnp.float32(0.1 * step),
                "net": {"w": jnp.ones((2, 2)) * step, "b": (1, 2)},
                "big": 2**40 + step,
            }
            logger.log(state, values, step=step, epoch=step / 2)
            logger.log(state, {"step": 7 * step}, epoch=step)
    runs = load(tmp_path)
    (logs,) = runs.values()
    assert list(runs) == ["runs/0000000000000000"]
    assert runs.configs["runs/0000000000000000"] == {
        "rate": 0.1, "model": {"name": "mlp", "width": None}, "note": "begun", "depth": 2,
    }  # fmt: skip
    assert logs["loss"].tolist() == pytest.approx([0.0, 0.1, 0.2])
    assert logs["net"]["w"].shape == (3, 2, 2)
    assert logs["net"]["b"][1].tolist() == [2, 2, 2]
    assert logs["big"].tolist() == [2**40, 2**40 + 1, 2**40 + 2]
    assert logs["step"].tolist() == [0, 7, 14]  # a key of that name, next to the axis
    assert logs.steps["step"]["loss"].tolist() == [0, 1, 2]
    assert logs.steps["epoch"]["net"].tolist() == [0, 0.5, 1]
    assert "step" not in logs.steps["step"]
    some = load(tmp_path, keys="net/b/1")["runs/0000000000000000"]
    assert some["net"]["b"][1].tolist() == [2, 2, 2]


def test_values_that_change_their_shape_are_told_not_lost(tmp_path, capsys):
    from lox.loggers._cli.main import main

    with JsonlLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for step in range(3):
            logger.log(state, {"v": np.ones(step + 1), "loss": step}, step=step)
    runs = load(tmp_path)
    assert list(runs["0000000000000000"]) == ["loss"]
    assert runs.left_out["0000000000000000"] == {"v": "records of different shapes"}
    assert main(["show", str(tmp_path)]) == 0
    assert "not read: v (records of different shapes)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metrics.csv", "epoch,loss,name,flag\n0,1.5,a,True\n1,nan,b_1,False\n2,-inf,,True\n3,2"),
        (
            "metrics.jsonl",
            '{"epoch": 0, "loss": 1.5, "name": "a", "flag": true}\n{"epoch": 1, "loss": NaN, "name": "b_1", "flag": false}\n'
            '\n{"epoch": 2, "loss": "-Infinity", "name": null, "flag": true}\n{"epoch": 3, "lo',
        ),
    ],
)
def test_a_table_of_others_is_read_when_it_is_asked_for(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    logs = load(file)
    np.testing.assert_array_equal(logs["loss"], [1.5, np.nan, -np.inf])
    assert logs.steps["epoch"]["loss"].tolist() == [0, 1, 2]
    assert logs["name"].tolist() == ["a", "b_1"]
    assert logs["flag"].tolist() == [True, False, True]
    with pytest.raises(RunFormatError, match="there are no runs in"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,x\n1,2\n", "two columns have the same name"),
        ("a.csv", "x,y\n1\n", "a.csv is damaged: ValueError"),
        ("a.jsonl", "[1]\n", "a line is not a JSON object"),
        ("a.jsonl", "{\n", "a.jsonl is damaged: JSONDecodeError"),
        ("a.jsonl", "\x00\xff\n", "a.jsonl is damaged"),
        ("a.txt", "hello", "a.txt is not a run; installed readers: save"),
    ],
)
def test_files_that_are_no_tables_say_so(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(RunFormatError, match=message):
        load(tmp_path / name)


def test_one_run_in_two_formats_is_not_counted_twice(tmp_path):
    for kind in (CsvLogger, JsonlLogger):
        with kind(tmp_path) as logger:
            logger.log(logger.init(jax.random.key(0)), {"x": 1.0}, step=0)
    assert [logs["x"].tolist() for logs in load(tmp_path).values()] == [[1.0]]
    assert load(tmp_path, readers=["csv"])["0000000000000000"]["x"].tolist() == [1.0]


def test_an_empty_run_is_a_run_without_keys(tmp_path):
    for kind in ("csv", "jsonl", "save"):
        with lox.loggers.create(kind, path=tmp_path / kind) as logger:
            logger.init(jax.random.key(0))
    assert [dict(logs) for logs in load(tmp_path).values()] == [{}, {}, {}]
