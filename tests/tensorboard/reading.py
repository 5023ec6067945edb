"""Reading runs back with TensorBoard's own readers, and writing tables of records by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, LegacyEventFileLoader

import lox

# TensorBoard keeps a sample of long series unless it is told to keep all of them.
EVERYTHING = {"scalars": 0, "histograms": 0, "images": 0, "audio": 0, "tensors": 0}


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=EVERYTHING).Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """For each tag, its steps and values, as TensorBoard shows them."""
    accumulator = read(folder)
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def raw_events(folder: Path) -> list[Any]:
    """Every event in every file of a run, checksums verified, purged or not."""
    return [event for path in files(folder) for event in LegacyEventFileLoader(str(path)).Load()]


def value_events(folder: Path) -> list[Any]:
    """Those of them that hold values."""
    return [event for event in raw_events(folder) if event.summary.value]


def modern_events(folder: Path) -> list[Any]:
    """The events after TensorBoard has brought them into the form that its page works with."""
    return [event for path in files(folder) for event in EventFileLoader(str(path)).Load()]


def files(folder: Path) -> list[Path]:
    return sorted(Path(folder).glob("events.out.tfevents.*"))


def run_folders(logdir: Path) -> list[Path]:
    return sorted(path for path in Path(logdir).iterdir() if path.is_dir())


def table(data: Mapping[str, Any], **steps: Any) -> lox.logdict:
    """Records by column, all of them with these steps."""
    by_axis = {axis: dict.fromkeys(data, np.asarray(numbers)) for axis, numbers in steps.items()}
    return lox.logdict(data, steps=by_axis, stacked=data.keys())


def join(*tables: lox.logdict) -> lox.logdict:
    """Keys with different steps in one delivery."""
    steps: dict[str, dict[str, Any]] = {}
    for part in tables:
        for axis, by_key in part.steps.items():
            steps.setdefault(axis, {}).update(by_key)
    data = {key: value for part in tables for key, value in part.items()}
    return lox.logdict(data, steps=steps, stacked=data.keys())
