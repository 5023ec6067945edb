"""`if_exists="resume"`: what is there already is decided alike by all backends that keep whole records."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers._delivery.resume import WrittenSteps

NAME = "0000000000000000"
BACKENDS = ["save", "csv", "jsonl"]


def rows(backend, path):
    with open(path / f"{NAME}.{backend}", newline="") as file:
        return list(csv.DictReader(file)) if backend == "csv" else [json.loads(line) for line in file]


def values(backend, path, label):
    if backend == "save":
        logs = lox.loggers.load(path / NAME)
        return np.asarray(logs[label]).tolist() if label in logs else []
    return [float(row[label]) for row in rows(backend, path) if row.get(label) not in (None, "")]


def log(backend, path, *records):
    with lox.loggers.create(backend, path=path, if_exists="resume") as logger:
        state = logger.init(jax.random.key(0))
        for record, steps in records:
            logger.log(state, record, **steps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_are_prefixes_of_others_have_steps_of_their_own(tmp_path, backend):
    """Killed between two calls: `loss/policy` is one record ahead of `loss`."""
    first = [({key: float(i)}, {"step": i}) for i in range(5) for key in ("loss/policy", "loss")]
    log(backend, tmp_path, *first[:-1])
    log(
        backend,
        tmp_path,
        *[({key: float(i)}, {"step": i}) for i in range(3, 8) for key in ("loss/policy", "loss", "eval")],
    )
    assert values(backend, tmp_path, "loss/policy") == values(backend, tmp_path, "loss") == [float(i) for i in range(8)]
    assert values(backend, tmp_path, "eval") == [float(i) for i in range(3, 8)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_key_above_one_that_is_there_loses_nothing(tmp_path, backend):
    log(backend, tmp_path, *[({"eval/score": 1.0}, {"step": i}) for i in range(5)])
    log(backend, tmp_path, *[({"eval": float(i)}, {"step": i}) for i in range(2, 8)])
    assert values(backend, tmp_path, "eval") == [float(i) for i in range(2, 8)]


STEPS = {
    "nan": [float("nan"), 1.0, 2.0],
    "infinities": [float("inf"), -float("inf"), 1.0],
    "negative": [-5, -1, 0],
    "above 2**31": [2**31 - 1, 2**31, 2**31 + 1],
    "above 2**53": [2**53, 2**53 + 1, 2**53 + 2],
    "the largest": [2**63 - 1, 2**63 - 2],
    "uint64": [np.uint64(2**63), np.uint64(2**64 - 1)],
    "fractions": [0.1, 0.2, 0.30000000000000004],
    "float32": [np.float32(0.1), np.float32(0.2), np.float32(1 / 3)],
    "float16": [np.float16(0.1), np.float16(0.2)],
    "bfloat16": [jnp.bfloat16(0.1), jnp.bfloat16(0.2)],
    "small and mixed": [1, 2.5, np.uint8(3)],
    "bool": [True, False],
    "huge": [1e300, 1e308],
    "tiny": [5e-324],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_known_again_and_no_other_is(tmp_path, backend, name):
    steps = STEPS[name]
    for stop in (1, len(steps), len(steps)):
        log(backend, tmp_path, *[({"v": float(i)}, {"step": step}) for i, step in enumerate(steps[:stop])])
    assert values(backend, tmp_path, "v") == [float(i) for i in range(len(steps))]


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
def test_whole_numbers_that_no_float_holds_beside_a_fraction(tmp_path, backend):
    steps = [2**53 + 1, 0.5]
    log(backend, tmp_path, *[({"v": float(i)}, {"step": step}) for i, step in enumerate(steps)])
    log(backend, tmp_path, ({"v": 2.0}, {"step": 2**53}), *[({"v": 9.0}, {"step": step}) for step in steps])
    assert values(backend, tmp_path, "v") == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_float_axis_of_a_scan_is_written_once(tmp_path, backend):
    def solve(x):
        def step(x, t):
            lox.log({"x": x}, t=t)
            return x * 0.9, None

        return jax.lax.scan(step, x, jnp.arange(20) * 0.1)[0]

    for _ in range(2):
        with lox.loggers.create(backend, path=tmp_path, if_exists="resume") as logger:
            logger.spool(solve, logger.init(jax.random.key(0)))(jnp.float32(1))
    assert len(values(backend, tmp_path, "x")) == 20


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
def test_a_value_and_an_axis_of_one_name_keep_their_labels(tmp_path, backend):
    log(backend, tmp_path, ({"epoch": 7.0}, {}), ({"loss": 0.5}, {"epoch": 1}))
    log(backend, tmp_path, ({"loss": 0.4}, {"epoch": 2}), ({"loss": 9.0}, {"epoch": 1}), ({"epoch": 8.0}, {}))
    assert values(backend, tmp_path, "epoch") == [7.0, 8.0]
    assert values(backend, tmp_path, "epoch (step)") == [1.0, 2.0]
    assert values(backend, tmp_path, "loss") == [0.5, 0.4]


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
def test_labels_that_look_like_made_up_ones_do_not_collide(tmp_path, backend):
    records = [({"a (step)": 1.0}, {}), ({"a": 2.0}, {}), ({"z": 3.0}, {"a": 4}), ({"a (value)": 5.0}, {"b": 1})]
    for record in records:
        log(backend, tmp_path, record)
    found = [{k: float(v) for k, v in row.items() if v not in (None, "")} for row in rows(backend, tmp_path)]
    assert found == [{"a (step)": 1.0}, {"a": 2.0}, {"a (step 2)": 4.0, "z": 3.0}, {"b": 1.0, "a (value)": 5.0}]


@pytest.mark.parametrize("backend", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "damage", [b"", b"null", b"[1]", b'{"format": 9, "columns": {}}', b'{"format": 1, "columns": {"a": 5}}']
)
def test_a_damaged_legend_is_an_error_that_names_it(tmp_path, backend, damage):
    log(backend, tmp_path, ({"x": 1.0}, {"step": 0}))
    (tmp_path / f"{NAME}.{backend}.columns.json").write_bytes(damage)
    with pytest.raises(lox.loggers.RunFormatError, match=rf"{NAME}\.{backend}\.columns\.json is damaged"):
        log(backend, tmp_path, ({"x": 1.0}, {"step": 0}))


def test_a_step_is_known_by_value_whatever_its_dtype():
    for there, new in [(np.int64([3]), np.float32([3])), (np.float64([2.0**62]), np.int64([2**62]))]:
        known = WrittenSteps({"x": {"step": there}}, "here")
        table = lox.logdict({"x": np.ones(1)}, steps={"step": {"x": new}}, stacked=["x"])
        assert "x" not in known.unwritten(table)


def test_large_unsigned_steps_are_not_taken_for_negative_ones():
    known = WrittenSteps({"x": {"step": np.int64([-1])}}, "here")
    table = lox.logdict({"x": np.ones(1)}, steps={"step": {"x": np.uint64([2**64 - 1])}}, stacked=["x"])
    assert "x" in known.unwritten(table)
