"""Loggers that keep files, and what is in those files, by plain readers and by key."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import lox.loggers

_HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None
BACKENDS = [
    "save",
    "csv",
    "jsonl",
    pytest.param("tensorboard", marks=pytest.mark.skipif(not _HAS_TENSORBOARD, reason="not installed")),
]
INSTALLED = ["save", "csv", "jsonl", *(["tensorboard"] if _HAS_TENSORBOARD else [])]


def make(backend: str, folder: Path, **options: Any) -> lox.loggers.Logger:
    place = {"logdir" if backend == "tensorboard" else "path": folder}
    return lox.loggers.create(backend, **place, **options)


def place_of(backend: str, folder: Path, name: str) -> Path:
    """The file or the folder of a run."""
    return folder / (f"{name}.{backend}" if backend in ("csv", "jsonl") else name)


def rows_of(backend: str, folder: Path, name: str) -> dict[str, list[tuple[int, Any]]]:
    """For each key, the step and the value of each record. Cells of a csv file are text."""
    place = place_of(backend, folder, name)
    if backend == "save":
        logs = lox.loggers.load(place)
        return {key: list(zip(logs.step[key].tolist(), logs[key].tolist(), strict=True)) for key in logs}
    if backend == "tensorboard":
        from tests.tensorboard.reading import scalars

        return scalars(place)
    csv.field_size_limit(sys.maxsize)
    with place.open(encoding="utf-8", errors="surrogatepass", newline="") as lines:
        rows = list(csv.DictReader(lines)) if backend == "csv" else [json.loads(line) for line in lines]
    found: dict[str, list[tuple[int, Any]]] = {}
    for row in rows:
        step = int(row.pop("step"))
        for key, cell in row.items():
            if cell != "":
                found.setdefault(key, []).append((step, cell))
    return found


def numbers(rows: list[tuple[int, Any]]) -> list[tuple[int, float]]:
    return [(step, float(value)) for step, value in rows]
