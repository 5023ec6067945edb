"""The contents of a run's files as logs.

The step axes of a name are those that `define_metric` gave it, and other axes that its rows have. A name without any axis
gets the axis `step`, wandb's own count of rows, unless it was logged only once. `time` is the time since the run began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

import lox
from lox.loggers import Recording, RunFormatError, StoredRun
from lox.loggers.backend import describe_histogram
from lox.wandb._runfile import MAGIC, Row, RunReader, parse_json, row_of


def display_name(files: Sequence[Path]) -> str:
    """The display name of the run; empty if no file has it."""
    for file in reversed(files):
        try:
            for record in RunReader(file).records():
                if record.WhichOneof("record_type") == "run":
                    return str(record.run.display_name)
        except (RunFormatError, OSError):
            continue  # the error is raised when the run is read
    return ""


def read_run(run: StoredRun) -> Recording:
    rows: list[Row] = []
    axes = _Axes()
    config: dict[str, Any] = {}
    order: tuple[int, ...] = ()
    for file in run.files:
        for record in _records(file):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                rows.append(_flat(row_of(record.history)))
            elif kind == "metric":
                axes.define(record.metric)
            elif kind == "run":
                order = order or (record.run.start_time.seconds, record.run.start_time.nanos)
                _update(config, record.run.config)
            elif kind == "config":
                _update(config, record.config)
    config.pop("_wandb", None)
    left_out: dict[str, str] = {}
    return Recording(_logs(rows, axes, left_out), config, order, left_out)


def _records(file: Path) -> Iterator[Any]:
    with file.open("rb") as start:
        head = start.read(len(MAGIC))
    if not MAGIC.startswith(head):
        raise RunFormatError(f"{file} is damaged: it does not begin like a file of wandb")
    yield from RunReader(file, check=True).records()


def _update(config: dict[str, Any], change: Any) -> None:
    for item in change.update:
        *parents, leaf = list(item.nested_key) or [item.key]
        place = config
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = parse_json(item.value_json)
    for item in change.remove:
        config.pop(item.key or item.nested_key[0], None)


class _Axes:
    """Which names are step axes, and which other names they belong to."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}  # names, or patterns of them
        self._bare: dict[str, None] = {}

    def define(self, metric: Any) -> None:
        name = metric.name.replace("\\.", ".") or metric.glob_name
        if metric.step_metric:
            self._of[name] = metric.step_metric
        elif metric.name and not metric.HasField("summary"):
            self._bare[name] = None

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self._of.values(), *self._bare]))

    def of(self, name: str, rows: Sequence[Row]) -> list[str]:
        """The axes of a name that has these rows, its own first."""
        own = [axis for pattern, axis in self._of.items() if pattern == name or fnmatchcase(name, pattern)]
        return [axis for axis in dict.fromkeys([*own, *self.names]) if all(_is_number(row.get(axis)) for row in rows)]


def _logs(rows: Sequence[Row], axes: _Axes, left_out: dict[str, str]) -> lox.logdict:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        for name in sorted(row):  # their order in a row is random
            if not name.startswith("_"):
                by_name.setdefault(name, []).append(row)
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    steppers = set(axes.names)
    for name, mine in by_name.items():
        if name in steppers and any(len(_names(row)) > 1 for row in mine):
            continue  # it is read as the steps of others
        own = {axis: [row[axis] for row in mine] for axis in axes.of(name, mine) if axis != name}
        if not own and len(mine) > 1 and all("_step" in row for row in mine):
            own["step"] = [row["_step"] for row in mine]
        if own and all("_runtime" in row for row in mine):
            own.setdefault("time", [row["_runtime"] for row in mine])
        try:
            data[name] = _column([row[name] for row in mine])
        except (ValueError, TypeError):
            left_out[name] = _kind(mine[0][name])
            continue
        for axis, numbers in own.items():
            steps.setdefault(axis, {})[name] = np.asarray(numbers)
    return lox.logdict(data, steps=steps, stacked=list(data))


def _names(row: Row) -> list[str]:
    return [name for name in row if not name.startswith("_")]


def _column(values: Sequence[Any]) -> Any:
    """The values of a name as arrays. Raises a ValueError if they are media, or do not fit together."""
    if all(isinstance(value, Mapping) and value.get("_type") == "histogram" for value in values):
        each = [describe_histogram(value["values"], value["bins"]) for value in values]
        return {name: np.asarray([value[name] for value in each]) for name in each[0]}
    if len({isinstance(value, str) for value in values}) > 1:
        raise ValueError("text and numbers")
    array = np.asarray(values)
    if array.dtype == object:
        raise ValueError("neither numbers nor text")
    return array


def _kind(value: Any) -> str:
    return str(value.get("_type", "an object")) if isinstance(value, Mapping) else "records of different kinds"


def _flat(row: Row, prefix: str = "") -> Row:
    """Nested values by their path. Objects that wandb stores, such as histograms, stay whole."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and "_type" not in value and not {"values", "bins"} <= value.keys():
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            is_histogram = isinstance(value, dict) and {"values", "bins"} <= value.keys()
            flat[f"{prefix}{name}"] = {**value, "_type": "histogram"} if is_histogram else value
    return flat


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
