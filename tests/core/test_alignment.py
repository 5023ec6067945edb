"""Which records share a row: the two forms of the rule agree, and each key keeps its records."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from lox._logdict.alignment import in_order, merge_labels, merge_steps, number_labels

LINES = st.lists(st.tuples(st.integers(-2, 3), st.integers(-2, 3)), min_size=1, max_size=8)


def rows_of_lists(keys):
    """All rows in order, and the row of each record of each key."""
    rows = list(dict.fromkeys(row for labels in keys for row in number_labels(labels)))
    ordered = in_order(rows, keys)
    return [label for label, _ in ordered], [[ordered.index(row) for row in number_labels(labels)] for labels in keys]


def rows_of_arrays(keys):
    merged, places = merge_labels([np.array(labels, np.int64) for labels in keys])
    return list(map(tuple, merged.tolist())), [mine.tolist() for mine in places]


def rows_of_steps(keys, scale=1.0):
    """Steps may be numbers of any kind: here floats, by axis."""
    steps = [[scale * np.array(axis, np.float32) for axis in zip(*labels, strict=True)] for labels in keys]
    places = merge_steps(steps, list(map(len, keys)))
    rows = dict(
        sorted(
            (row, label)
            for mine, labels in zip(places, keys, strict=True)
            for row, label in zip(mine.tolist(), labels, strict=True)
        )
    )
    return list(rows.values()), [mine.tolist() for mine in places]


@hypothesis.given(keys=st.lists(LINES | LINES.map(sorted), min_size=1, max_size=4))
def test_lists_and_arrays_give_the_same_rows(keys):
    assert rows_of_arrays(keys) == rows_of_lists(keys)
    assert rows_of_steps(keys, 0.5) == rows_of_lists(keys)


@pytest.mark.parametrize("rows_of", [rows_of_lists, rows_of_arrays, rows_of_steps])
def test_the_nth_record_of_a_step_meets_the_nth_of_the_others(rows_of):
    rows, places = rows_of([[(1, 0), (1, 0), (2, 0)], [(1, 0), (3, 0)]])
    assert rows == [(1, 0), (1, 0), (2, 0), (3, 0)]
    assert places == [[0, 1, 2], [0, 3]]


@pytest.mark.parametrize("rows_of", [rows_of_lists, rows_of_arrays, rows_of_steps])
def test_where_steps_do_not_rise_rows_come_as_they_first_appear(rows_of):
    assert rows_of([[(2, 0), (1, 0)], [(0, 0)]])[0] == [(2, 0), (1, 0), (0, 0)]
    assert rows_of([[(1, 5), (1, 4)], [(0, 0)]])[0] == [(1, 5), (1, 4), (0, 0)]


def test_labels_without_steps_are_numbered():
    assert number_labels([(), ()]) == [((), 0), ((), 1)]


def test_steps_without_axes_are_numbered_and_a_nan_meets_a_nan():
    assert [mine.tolist() for mine in merge_steps([[], []], [2, 3])] == [[0, 1], [0, 1, 2]]
    nan = np.array([0.0, np.nan])
    assert [mine.tolist() for mine in merge_steps([[nan], [nan[1:]]], [2, 1])] == [[0, 1], [1]]
