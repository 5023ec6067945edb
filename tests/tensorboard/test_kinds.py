"""Saying what a value is: the part that all backends share."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

import lox
from lox.loggers.kinds import KINDS, KindError, Kinds, KindTypeError, decode_text, flatten


def kinds(patterns=None, supported=KINDS):
    return Kinds(patterns, backend="SomeLogger", supported=supported)


def summary(columns):
    return [(column.name, column.key, column.kind) for column in columns]


class Stats(NamedTuple):
    mean: np.ndarray
    extremes: list


def test_scalars_arrays_and_strings_need_no_pattern():
    logs = {"a": np.zeros(3), "b": np.zeros((3, 2)), "c": np.array(["x", "y", "z"])}
    assert summary(kinds().columns(logs)) == [("a", "a", "scalar"), ("b", "b", "histogram"), ("c", "c", "text")]


def test_nested_values_are_named_after_key_and_leaf():
    logs = {"stats": Stats(np.zeros(2), [np.zeros(2), {"top": np.zeros(2)}])}
    assert summary(kinds().columns(logs)) == [
        ("stats/mean", "stats", "scalar"),
        ("stats/extremes/0", "stats", "scalar"),
        ("stats/extremes/1/top", "stats", "scalar"),
    ]


def test_the_first_pattern_that_matches_decides():
    chosen = kinds({"eval/image": "histogram", "*/image": "image", "*": "skip"})
    logs = {"eval/image": np.zeros((1, 2, 2)), "train/image": np.zeros((1, 2, 2)), "loss": np.zeros(1)}
    assert summary(chosen.columns(logs)) == [
        ("eval/image", "eval/image", "histogram"),
        ("train/image", "train/image", "image"),
    ]


def test_a_pattern_can_name_a_leaf_or_the_key_above_it():
    logs = {"obs": {"image": np.zeros((1, 2, 2)), "speed": np.zeros(1)}}
    assert summary(kinds({"*/image": "image"}).columns(logs))[0] == ("obs/image", "obs", "image")
    assert {column.kind for column in kinds({"obs": "image"}).columns(logs)} == {"image"}


def test_patterns_match_case():
    assert kinds({"Loss": "skip"}).of("loss") is None


def test_complex_values_are_two_columns():
    columns = kinds().columns({"z": np.array([1 + 2j, 3 - 4j])})
    assert summary(columns) == [("z/real", "z", "scalar"), ("z/imag", "z", "scalar")]
    assert columns[1].values.tolist() == [2, -4]


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_small_types_of_jax_become_float32(dtype):
    (column,) = kinds().columns({"x": np.array([1, 2, 3]).astype(dtype)})
    assert column.values.dtype == np.float32
    assert column.values.tolist() == [1, 2, 3]


def test_an_array_said_to_be_a_scalar_is_one_column_for_each_element():
    columns = kinds({"w": "scalar"}).columns({"w": np.arange(8).reshape(2, 2, 2)})
    assert [column.name for column in columns] == ["w/0/0", "w/0/1", "w/1/0", "w/1/1"]
    assert columns[3].values.tolist() == [3, 7]


def test_a_table_keeps_its_nested_value():
    value = {"x": np.zeros(2), "y": np.ones(2)}
    (column,) = kinds({"t": "table"}).columns({"t": value})
    assert (column.name, column.kind) == ("t", "table")
    assert column.values is value


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            {"*/image": "imag"},
            r"SomeLogger: kinds=\{'\*/image': 'imag'\}: 'imag' is an unknown kind. Did you mean 'image'",
        ),
        ({"clip": "video"}, r"'video' is not a kind that it can show.* It can show 'scalar', 'image', 'skip'"),
    ],
)
def test_an_unknown_kind_is_an_error_that_lists_those_there_are(patterns, message):
    with pytest.raises(KindError, match=message):
        kinds(patterns, supported=("scalar", "image"))


@pytest.mark.parametrize("patterns", [["*"], "image", {"a": 3}, {3: "image"}])
def test_kinds_of_a_wrong_type_are_a_type_error(patterns):
    with pytest.raises(KindTypeError, match="SomeLogger: kinds must map"):
        kinds(patterns)
    assert issubclass(KindTypeError, TypeError)
    assert issubclass(KindTypeError, lox.LoxError)


def test_two_values_of_one_name_are_an_error_that_names_both_keys():
    with pytest.raises(KindError, match="the keys 'a' and 'a/b' both hold a value named 'a/b'"):
        kinds().columns({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)})


@pytest.mark.parametrize("values", [np.zeros(2, "V4"), np.array([object()]), np.zeros(1, "datetime64[s]")])
def test_what_cannot_be_shown_is_an_error_that_names_the_value(values):
    with pytest.raises(KindTypeError, match="the value 'thing/leaf' has dtype"):
        kinds().columns({"thing": {"leaf": values}})


def test_strings_are_not_numbers():
    with pytest.raises(KindTypeError, match="'note' holds strings, which cannot be the kind 'image'"):
        kinds({"note": "image"}).columns({"note": np.array(["a"])})


def test_text_from_strings_and_from_padded_bytes():
    padded = np.zeros(12, np.uint8)
    padded[:6] = np.frombuffer("grün!".encode(), np.uint8)
    assert decode_text(padded, "note", "SomeLogger") == "grün!"
    assert decode_text(np.array("grün!"), "note", "SomeLogger") == "grün!"
    assert decode_text(np.array("grün!".encode()), "note", "SomeLogger") == "grün!"
    with pytest.raises(KindTypeError, match=r"'note' cannot be text: a record has dtype float64 and shape \(3,\)"):
        decode_text(np.zeros(3), "note", "SomeLogger")


def test_two_leaves_of_one_value_never_get_one_name():
    value = {"a/b": np.zeros(1), "a": {"b": np.ones(1)}}
    with pytest.raises(KindError, match="the key 'x' holds two values named 'x/a/b'; rename one"):
        list(flatten("x", value))
    assert [name for name, _ in flatten("x", {"a": {"b": np.ones(1)}, "c": (np.ones(1),)})] == ["x/a/b", "x/c/0"]
