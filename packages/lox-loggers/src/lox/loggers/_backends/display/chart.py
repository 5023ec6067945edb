"""Curves in a live display: characters on a terminal, a picture in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from lox._html.curve import PlotArea, SvgCurve, area_of, picture, shapes
from lox._html.numbers import short, whole
from lox._html.table import LINE, Markup, text
from lox.loggers._backends.display.board import Board
from lox.loggers._compare.characters import draw
from lox.loggers._compare.curves import Look, Panel, Series, over_runs
from lox.loggers._compare.html import to_svg

MOST_CHARTS = 6
_LOOK = Look()
_WIDTH, _HEIGHT = 400, 190
_MARGINS = (52, 26, 10, 22)  # left, top, right, bottom


def panels_of(board: Board, patterns: Sequence[str]) -> list[Panel]:
    """The mean over the runs, with a band, for each key that matches a pattern."""
    keys = [key for key in board.metrics() if any(fnmatchcase(key, pattern) for pattern in patterns)]
    return [panel for key in keys[:MOST_CHARTS] if (panel := _panel(board, key)) is not None]


def _panel(board: Board, key: str) -> Panel | None:
    trends = {run.name: run.history[key] for run in board.runs.values() if key in run.history}
    series = [
        Series(name, points[:, 0], points[:, 1])
        for name, trend in trends.items()
        if len(points := _sorted(np.asarray(trend.points(), np.float64).reshape(-1, 2)))
    ]
    axis = next(iter(trends.values())).axis or "record"
    return Panel(key, axis, [over_runs("", series, _LOOK)]) if series else None


def _sorted(points: np.ndarray) -> np.ndarray:
    placed = points[np.isfinite(points[:, 0])]
    return np.asarray(placed[np.argsort(placed[:, 0], kind="stable")])


class TerminalCharts:
    """For rich: charts as wide as the terminal."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self._panels = panels

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        width = max(20, min(options.max_width, 100) - 14)
        for panel in self._panels:
            yield Text(draw(panel, _LOOK, width, 10), no_wrap=True, overflow="crop")


def charts_html(panels: Sequence[Panel]) -> Markup:
    """The charts next to each other, as many as fit the width of the page."""
    drawn = "".join(map(_chart, panels))
    return Markup(f'<div style="display:flex;flex-wrap:wrap;gap:4px 20px">{drawn}</div>' if drawn else "")


def _chart(panel: Panel) -> Markup:
    curves = [to_svg(curve) for curve in panel.curves]
    left, top, right, bottom = _MARGINS
    title = _words(panel.label, left, 14, 'font-size="12" font-weight="600"')
    area = area_of(curves, left, top, _WIDTH - left - right, _HEIGHT - top - bottom)
    if area is None:
        nothing = _words("no finite values", _WIDTH / 2, _HEIGHT / 2, 'text-anchor="middle" opacity=".62"')
        return picture(title + nothing, _WIDTH, _HEIGHT, panel.label)
    lines = "".join(shapes(curve, area, LINE) for curve in map(_visible, curves))
    return picture(title + _grid(area, panel.axis) + lines, _WIDTH, _HEIGHT, panel.label)


def _visible(curve: SvgCurve) -> SvgCurve:
    """The curve without its band where the center has a gap."""
    return curve._replace(low=np.minimum(curve.low, curve.center), high=np.maximum(curve.high, curve.center))


def _grid(area: PlotArea, axis: str) -> str:
    """Lines at round values, with their numbers, and the first and last step."""
    marks = ""
    for value in _round_values(area.bottom, area.peak):
        (y,) = area.y(np.asarray([value]))
        marks += (
            f'<line x1="{area.left:g}" x2="{area.left + area.width:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" '
            'stroke-opacity=".14"/>'
        )
        marks += _words(short(value), area.left - 6, y + 4, 'text-anchor="end" opacity=".7"')
    low = area.top + area.height + 16
    marks += _words(whole(area.first), area.left, low, 'opacity=".7"')
    marks += _words(axis, area.left + area.width / 2, low, 'text-anchor="middle" opacity=".7"')
    marks += _words(whole(area.last), area.left + area.width, low, 'text-anchor="end" opacity=".7"')
    return marks


def _round_values(low: float, high: float) -> list[float]:
    """Two to five round numbers from low to high; a single one if low and high are equal."""
    distance = high / 2 - low / 2
    if not distance:
        return [low]
    unit = 10.0 ** np.floor(np.log10(distance))
    step = next(unit * factor for factor in (0.5, 1.0, 2.0, 5.0, 10.0) if distance / (unit * factor) <= 2)
    first, last = np.ceil(low / step), np.floor(high / step)
    if not np.isfinite([step, first, last]).all() or not 0 < last - first <= 10:
        return [low, high]
    return [float(number * step) for number in np.arange(first, last + 1)]


def _words(content: str, x: float, y: float, style: str) -> str:
    size = "" if "font-size" in style else 'font-size="11" '
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" {size}{style}>{_plain(content)}</text>'


def _plain(content: str) -> str:
    """Escaped text without the tooltips that only HTML has."""
    return text(content if len(content) <= 40 else f"{content[:18]}…{content[-21:]}")
