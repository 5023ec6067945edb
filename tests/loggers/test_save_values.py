"""SaveLogger: values of every dtype and structure."""

import contextlib
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import RecordError, Run, SaveLogger, load
from tests.loggers.saving import save, table

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
]


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_jax_comes_back_bit_for_bit(tmp_path, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    folder = save(tmp_path, table({"x": rows}))
    np.load(folder / "x.npy", allow_pickle=False)
    back = load(folder)["x"]
    assert back.dtype == dtype
    assert back.tobytes() == rows.tobytes()


def test_keys_of_every_kind_come_back_as_keys(tmp_path):
    def f(key):
        lox.log({"key": key, "nested": {"keys": jax.random.split(key, 2)}})

    for impl in ("threefry2x32", "rbg"):
        for transform in ("spool", "tap"):
            with SaveLogger(tmp_path / impl / transform) as logger:
                state = logger.init(jax.random.key(0))
                jax.jit(getattr(logger, transform)(f, state))(jax.random.key(3, impl=impl))
                logger.log(state, {"key": jax.random.key(4, impl=impl)})
            (logs,) = load(tmp_path / impl / transform).values()
            assert str(jax.random.key_impl(logs["key"])) == impl
            assert jax.random.key_data(logs["key"]).tolist() == [
                jax.random.key_data(jax.random.key(seed, impl=impl)).tolist() for seed in (3, 4)
            ]
            assert logs["nested"]["keys"].shape == (1, 2)


def test_nested_values_come_back_nested_and_unknown_classes_as_dicts(tmp_path):
    value = {"a": [np.ones(2), (np.zeros(2), {"b": np.ones((2, 3))})], "pair": Pair(np.ones(2), {"x": np.ones(2)})}
    back = load(save(tmp_path, table({"v": value})))["v"]
    expected = {**value, "pair": {"first": np.ones(2), "second": {"x": np.ones(2)}}}
    assert jax.tree.structure(back) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(np.array_equal, back, expected))


def test_a_dtype_that_has_to_grow_does(tmp_path):
    writer = SaveLogger(tmp_path).open(Run("run"))
    for value in (np.array([True]), np.array([2], np.int32), np.array([0.5]), np.array([1j])):
        writer.write(table({"x": value}))
        writer.flush()
    writer.write(table({"half": np.array([1], ml_dtypes.bfloat16)}))
    writer.flush()
    writer.write(table({"half": np.array([0.1], np.float32)}))
    writer.write(table({"text": np.array(["a"])}))
    writer.write(table({"text": np.array(["longer"])}))
    writer.close()
    logs = load(tmp_path / "run")
    assert logs["x"].tolist() == [1, 2, 0.5, 1j]
    assert (logs["half"].dtype, logs["half"].tolist()) == (np.float32, [1.0, float(np.float32(0.1))])
    assert logs["text"].tolist() == ["a", "longer"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (table({"x": np.ones((1, 2))}), table({"x": np.ones((1, 3))}), r"shape \(2,\) and now has \(3,\)"),
        (table({"x": np.ones(1)}), table({"x": {"a": np.ones(1)}}), "one array with no steps and now has"),
        (table({"x": np.ones(1)}, {"step": [0]}), table({"x": np.ones(1)}), "steps step and now has .* no steps"),
        (table({"x": np.ones(1)}), table({"x": np.array(["a"])}), "no dtype holds both"),
    ],
)
def test_records_that_do_not_fit_are_named_and_the_others_are_written(tmp_path, first, second, message):
    writer = SaveLogger(tmp_path).open(Run("run"))
    writer.write(first)
    with pytest.raises(RecordError, match=message) as caught:
        writer.write(second | table({"y": [5]}))
    writer.write(first)
    assert "'x'" in str(caught.value)
    assert caught.value.lost_records == 1
    writer.close()
    logs = load(tmp_path / "run")
    assert len(logs["x"]) == 2
    assert logs["y"].tolist() == [5]


def test_nothing_is_ever_pickled(tmp_path):
    with SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        with pytest.raises(TypeError, match="cannot be logged"):
            logger.log(state, {"x": np.array([object()])})
    writer = SaveLogger(tmp_path).open(Run("other"))
    with pytest.raises(RecordError, match="object"):
        writer.write(table({"x": np.array([object()])}))


@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([2**53 + 1, 0.5], [2**53 + 1]),
        ([0.5, 2**53 + 1], [0.5]),
        ([1731790000123456789, float("nan")], [1731790000123456789]),
        ([np.uint64(2**64 - 1), np.int64(-1)], [2**64 - 1]),
        ([2**53, 0.5], [2.0**53, 0.5]),
        ([2**60, 0.5], [2.0**60, 0.5]),  # a float holds it exactly
        ([3 + 2**53, 1 + 2j], [3 + 2**53]),
    ],
)
def test_whole_numbers_are_kept_exactly_or_the_record_is_refused(tmp_path, values, kept, gathered):
    with pytest.raises(RecordError, match="cannot be kept exactly") if len(kept) == 1 else contextlib.nullcontext():
        with SaveLogger(tmp_path) as logger:
            state = logger.init(jax.random.key(0))
            for step, value in enumerate(values):
                logger.log(state, {"v": value}, step=step)
                if not gathered:
                    logger.flush()
    logs = load(tmp_path)["0000000000000000"]
    assert (logs["v"].tolist(), logs.step["v"].tolist()) == (kept, list(range(len(kept))))


def test_steps_are_kept_exactly_too(tmp_path):
    with pytest.raises(RecordError, match=f"{2**53 + 1} cannot be kept exactly"), SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for step in (2**53 + 1, 0.5):
            logger.log(state, {"v": 1.0}, step=step)
    assert load(tmp_path)["0000000000000000"].step["v"].tolist() == [2**53 + 1]
