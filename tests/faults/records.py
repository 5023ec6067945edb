"""What the programs of a fault round log at which step, and so what has to be found afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# For each key the step and the value of each record, as a plain reader finds them. An array is one number, since all
# of its elements are the step.
Columns = dict[str, list[tuple[int, float]]]

LATE_KEYS = 4
SEEDS = 4  # runs of the modes that have several
GROWS_AT = 90  # from here on, a number that was an int8 needs more


def record(step: int, size: int, late: bool) -> dict[str, Any]:
    """The record of a step. With `late`, there are keys that come later, and a dtype that grows."""
    values: dict[str, Any] = {"x": float(step), "v": np.full(size, step, np.float32), "n": {"a": step}}
    if late:
        values["grows"] = np.int8(step) if step < GROWS_AT else np.int64(step)
        values |= {f"late/{k}": step for k in range(1, LATE_KEYS + 1) if _is_logged(f"late/{k}", step)}
    return values


def names(late: bool) -> list[str]:
    extra = ["grows", *(f"late/{k}" for k in range(1, LATE_KEYS + 1))] if late else []
    return ["x", "v", "n/a", *extra]


def _is_logged(name: str, step: int) -> bool:
    if not name.startswith("late/"):
        return True
    k = int(name.removeprefix("late/"))
    return step >= 37 * k and step % k == 0


def check_columns(found: Columns, acknowledged: int, late: bool, complete: int | None = None) -> None:
    """Each key holds the first of its records, in order and unchanged, and at least those that were acknowledged."""
    assert set(found) <= set(names(late)), sorted(found)
    for name in names(late):
        rows = found.get(name, [])
        due = sum(_is_logged(name, step) for step in range(acknowledged))
        assert len(rows) >= due, (
            f"{name}: {acknowledged} rows were acknowledged, so {due} of this key; {len(rows)} left"
        )
        expected = _first(name, len(rows))
        assert rows == [(step, float(step)) for step in expected], f"{name}: {_difference(rows, expected)}"
        if complete is not None:
            whole = sum(_is_logged(name, step) for step in range(complete))
            assert len(rows) == whole, f"{name}: {len(rows)} rows instead of {whole}"


def check_rows(rows: Iterable[Mapping[str, Any]], late: bool) -> None:
    """Where a record is one line: each has all that its record had, and none is missing in between."""
    for step, row in enumerate(rows):
        expected = {"step"} | {name for name in names(late) if _is_logged(name, step)}
        assert set(row) == expected, f"row {step} has {sorted(row)}"


def _first(name: str, count: int) -> list[int]:
    steps: list[int] = []
    step = 0
    while len(steps) < count:
        if _is_logged(name, step):
            steps.append(step)
        step += 1
    return steps


def _difference(rows: list[tuple[int, float]], expected: list[int]) -> str:
    for i, (row, step) in enumerate(zip(rows, expected, strict=True)):
        if row != (step, float(step)):
            return f"row {i} is {row} instead of {(step, float(step))}; around it: {rows[max(0, i - 3) : i + 3]}"
    return "?"
