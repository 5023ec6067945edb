"""From runs to curves: which axis they are drawn over, and which runs form one curve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import lox
from lox.loggers._compare import statistics
from lox.loggers._compare.columns import Array, axes_of, numeric_columns
from lox.loggers._delivery.names import short_names
from lox.loggers._errors import LoggerOptionError, RunFormatError
from lox.loggers._readers import config as configs
from lox.loggers._readers.runs import Runs

# The most numbers that are compared: if runs have different steps, the number of runs times the number of steps.
_MOST_NUMBERS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Look:
    """How runs become curves.

    Args:
      by: the config keys that group runs; without any, all runs of an experiment are one group.
      axis: the step axis to draw over; by default the first one that all runs have.
      center: mean, median, or iqm, the mean of the middle half.
      band: std, ci95, minmax or quartiles.
      each: draw a curve for each run instead.
      smooth: the weight of earlier records, from 0 to below 1.
    """

    by: tuple[str, ...] = ()
    axis: str | None = None
    center: str = "mean"
    band: str = "std"
    each: bool = False
    smooth: float = 0.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("center", self.center, statistics.CENTERS),
            ("band", self.band, statistics.BANDS),
        ):
            if value not in allowed:
                raise LoggerOptionError(f"{name}={value!r}; it must be one of {', '.join(map(repr, allowed))}")
        if not 0 <= self.smooth < 1:
            raise LoggerOptionError(f"smooth={self.smooth!r}; it must be at least 0 and less than 1")


@dataclasses.dataclass(frozen=True)
class Curve:
    """Numbers over steps, with a band if they are those of several runs."""

    name: str
    steps: Array
    center: Array
    low: Array | None = None
    high: Array | None = None
    runs: tuple[int, int] = (1, 1)
    """The number of runs at the step that has the fewest, and at the step that has the most."""
    run: str | None = None
    """The run, if it is the curve of a single one. The curves of a group have the same name."""


class Panel(NamedTuple):
    """The curves of one value."""

    label: str
    axis: str
    curves: list[Curve]


class Series(NamedTuple):
    """The records of one value in one run."""

    run: str
    steps: Array
    values: Array


def panels(
    experiments: Mapping[str, Runs], look: Look, wanted: Callable[[str], bool] = lambda label: True
) -> list[Panel]:
    """A panel for each value. Different experiments never share a curve."""
    groups = _groups(experiments, look)
    labels: dict[str, list[tuple[str, list[tuple[str, lox.logdict, str]]]]] = {}
    constant = set.intersection(*(runs.constants for runs in experiments.values())) if experiments else set()
    titles: dict[str, str] = {}
    for group, runs in groups:
        for name, logs in runs.items():
            for key in logs:
                if key in constant:
                    continue
                for column in numeric_columns(logs, key):
                    if wanted(column.label):
                        titles[column.label] = column.title
                        mine = labels.setdefault(column.label, [])
                        if not mine or mine[-1][0] != group:
                            mine.append((group, []))
                        mine[-1][1].append((name, logs, key))
    without: dict[str, str] = {}
    found = []
    for label, by_group in labels.items():
        everything = [(logs, key) for _, members in by_group for _, logs, key in members]
        axis = _axis(label, everything, look, without)
        if axis is None:
            continue
        curves = [
            curve
            for group, members in by_group
            for curve in _curves(
                group, [series_of(name, logs, key, label, axis, look) for name, logs, key in members], look
            )
        ]
        if curves:
            found.append(Panel(titles[label], axis, curves))
    if without and not found:
        listed = "; ".join(f"{label!r} has steps along {axes}" for label, axes in without.items())
        hint = ". A logger with time=True records it" if look.axis == "time" else ""
        raise RunFormatError(f"no key has steps along {look.axis!r}: {listed}{hint}")
    return found


def _groups(experiments: Mapping[str, Runs], look: Look) -> list[tuple[str, Runs]]:
    several = len(experiments) > 1
    groups = []
    for experiment, runs in experiments.items():
        for value, members in runs.by(*look.by).items() if look.by else [((), runs)]:
            values = (value,) if len(look.by) == 1 else value
            parts = [f"{key} = {configs.show(part)}" for key, part in zip(look.by, values, strict=True)]
            groups.append((", ".join(([experiment] if several else []) + parts), members))
    return groups


def _axis(label: str, members: Sequence[tuple[lox.logdict, str]], look: Look, without: dict[str, str]) -> str | None:
    """The axis that a value is drawn over; None if the value does not have the chosen axis."""
    axes = [axes_of(logs, key) for logs, key in members]
    if look.axis is not None:
        if all(look.axis in of_run for of_run in axes):
            return look.axis
        without[label] = ", ".join(dict.fromkeys(axis for of_run in axes for axis in of_run)) or "no axis"
        return None
    shared = [axis for axis in axes[0] if all(axis in of_run for of_run in axes)]
    if shared:
        return shared[0]
    if any(axes):
        there = ", ".join(dict.fromkeys(axis for of_run in axes for axis in of_run))
        raise RunFormatError(
            f"the runs have no step axis of {label!r} in common: they have {there}. Choose runs with --where"
        )
    return "record"


def series_of(name: str, logs: lox.logdict, key: str, label: str, axis: str, look: Look) -> Series:
    values = next(column.values for column in numeric_columns(logs, key) if column.label == label)
    steps = np.arange(len(values)) if axis == "record" and "record" not in axes_of(logs, key) else logs.steps[axis][key]
    steps = np.asarray(steps, np.float64).reshape(len(values), -1)[:, 0]
    placed = np.isfinite(steps)
    order = np.argsort(steps[placed], kind="stable")
    steps, values = steps[placed][order], values[placed][order]
    if look.smooth:
        values = statistics.smooth(values, look.smooth)
    return Series(name, steps, values)


def _curves(group: str, members: Sequence[Series], look: Look) -> list[Curve]:
    members = [series for series in members if len(series.steps)]
    if look.each:
        names = short_names([series.run for series in members])
        # With groups, the legend has one entry for each group.
        return [Curve(group or names[series.run], series.steps, series.values, run=series.run) for series in members]
    return [over_runs(group, members, look)] if members else []


def over_runs(name: str, members: Sequence[Series], look: Look) -> Curve:
    """The center of several runs with a band, at each step over the runs that have reached it."""
    if len(members) == 1:
        return Curve(name, members[0].steps, members[0].values)
    members = [_with_distinct_steps(series) for series in members]
    steps = _common_steps(members)
    values, there = np.zeros((len(members), len(steps))), np.zeros((len(members), len(steps)), bool)
    for row, series in enumerate(members):
        there[row] = (steps >= series.steps[0]) & (steps <= series.steps[-1])
        with np.errstate(all="ignore"):
            values[row, there[row]] = np.interp(steps[there[row]], series.steps, series.values)
    center, low, high = statistics.summarize(values, there, look.center, look.band)
    number = there.sum(0)
    return Curve(name, steps, center, low, high, (int(number.min()), len(members)))


def _common_steps(members: Sequence[Series]) -> Array:
    first = members[0].steps
    if all(np.array_equal(series.steps, first) for series in members[1:]):
        return first
    steps = np.unique(np.concatenate([series.steps for series in members]))
    most = max(2, _MOST_NUMBERS // len(members))
    return steps if len(steps) <= most else steps[np.linspace(0, len(steps) - 1, most).astype(int)]


def _with_distinct_steps(series: Series) -> Series:
    """The series with one number for each step: the mean, if a step has several records."""
    steps, first, number = np.unique(series.steps, return_index=True, return_counts=True)
    if len(steps) == len(series.steps):
        return series
    with np.errstate(all="ignore"):
        return Series(series.run, steps, np.add.reduceat(series.values, first) / number)


def describe(curve: Curve, look: Look) -> str:
    """What a curve of several runs shows: `mean of 16 runs, 95 % interval`."""
    fewest, most = curve.runs
    if most == 1:
        return ""
    runs = f"{most} runs" if fewest == most else f"{fewest} to {most} runs"
    return f"{look.center} of {runs}{_BAND_PHRASES[look.band]}"


_BAND_PHRASES = {"std": " ± std", "ci95": ", 95 % interval", "minmax": ", min to max", "quartiles": ", quartiles"}


def legend(curve: Curve, look: Look) -> str:
    """The legend entry of a curve. The caption has what all curves share."""
    phrase = describe(curve, look)
    return ": ".join(part for part in (curve.name, phrase) if part)


def as_data(found: Sequence[Panel], look: Look) -> list[dict[str, Any]]:
    """Curves as plain lists, for JSON."""

    def numbers(array: npt.NDArray[np.float64] | None) -> list[float] | None:
        return None if array is None else array.tolist()

    return [
        {
            "key": panel.label,
            "axis": panel.axis,
            "center": look.center,
            "band": look.band,
            "curves": [
                {
                    "name": curve.name,
                    "run": curve.run,
                    "runs": list(curve.runs),
                    "steps": numbers(curve.steps),
                    "values": numbers(curve.center),
                    "low": numbers(curve.low),
                    "high": numbers(curve.high),
                }
                for curve in panel.curves
            ],
        }
        for panel in found
    ]
