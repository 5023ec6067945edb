"""`lox plot`."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence

import numpy as np

import lox
from lox.loggers._backends.display.numbers import short, whole
from lox.loggers._cli.show import load_runs, numeric_columns
from lox.loggers._delivery.run import short_names
from lox.loggers._errors import RunFormatError


@dataclasses.dataclass
class Curve:
    """Numbers over steps, with the range that they were taken from if they are means."""

    name: str
    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def plot(
    paths: Sequence[str], keys: Sequence[str], *, axis: str | None, output: str | None, each: bool, log: bool
) -> None:
    panels = collect(load_runs(paths, keys), axis, each, log)
    if output is None:
        for label, (step_name, curves) in panels.items():
            sys.stdout.write(draw(label, step_name, curves, *_size(), log=log))
    else:
        _save(panels, output, log)
        sys.stdout.write(f"wrote {output}\n")


def collect(
    runs: Mapping[str, lox.logdict], axis: str | None, each: bool, log: bool = False
) -> dict[str, tuple[str, list[Curve]]]:
    """For each value, the name of what it is plotted over, and the curves."""
    found: dict[str, tuple[str, list[Curve]]] = {}
    legend = short_names(runs)
    without: dict[str, str] = {}  # the keys that do not have the axis, and what they have
    for name, logs in runs.items():
        for key in logs:
            axes = [other for other, by_key in logs.steps.items() if key in by_key]
            if axis is not None and axis not in axes:
                without[key] = ", ".join(axes) or "no axis"
                continue
            step_name, steps = _steps(logs, key, axis or next(iter(axes), None))
            for label, column in numeric_columns(logs, key):
                found.setdefault(label, (step_name, []))[1].append(Curve(legend[name], steps, column))
    if without and not found:
        told = "; ".join(f"{key!r} has steps along {axes}" for key, axes in without.items())
        raise RunFormatError(f"no key has steps along {axis!r}: {told}")
    if each:
        return found
    return {label: (step_name, [over_runs(curves, log)]) for label, (step_name, curves) in found.items()}


def over_runs(curves: Sequence[Curve], log: bool = False) -> Curve:
    """The mean with a band, at each step over the runs that have come so far: one standard deviation, or, where a
    logarithmic axis would make that look like much more below than above, from the smallest to the largest."""
    if len(curves) == 1:
        return curves[0]
    steps = np.unique(np.concatenate([curve.steps for curve in curves]))
    values = np.zeros((len(curves), len(steps)))
    there = np.zeros((len(curves), len(steps)), bool)
    for row, curve in enumerate(curves):
        own, first = np.unique(curve.steps, return_index=True)
        there[row] = (steps >= own[0]) & (steps <= own[-1])
        values[row, there[row]] = np.interp(steps[there[row]], own, curve.mean[first])
    number = there.sum(0)
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        mean = values.sum(0) / number
        deviation = np.sqrt((np.where(there, values - mean, 0) ** 2).sum(0) / number)
    fewest = f"{number.min()} to " if number.min() < len(curves) else ""
    name = f"mean of {fewest}{len(curves)} runs"
    if log:
        low, high = np.where(there, values, np.inf).min(0), np.where(there, values, -np.inf).max(0)
        return Curve(f"{name}, min to max", steps, mean, low, high)
    return Curve(f"{name} ± std", steps, mean, mean - deviation, mean + deviation)


def _steps(logs: lox.logdict, key: str, axis: str | None) -> tuple[str, np.ndarray]:
    if axis is None:
        return "record", np.arange(logs.counts[key], dtype=np.float64)
    return axis, np.asarray(logs.steps[axis][key], np.float64)


def _size() -> tuple[int, int]:
    columns, lines = shutil.get_terminal_size((80, 24))
    return max(20, min(columns, 120) - 14), max(5, min(lines, 24) - 8)


def draw(label: str, step_name: str, curves: Sequence[Curve], width: int, height: int, *, log: bool = False) -> str:
    """A plot in characters: a mark for each curve, a shade for the band."""
    if log:
        curves = [_logarithmic(curve) for curve in curves]
    shown = np.concatenate([part for c in curves for part in (c.mean, c.low, c.high) if part is not None])
    finite = shown[np.isfinite(shown)]
    if not len(finite):
        return f"{label}: no {'positive' if log else 'finite'} values\n"
    low, high = float(finite.min()), float(finite.max())
    first, last = min(float(c.steps.min()) for c in curves), max(float(c.steps.max()) for c in curves)
    grid = [[" "] * width for _ in range(height)]

    def row_of(value: float) -> int:
        return height - 1 - round((value - low) / ((high - low) or 1) * (height - 1))

    at = np.linspace(first, last, width)
    for number, curve in enumerate(curves):
        order = np.argsort(curve.steps, kind="stable")

        def resampled(
            part: np.ndarray, steps: np.ndarray = curve.steps[order], order: np.ndarray = order
        ) -> np.ndarray:
            return np.interp(at, steps, part[order], np.nan, np.nan)

        if curve.low is not None and curve.high is not None:
            for column, (bottom, top) in enumerate(zip(resampled(curve.low), resampled(curve.high), strict=True)):
                if np.isfinite(bottom) and np.isfinite(top):
                    for row in range(row_of(top), row_of(bottom) + 1):
                        grid[row][column] = "░"
        for column, mean in enumerate(resampled(curve.mean)):
            if np.isfinite(mean):
                grid[row_of(mean)][column] = "•+x*o#"[number % 6]
    ends_of_y = [short(10**end if log else end) for end in (high, low)]
    lines = [f"{label} ({', '.join(c.name for c in curves)})"]
    for row, cells in enumerate(grid):
        margin = ends_of_y[row > 0] if row in (0, height - 1) else ""
        lines.append(f"{margin:>10} ┤{''.join(cells).rstrip()}")
    ends = f"{whole(first)}{whole(last):>{max(1, width - len(whole(first)))}}"
    return "\n".join([*lines, f"{'':>10} └{'─' * width}", f"{step_name:>10}  {ends}"]) + "\n"


def _logarithmic(curve: Curve) -> Curve:
    """The curve on a logarithmic scale. A band that reaches down to zero ends where the curve is lowest."""
    positive = curve.mean[curve.mean > 0]
    floor = positive.min() if len(positive) else np.nan

    def scaled(part: np.ndarray) -> np.ndarray:
        return np.log10(np.where(part > 0, part, np.nan))

    if curve.low is None or curve.high is None:
        return dataclasses.replace(curve, mean=scaled(curve.mean))
    low = np.where(curve.low > 0, curve.low, np.minimum(floor, curve.high))
    return dataclasses.replace(curve, mean=scaled(curve.mean), low=scaled(low), high=scaled(curve.high))


def _save(panels: Mapping[str, tuple[str, list[Curve]]], output: str, log: bool) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("lox plot --output needs matplotlib: pip install 'lox-loggers[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(panels), 1, figsize=(8, 3 * len(panels)), squeeze=False, layout="constrained")
    for axis, (label, (step_name, curves)) in zip(axes[:, 0], panels.items(), strict=True):
        for curve in curves:
            order = np.argsort(curve.steps, kind="stable")
            alone = "o" if len(order) == 1 else None  # a line through one point is not seen
            (line,) = axis.plot(curve.steps[order], curve.mean[order], marker=alone, label=curve.name)
            if curve.low is not None and curve.high is not None:
                axis.fill_between(
                    curve.steps[order], curve.low[order], curve.high[order], alpha=0.25, color=line.get_color(), lw=0
                )
        axis.set(xlabel=step_name, ylabel=label, yscale="log" if log else "linear")
        if len(curves) <= 12:
            axis.legend()
    figure.savefig(output)
    pyplot.close(figure)
