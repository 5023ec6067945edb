"""A few rounds of each kind; `hatch run faults 100` plays as many as you like."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.records import check_columns, check_rows, record
from tests.faults.rounds import BACKENDS, MODES, Plan, Round, fault_server
from tests.forks import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with fault_server() as server:
        yield server


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "tensorboard":
        pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    return str(request.param)


@pytest.mark.parametrize("mode", MODES)
def test_kill_9_at_a_random_moment(server: Server, backend: str, mode: str, tmp_path: Path) -> None:
    plan = Plan.draw(backend, MODES.index(mode))
    assert plan.kind == "kill"
    assert plan.mode == mode
    one = Round(server, plan, tmp_path)
    one.play()
    assert one.killed == plan.lives


@pytest.mark.parametrize("kind", ["passing", "rival", "signals", "restored"])
def test_nothing_is_lost_to(server: Server, backend: str, kind: str, tmp_path: Path) -> None:
    plan = next(plan for seed in range(100) if (plan := Plan.draw(backend, seed)).kind == kind)
    one = Round(server, plan, tmp_path)
    one.play()
    assert one.killed == 0  # it came through, and `play` has read everything back


@pytest.mark.parametrize("operation", [2, 4, 5, 12])
def test_kill_9_at_a_file_operation(server: Server, backend: str, operation: int, tmp_path: Path) -> None:
    plan = Plan(backend, operation, "log", size=3, late=True, checkpoint=True, lives=1, completed=True)
    one = Round(server, plan, tmp_path)
    if one.die_of(operation=operation):
        one.complete()
    assert one.killed == 1 or backend == "jsonl"  # which has few


@pytest.mark.parametrize("byte", [700, 2000, 6001])
def test_death_in_the_middle_of_a_write(server: Server, backend: str, byte: int, tmp_path: Path) -> None:
    """A file is written up to that byte, and no further: half a row, half a line, half a record."""
    plan = Plan(backend, byte, "log", size=40, late=False, checkpoint=True, lives=1, completed=True)
    one = Round(server, plan, tmp_path)
    assert one.die_of(byte=byte)
    one.complete()


def columns(rows: int) -> dict[str, list[tuple[int, float]]]:
    return {name: [(step, float(step)) for step in range(rows)] for name in ("x", "v", "n/a")}


def lose_the_last(found: dict[str, Any]) -> None:
    found["v"].pop()


def lose_one_between(found: dict[str, Any]) -> None:
    del found["x"][3]


def repeat(found: dict[str, Any]) -> None:
    found["x"].append(found["x"][-1])


def swap(found: dict[str, Any]) -> None:
    found["x"][3:5] = reversed(found["x"][3:5])


def change(found: dict[str, Any]) -> None:
    found["n/a"][2] = (2, 7.0)


def lose_a_key(found: dict[str, Any]) -> None:
    del found["v"]


def invent_a_key(found: dict[str, Any]) -> None:
    found["y"] = [(0, 0.0)]


@pytest.mark.parametrize(
    "spoil", [lose_the_last, lose_one_between, repeat, swap, change, lose_a_key, invent_a_key], ids=lambda f: f.__name__
)
def test_the_check_notices_what_is_wrong(spoil: Any) -> None:
    check_columns(columns(10), acknowledged=10, late=False)
    check_columns(columns(12), acknowledged=10, late=False)
    spoilt = columns(10)
    spoil(spoilt)
    with pytest.raises(AssertionError):
        check_columns(spoilt, acknowledged=10, late=False)


def test_the_check_of_rows_notices_half_a_record() -> None:
    rows = [{"step": step, "x": step, "v": step, "n/a": step} for step in range(3)]
    check_rows(rows, late=False)
    del rows[1]["v"]
    with pytest.raises(AssertionError, match="row 1"):
        check_rows(rows, late=False)


def test_the_records_have_keys_that_come_later() -> None:
    assert "late/1" not in record(36, 3, late=True)
    assert record(37, 3, late=True)["late/1"] == 37
