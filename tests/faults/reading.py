"""Reading what a killed process left, with plain readers: numpy, csv, json, and TensorBoard's own."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import lox.loggers
from tests.faults.records import Columns, check_rows


def read_save(folder: Path, name: str, late: bool) -> Columns:
    """Every file by `np.load`, read and mapped; the manifest says which belong together."""
    run = folder / name
    for file in run.glob("*.npy"):
        rows = np.load(file, allow_pickle=False)
        assert np.array_equal(np.load(file, mmap_mode="r", allow_pickle=False), rows), file
    if not (run / "lox.json").exists():
        assert not list(run.glob("*.npy")), f"{run}: files without a manifest"
        return {}
    found: Columns = {}
    for key, info in json.loads((run / "lox.json").read_text())["logs"].items():
        (column,) = info["values"]
        files = [run / info["steps"]["step"]["file"], run / column["file"]]
        if not all(file.exists() for file in files):
            continue  # the manifest may be ahead of them
        steps, values = map(np.load, files)
        # Files of a key are written one after the other; a row is there when it is in all of them.
        there = min(len(steps), len(values))
        label = "/".join([key, *(str(part) for _, part in column["path"])])
        found[label] = list(zip(steps[:there].tolist(), map(_number, values[:there]), strict=True))
    _check_load(run, found)
    return found


def _check_load(run: Path, found: Columns) -> None:
    """`lox.loggers.load` finds the same."""
    logs = lox.loggers.load(run)
    loaded = {("n/a" if key == "n" else key): (value["a"] if key == "n" else value) for key, value in logs.items()}
    assert {label: len(rows) for label, rows in found.items() if rows} == {k: len(rows) for k, rows in loaded.items()}
    for label, rows in loaded.items():
        assert [_number(value) for value in rows] == [value for _, value in found[label]]


def read_csv(folder: Path, name: str, late: bool) -> Columns:
    header, *lines = whole_lines(folder / f"{name}.csv") or [""]
    labels = next(csv.reader([header]), [])
    cells = list(csv.reader(lines))
    assert all(len(row) == len(labels) for row in cells), "a row without all of its cells"
    rows = [{label: json.loads(cell) for label, cell in zip(labels, row, strict=True) if cell} for row in cells]
    return _columns(rows, late)


def read_jsonl(folder: Path, name: str, late: bool) -> Columns:
    return _columns([json.loads(line) for line in whole_lines(folder / f"{name}.jsonl")], late)


def whole_lines(file: Path) -> list[str]:
    """The lines that have their end: of the last one, a kill in the middle of a write may have left only a part."""
    return file.read_text("utf-8").split("\n")[:-1] if file.exists() else []


def _columns(rows: list[dict[str, Any]], late: bool) -> Columns:
    check_rows(rows, late)
    found: Columns = {}
    for row in rows:
        step = row.pop("step")
        for label, value in row.items():
            found.setdefault(label, []).append((step, _number(value)))
    return found


def read_tensorboard(folder: Path, name: str, late: bool) -> Columns:
    from tests.tensorboard.reading import modern_events, read

    if not (folder / name).exists():
        return {}
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of every resumed run
    modern_events(folder / name)  # TensorBoard's loader also checks the checksum of every record
    accumulator = read(folder / name)
    found: Columns = {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }
    for tag in accumulator.Tags()["histograms"]:
        events = accumulator.Histograms(tag)
        for event in events:
            assert event.histogram_value.min == event.histogram_value.max, f"{tag} at step {event.step}"
        found[tag] = [(event.step, event.histogram_value.min) for event in events]
    return found


def _number(value: Any) -> float:
    array = np.ravel(np.asarray(value, np.float64))
    assert (array == array[0]).all(), "an array of which only a part was written"
    return float(array[0])


READERS: Mapping[str, Callable[[Path, str, bool], Columns]] = {
    "save": read_save,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "tensorboard": read_tensorboard,
}


def acknowledged_rows(file: Path) -> dict[int, int]:
    """For each seed, how many rows were flushed before the process died."""
    rows: dict[int, int] = {}
    for line in _complete(file):
        seed, count = map(int, line.split())
        rows[seed] = max(count, rows.get(seed, 0))
    return rows


def _complete(file: Path) -> Iterable[str]:
    return file.read_text().splitlines() if file.exists() else ()
