"""CSV and JSON lines."""

import csv
import json
import os
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import CsvLogger, JsonlLogger, Run
from lox.loggers._backends.text.python_values import columns_to_python, to_python

NAME = "0000000000000000"


def lines(path):
    return [json.loads(line) for line in (path / f"{NAME}.jsonl").read_text().splitlines()]


def cells(path):
    with open(path / f"{NAME}.csv", newline="") as file:
        return list(csv.DictReader(file))


def log(kind, path, *records, **options):
    with kind(path, **options) as logger:
        state = logger.init(jax.random.key(0))
        for record, steps in records:
            logger.log(state, record, **steps)


def test_jsonl_has_one_object_for_each_record(tmp_path):
    record = {"loss": np.float32(0.1), "n": {"w": jnp.arange(3), "b": (True, 1 + 2j)}, "note": 'a "b"\n'}
    log(JsonlLogger, tmp_path, (record, {"step": 3}), ({"loss": 2}, {}))
    expected = {"step": 3, "loss": 0.1, "n/b/0": True, "n/b/1": [1.0, 2.0], "n/w": [0, 1, 2], "note": 'a "b"\n'}
    assert lines(tmp_path) == [expected, {"loss": 2}]


def test_jsonl_is_strict_json_also_where_numbers_are_not_finite(tmp_path):
    log(JsonlLogger, tmp_path, ({"x": jnp.asarray([jnp.nan, jnp.inf, -jnp.inf]), "y": float("nan")}, {}))

    def refuse(constant):
        raise AssertionError(constant)

    line = (tmp_path / f"{NAME}.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {"x": ["NaN", "Infinity", "-Infinity"], "y": "NaN"}


def test_csv_grows_columns_without_losing_a_cell(tmp_path):
    log(
        CsvLogger,
        tmp_path,
        ({"a": 1}, {"step": 0}),
        ({"b": 'x, "y"\nz'}, {"step": 1}),
        ({"a": 2, "c": jnp.arange(2)}, {"epoch": 5}),
    )
    assert cells(tmp_path) == [
        {"step": "0", "a": "1", "b": "", "epoch": "", "c": ""},
        {"step": "1", "a": "", "b": 'x, "y"\nz', "epoch": "", "c": ""},
        {"step": "", "a": "2", "b": "", "epoch": "5", "c": "[0, 1]"},
    ]
    assert sorted(file.name for file in tmp_path.glob("[!.]*")) == [f"{NAME}.csv", f"{NAME}.csv.columns.json"]


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_a_step_and_a_value_of_one_name_are_kept_apart(tmp_path, kind):
    log(kind, tmp_path, ({"step": 7, "loss": 1}, {"step": 0}), ({"epoch": 3}, {}), ({"loss": 2}, {"epoch": 9}))
    rows = cells(tmp_path) if kind is CsvLogger else lines(tmp_path)
    rows = [{label: int(cell) for label, cell in row.items() if cell != ""} for row in rows]
    assert rows == [{"step": 0, "step (value)": 7, "loss": 1}, {"epoch": 3}, {"epoch (step)": 9, "loss": 2}]


def test_keys_with_equal_steps_share_a_row(tmp_path):
    def f(xs):
        def body(c, i):
            lox.log({"loss": i * 2}, step=i)
            lox.log({"accuracy": i * 3}, step=i)
            return c, None

        return jax.lax.scan(body, 0, xs)[0]

    with JsonlLogger(tmp_path) as logger:
        logger.spool(f, logger.init(jax.random.key(0)))(jnp.arange(3))
    assert lines(tmp_path) == [{"step": i, "loss": 2 * i, "accuracy": 3 * i} for i in range(3)]


def test_two_values_of_one_name_are_kept_apart(tmp_path):
    log(JsonlLogger, tmp_path, ({"a/b": 1, "a": {"b": 2}}, {}), ({"a": {"b": 3}}, {}))
    assert lines(tmp_path) == [{"a/b": 1, "a/b (value)": 2}, {"a/b (value)": 3}]


@pytest.mark.parametrize(("kind", "suffix"), [(CsvLogger, "csv"), (JsonlLogger, "jsonl")])
def test_half_a_line_that_a_kill_left_is_cut_off_when_resumed(tmp_path, kind, suffix):
    records = [({"loss": i, "n": {"w": i}}, {"step": i}) for i in range(4)]
    log(kind, tmp_path, *records[:3])
    file = tmp_path / f"{NAME}.{suffix}"
    file.write_text(file.read_text()[:-4])
    log(kind, tmp_path, *records, if_exists="resume")
    rows = cells(tmp_path) if kind is CsvLogger else lines(tmp_path)
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3]
    assert [int(row["n/w"]) for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_resuming_an_empty_run_works(tmp_path, kind):
    log(kind, tmp_path)
    log(kind, tmp_path, ({"x": 1}, {"step": 1}), if_exists="resume")
    assert len(cells(tmp_path) if kind is CsvLogger else lines(tmp_path)) == 1


@pytest.mark.parametrize("odd", ["a\rb", "\r", "a\r\nb", "a\r"])
def test_carriage_returns_stay_in_their_cell(tmp_path, odd):
    """In keys and in text, also when the file is written anew with more columns, and when it is resumed."""
    log(CsvLogger, tmp_path, ({odd: 1}, {"step": 0}), ({"t": odd}, {"step": 1}))
    log(CsvLogger, tmp_path, ({"t": odd}, {"step": 1}), ({"later": 2}, {"step": 2}), if_exists="resume")
    assert cells(tmp_path) == [
        {"step": "0", odd: "1", "t": "", "later": ""},
        {"step": "1", odd: "", "t": odd, "later": ""},
        {"step": "2", odd: "", "t": "", "later": "2"},
    ]


@pytest.mark.parametrize("record", [{"x": 2}, {"new": 2}], ids=["append", "more columns"])
@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_a_file_that_is_deleted_under_the_writer_is_an_error_and_does_not_come_back(tmp_path, kind, record):
    with kind(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1}, step=0)
        logger.flush()
        (tmp_path / f"{NAME}{kind.suffix}").unlink()
        logger.log(state, record, step=1)
        with pytest.raises(lox.loggers.RecordError, match=f"{NAME}.*was deleted while its run was open"):
            logger.flush()
    assert [file.name for file in tmp_path.glob("[!.]*")] == [f"{NAME}{kind.suffix}.columns.json"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [(JsonlLogger, b"{\n"), (JsonlLogger, b"5\n"), (JsonlLogger, b"\xff\n"), (CsvLogger, b"a\n1,2\n")],
)
def test_resuming_a_damaged_file_is_an_error_that_names_it(tmp_path, kind, content):
    log(kind, tmp_path, ({"x": 1}, {}))
    (tmp_path / f"{NAME}{kind.suffix}").write_bytes(content)
    with pytest.raises(lox.loggers.RunFormatError, match=f"{NAME}{kind.suffix} is damaged"):
        log(kind, tmp_path, ({"x": 1}, {}), if_exists="resume")


@hypothesis.given(st.lists(st.floats(width=32), min_size=1))
def test_float32_is_given_in_few_digits_and_comes_back_exactly(numbers):
    few = np.asarray(numbers, np.float32)
    many = np.tile(few, 64)  # whose digits are found in another way
    for column in (few, many):
        (found,) = columns_to_python([column])
        assert np.array_equal(np.asarray(found, np.float32), column, equal_nan=True)
        assert list(map(repr, found)) == [repr(float(str(number))) for number in column]
        assert repr(to_python(column.reshape(1, -1))) == repr([found])
    assert repr(to_python(np.float32(0.1))) == "0.1"


def test_all_kinds_of_float32_are_given_in_the_fewest_digits():
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    powers = np.float32([sign * 10.0**e for e in range(-45, 39) for sign in (1, -1)])
    edges = np.nextafter(powers, np.float32(0))
    decimals = (np.arange(-5000, 5000) / np.float64(1000)).astype(np.float32)
    columns = [bits, powers, edges, decimals, np.arange(8), np.float32([[0.1, 0.2]])]
    found = columns_to_python(columns)
    for column, numbers in zip(columns[:4], found, strict=False):
        assert list(map(repr, numbers)) == [repr(float(text)) for text in column.astype(str)]
    assert found[4:] == [list(range(8)), [[0.1, 0.2]]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.float16(0.1), 0.1),
        (ml_dtypes.bfloat16(0.5), 0.5),
        (np.array(3, ml_dtypes.int4), 3),
        (np.complex64(1 - 2j), [1.0, -2.0]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([0.1, 0.5], np.float16), [0.1, 0.5]),
        (np.array([[1 - 2j]], np.complex64), [[[1.0, -2.0]]]),
        (np.array([b"text", b"\xff"]), ["text", "\ufffd"]),
        (np.zeros((2, 0), np.float32), [[], []]),
        (np.array("text"), "text"),
    ],
)
def test_plain_values(value, expected):
    assert to_python(value) == expected
    assert type(to_python(value)) is type(expected)


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    for kind, suffix in ((CsvLogger, "csv"), (JsonlLogger, "jsonl")):
        (tmp_path / f"{NAME}.{suffix}").write_text("mine\n")
        with kind(tmp_path) as logger:
            with pytest.raises(lox.loggers.RunExistsError):
                logger.open(Run(NAME))
            logger.init(jax.random.key(0))
            assert logger.runs[0].name == f"{NAME}-2"
        assert (tmp_path / f"{NAME}.{suffix}").read_text() == "mine\n"


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_a_disk_that_is_full_leaves_whole_lines_and_gets_the_rest_later(tmp_path, kind, monkeypatch):
    with kind(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1})
        logger.flush()
        real = os.write
        calls = []

        def write(descriptor, data):
            calls.append(data)
            if len(calls) > 1:
                raise OSError(28, "No space left on device")
            return real(descriptor, data[:3])

        monkeypatch.setattr("lox.loggers._files.os.write", write)
        logger.log(state, {"x": 2})
        logger.log(state, {"x": 3})
        with pytest.raises(OSError, match="No space left") as caught:
            logger.flush()
        assert caught.value.lost_records == 0
        monkeypatch.undo()
        rows = cells(tmp_path) if kind is CsvLogger else lines(tmp_path)
        assert [int(row["x"]) for row in rows] == [1]
        logger.log(state, {"x": 4})
    rows = cells(tmp_path) if kind is CsvLogger else lines(tmp_path)
    assert [int(row["x"]) for row in rows] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["csv", "jsonl", "save"])
def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch, name):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with lox.loggers.create(name, path="runs") as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1})
        logger.flush()
        monkeypatch.chdir(tmp_path / "elsewhere")
        logger.log(state, {"x": 2})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "runs"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_cells_of_any_length_survive_more_columns_and_a_resume(tmp_path):
    """The limit of the csv module is one for all of a process, and not ours to change."""
    long = "x" * 1001 + ',"\n'
    before = csv.field_size_limit(1000)
    try:
        log(CsvLogger, tmp_path, ({"t": long}, {"step": 0}), ({"loss": 1.0}, {"step": 1}))
        log(
            CsvLogger, tmp_path, ({"t": "again"}, {"step": 0}), ({"t": "a", "more": 2}, {"step": 2}), if_exists="resume"
        )
        assert csv.field_size_limit() == 1000
    finally:
        csv.field_size_limit(before)
    assert [row["t"] for row in cells(tmp_path)] == [long, "", "a"]
    assert [row["more"] for row in cells(tmp_path)] == ["", "", "2"]


def test_a_late_key_does_not_bring_the_file_into_memory(tmp_path):
    rows = 100_000
    with CsvLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        column = np.arange(rows, dtype=np.float64)
        logger.log(state, lox.logdict({"x": column}, steps={"step": {"x": np.arange(rows)}}, stacked=["x"]))
        logger.flush()
        size = (tmp_path / f"{NAME}.csv").stat().st_size
        tracemalloc.start()
        logger.log(state, {"late": 1.0}, step=5)
        logger.flush()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < size / 4
    found = cells(tmp_path)
    assert len(found) == rows + 1
    assert found[-1] == {"step": "5", "x": "", "late": "1.0"}


def test_half_a_record_whose_cell_has_lines_is_cut_off_when_resumed(tmp_path):
    """Its last newline is inside of it."""
    records = [({"t": f"two\nlines {i}"}, {"step": i}) for i in range(3)]
    log(CsvLogger, tmp_path, *records)
    file = tmp_path / f"{NAME}.csv"
    file.write_bytes(file.read_bytes()[:-4])
    log(CsvLogger, tmp_path, *records, if_exists="resume")
    assert [row["t"] for row in cells(tmp_path)] == [record["t"] for record, _ in records]


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
@pytest.mark.parametrize("if_exists", ["resume", "replace"])
def test_a_file_that_lox_did_not_write_is_left_alone(tmp_path, kind, if_exists):
    file = tmp_path / f"{NAME}{kind.suffix}"
    file.write_text("precious, and without a newline")
    with pytest.raises(lox.loggers.RunFormatError, match="is not a run that lox wrote"):
        log(kind, tmp_path, ({"x": 1}, {}), if_exists=if_exists)
    assert file.read_text() == "precious, and without a newline"


@pytest.mark.parametrize("kind", [CsvLogger, JsonlLogger])
def test_a_writer_that_was_killed_before_it_began_is_resumed_and_replaced(tmp_path, kind):
    for if_exists in ("resume", "replace"):
        (tmp_path / f"{NAME}{kind.suffix}").write_bytes(b"")
        (tmp_path / f"{NAME}{kind.suffix}.columns.json").unlink(missing_ok=True)
        log(kind, tmp_path, ({"x": 1}, {"step": 0}), if_exists=if_exists)
        assert len(cells(tmp_path) if kind is CsvLogger else lines(tmp_path)) == 1


def test_text_that_a_spreadsheet_would_execute_can_be_escaped(tmp_path):
    records = [({"=cmd()": 1, "note": "@SUM(A1)", "n": -1}, {"step": i}) for i in range(2)]
    log(CsvLogger, tmp_path, records[0], escape_formulas=True)
    log(CsvLogger, tmp_path, *records, escape_formulas=True, if_exists="resume")
    assert cells(tmp_path) == [{"step": str(i), "'=cmd()": "1", "note": "'@SUM(A1)", "n": "-1"} for i in range(2)]
