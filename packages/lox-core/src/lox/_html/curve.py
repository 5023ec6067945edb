"""Curves as inline SVG: a line through the centers, and a shade from low to high."""

from __future__ import annotations

import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lox._html.table import LINE, Markup, attribute

Floats = npt.NDArray[np.float64]
_POINTS = 75  # at most, in a small curve


class SvgCurve(NamedTuple):
    """Numbers over steps. Numbers that are not finite are gaps."""

    steps: Floats
    center: Floats
    low: Floats
    high: Floats


class PlotArea(NamedTuple):
    """A rectangle of a picture, and the ranges that it shows."""

    left: float
    top: float
    width: float
    height: float
    first: float
    last: float
    bottom: float
    peak: float

    def x(self, steps: Floats) -> Floats:
        return self.left + self.width * _share(steps, self.first, self.last)

    def y(self, values: Floats) -> Floats:
        return self.top + self.height * (1 - _share(values, self.bottom, self.peak))


def line(steps: Any, values: Any) -> SvgCurve:
    """A curve without a band."""
    numbers = np.asarray(values, np.float64)
    return SvgCurve(np.asarray(steps, np.float64), numbers, numbers, numbers)


def over_lanes(steps: Floats, values: Floats) -> SvgCurve:
    """Mean and standard deviation of the finite numbers at each step; lanes come first."""
    if len(values) == 1:
        return line(steps, values[0])
    finite = np.where(np.isfinite(values), values, np.nan)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without any finite number
        scale = np.nanmax(np.abs(finite), axis=0)
        scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
        center, deviation = np.nanmean(finite / scale, 0) * scale, np.nanstd(finite / scale, 0) * scale
        return SvgCurve(steps, center, center - deviation, center + deviation)


def thinned(curve: SvgCurve, most: int = _POINTS) -> SvgCurve:
    """The same curve with fewer points. Each is the mean of a group of points whose range the band covers: no peak is lost."""
    if len(curve.steps) <= most:
        return curve
    edges = np.linspace(0, len(curve.steps), most + 1).astype(int)
    shares = [slice(a, b) for a, b in itertools.pairwise(edges)]
    return SvgCurve(
        np.asarray([curve.steps[share].mean() for share in shares]),
        np.asarray([_finite(np.mean, curve.center[share]) for share in shares]),
        np.asarray([_finite(np.min, curve.low[share]) for share in shares]),
        np.asarray([_finite(np.max, curve.high[share]) for share in shares]),
    )


def sparkline(curve: SvgCurve, label: str = "", width: int = 150, height: int = 26, points: int = _POINTS) -> Markup:
    """A small picture without axes; empty if there is nothing to draw."""
    small = thinned(curve, points)
    area = area_of([small], 2, 3, width - 4, height - 6)
    if area is None or len(small.steps) < 2:
        return Markup("")
    return picture(shapes(small, area, LINE), width, height, label)


def area_of(curves: list[SvgCurve], left: float, top: float, width: float, height: float) -> PlotArea | None:
    """The area that holds all finite points of the curves; None if there are none."""
    values = np.concatenate([part for curve in curves for part in (curve.center, curve.low, curve.high)])
    finite = values[np.isfinite(values)]
    steps = np.concatenate([curve.steps for curve in curves])
    if not len(finite):
        return None
    ends = float(steps.min()), float(steps.max())
    return PlotArea(left, top, width, height, *ends, float(finite.min()), float(finite.max()))


def shapes(curve: SvgCurve, area: PlotArea, colour: str) -> str:
    """The band and the line."""
    x = area.x(curve.steps)
    band = line_path = ""
    for part in _stretches(np.isfinite(curve.center)):
        line_path += _path(x[part], area.y(curve.center[part]))
        # A band of no height would be invisible.
        if (curve.high[part] > curve.low[part]).any():
            there = np.concatenate([x[part], x[part][::-1]])
            edges = np.concatenate([area.y(curve.high[part]), area.y(curve.low[part])[::-1]])
            band += _path(there, edges) + "Z"
    shade = f'<path d="{band}" fill="{colour}" fill-opacity=".22" stroke="none"/>' if band else ""
    return (
        f'{shade}<path d="{line_path}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round" '
        'stroke-linecap="round"/>'
    )


def picture(inside: str, width: float, height: float, label: str = "") -> Markup:
    return Markup(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'role="img" aria-label="{attribute(label)}">{inside}</svg>'
    )


def _path(x: Floats, y: Floats) -> str:
    points = [f"{a:.1f},{b:.1f}".replace(".0", "") for a, b in zip(x, y, strict=True)]
    # A single point is a line of length 0. Its round ends make it a dot.
    return f"M{points[0]}L{' '.join(points[1:] or points)}"


def _stretches(there: npt.NDArray[np.bool_]) -> list[slice]:
    """The stretches without gaps, each drawn as one line."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    return [slice(a, b) for a, b in edges.reshape(-1, 2).tolist()]


def _share(numbers: Floats, low: float, high: float) -> Floats:
    # Halved, because the difference of two large floats can overflow.
    distance = high / 2 - low / 2
    return (numbers / 2 - low / 2) / distance if distance else np.full(len(numbers), 0.5)


def _finite(fold: Any, numbers: Floats) -> float:
    finite = numbers[np.isfinite(numbers)]
    with np.errstate(all="ignore"):
        return float(fold(finite)) if len(finite) else float("nan")
