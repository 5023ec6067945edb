"""Curves drawn in characters, for terminals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from lox.loggers._backends.display.numbers import short, whole
from lox.loggers._compare.columns import Array
from lox.loggers._compare.curves import Curve, Look, Panel, legend

_MARKS = "•+x*o#@%&$"


def draw(panel: Panel, look: Look, width: int, height: int, *, log: bool = False) -> str:
    """A chart with a mark for each curve and a shade for its band."""
    title, entries = _legend(panel, look)
    curves = [_logarithmic(curve) for curve in panel.curves] if log else panel.curves
    shown = np.concatenate([part for c in curves for part in (c.center, c.low, c.high) if part is not None])
    finite = shown[np.isfinite(shown)]
    if not len(finite):
        return f"{title}: no {'positive' if log else 'finite'} values\n"
    low, high = float(finite.min()), float(finite.max())
    first, last = min(float(c.steps.min()) for c in curves), max(float(c.steps.max()) for c in curves)
    grid = _Grid(width, height, low, high)
    at = np.linspace(first, last, width)
    for curve in curves:
        if curve.low is not None and curve.high is not None:
            grid.shade(_resampled(curve.low, curve, at), _resampled(curve.high, curve, at))
    names = _names(panel)
    for curve in curves:
        grid.mark(_resampled(curve.center, curve, at), _mark(names.index(curve.name), len(names)))
    ends_of_y = [short(10**end if log else end) for end in (high, low)]
    lines = [title, *entries]
    for row, cells in enumerate(grid.cells):
        margin = ends_of_y[row > 0] if row in (0, height - 1) else ""
        lines.append(f"{margin:>10} ┤{''.join(cells).rstrip()}")
    ends = f"{whole(first)}{whole(last):>{max(1, width - len(whole(first)))}}"
    return "\n".join([*lines, f"{'':>10} └{'─' * width}", f"{panel.axis:>10}  {ends}"]) + "\n"


class _Grid:
    def __init__(self, width: int, height: int, low: float, high: float) -> None:
        self.cells = [[" "] * width for _ in range(height)]
        self._height, self._low, self._high = height, low, high

    def shade(self, bottoms: Array, tops: Array) -> None:
        for column, (bottom, top) in enumerate(zip(bottoms, tops, strict=True)):
            if np.isfinite(bottom) and np.isfinite(top):
                for row in range(self._row(top), self._row(bottom) + 1):
                    self.cells[row][column] = "░"

    def mark(self, values: Array, mark: str) -> None:
        for column, value in enumerate(values):
            if np.isfinite(value):
                self.cells[self._row(value)][column] = mark

    def _row(self, value: float) -> int:
        # Halved, because the difference of two large floats can overflow.
        span = (self._high / 2 - self._low / 2) or 1.0
        share = min(max((value / 2 - self._low / 2) / span, 0.0), 1.0)
        return self._height - 1 - round(share * (self._height - 1))


def _legend(panel: Panel, look: Look) -> tuple[str, list[str]]:
    """The title, and a line for each curve if there are several."""
    names = _names(panel)
    if len(panel.curves) == 1:
        named = legend(panel.curves[0], look)
        return f"{panel.label} ({named})" if named else panel.label, []
    if len(names) > len(_MARKS):
        kind = "runs" if look.each else "curves"
        return f"{panel.label} ({len(panel.curves)} {kind}; choose some with --where, or group them with --by)", []
    first = {curve.name: curve for curve in reversed(panel.curves)}
    entries = [f"{'':>12}{mark} {legend(first[name], look)}" for mark, name in zip(_MARKS, names, strict=False)]
    return panel.label, entries


def _names(panel: Panel) -> list[str]:
    return list(dict.fromkeys(curve.name for curve in panel.curves))


def _mark(number: int, curves: int) -> str:
    return _MARKS[number] if curves <= len(_MARKS) else _MARKS[0]


def _resampled(part: Array, curve: Curve, at: Array) -> Array:
    if len(part) == 1:  # a single point is drawn where it is
        near = np.zeros(len(at), bool)
        near[np.abs(at - curve.steps[0]).argmin()] = True
        return np.where(near, part[0], np.nan)
    with np.errstate(all="ignore"):
        return np.interp(at, curve.steps, part, np.nan, np.nan)


def _logarithmic(curve: Curve) -> Curve:
    """The curve on a logarithmic scale. A band that reaches down to zero ends where the curve is lowest."""
    with np.errstate(all="ignore"):
        positive = curve.center[curve.center > 0]
        floor = positive.min() if len(positive) else np.nan

        def scaled(part: Array) -> Array:
            return np.log10(np.where(part > 0, part, np.nan))

        if curve.low is None or curve.high is None:
            return dataclasses.replace(curve, center=scaled(curve.center))
        low = np.where(curve.low > 0, curve.low, np.minimum(floor, curve.high))
        return dataclasses.replace(curve, center=scaled(curve.center), low=scaled(low), high=scaled(curve.high))


def draw_all(panels: Sequence[Panel], look: Look, width: int, height: int, *, log: bool = False) -> str:
    return "\n".join(draw(panel, look, width, height, log=log) for panel in panels)
