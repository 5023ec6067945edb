"""Curves as a matplotlib figure, small and plain enough for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox.loggers._compare.curves import Curve, Look, Panel, describe

# Okabe and Ito's colours, which colour-blind people can also distinguish.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_INSIDE = 7  # the most entries of a legend that fit into the axes
_PER_COLUMN = 20
_MOST_ENTRIES = 60
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "pdf.fonttype": 42,  # text in a PDF stays editable
    "svg.fonttype": "none",
}


def figure(panels: Sequence[Panel], look: Look, *, log: bool = False) -> Any:
    """A `matplotlib.figure.Figure` with axes for each panel. It works with any backend of matplotlib."""
    try:
        import matplotlib

        from lox.loggers._compare.notebook_figure import NotebookFigure
    except ImportError as error:
        raise ImportError("a figure needs matplotlib: pip install 'lox-loggers[plot]'") from error
    columns = 1 if len(panels) == 1 else 2 if len(panels) <= 4 else 3
    rows = math.ceil(len(panels) / columns)
    most = max((len(_names(panel)) for panel in panels), default=0)
    outside = math.ceil(most / _PER_COLUMN) if _INSIDE < most <= _MOST_ENTRIES else 0
    with matplotlib.rc_context(_STYLE):
        drawn = NotebookFigure(figsize=(4.2 * columns + 1.4 * outside, 3.0 * rows), layout="constrained", dpi=200)
        axes = drawn.subplots(rows, columns, squeeze=False).reshape(-1).tolist()
        for place, panel in zip(axes, panels, strict=False):
            _draw(place, panel, look, log)
        for place in axes[len(panels) :]:
            place.set_visible(False)
        _add_legend(drawn, axes[: len(panels)], panels, outside)
        if caption := _caption(panels, look):
            drawn.supxlabel(caption, fontsize=8, color="0.35")
    return drawn


def _draw(axes: Any, panel: Panel, look: Look, log: bool) -> None:
    names = _names(panel)
    colours = dict(zip(names, _colours(len(names)), strict=True))
    shared = len(names) < len(panel.curves)  # thin lines, one colour for each group
    named: set[str] = set()
    for curve in panel.curves:
        colour = colours[curve.name]
        alone = "o" if len(curve.steps) == 1 else None  # a line through a single point is invisible
        label = curve.name if curve.name and curve.name not in named else None
        named.add(curve.name)
        axes.plot(
            curve.steps,
            _drawable(curve.center, log),
            color=colour,
            marker=alone,
            label=label,
            linewidth=0.7 if shared else None,
        )
        if curve.low is not None and curve.high is not None:
            axes.fill_between(
                curve.steps, _drawable(curve.low, log), _drawable(curve.high, log), alpha=0.2, color=colour, linewidth=0
            )
    unit = " (s)" if panel.axis == "time" else ""
    axes.set(xlabel=_plain(f"{panel.axis}{unit}"), ylabel=_plain(panel.label))
    if not any(np.isfinite(_drawable(curve.center, log)).any() for curve in panel.curves):
        kind = "positive" if log else "finite"
        axes.text(0.5, 0.5, f"no {kind} values", transform=axes.transAxes, ha="center", color="0.35")
    elif log:
        axes.set_yscale("log")
    axes.margins(x=0)


def _names(panel: Panel) -> list[str]:
    return list(dict.fromkeys(curve.name for curve in panel.curves))


def _drawable(numbers: np.ndarray, log: bool) -> np.ndarray:
    """The numbers, with nan for those that an axis cannot show: infinities, numbers so large that their differences overflow,
    and on a logarithmic axis those that are not positive."""
    return np.where((np.abs(numbers) < 1e300) & (~np.bool_(log) | (numbers > 1e-300)), numbers, np.nan)


def _colours(number: int) -> list[Any]:
    if number <= len(_COLOURS):
        return list(_COLOURS[:number])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0, 0.95, number)))


def _add_legend(figure: Any, axes: Sequence[Any], panels: Sequence[Panel], outside: int) -> None:
    """One legend for all axes if they have the same curves; none if there are too many lines to distinguish."""
    names = [_names(panel) for panel in panels]
    if not any(any(of_panel) for of_panel in names):
        return
    if outside:
        longest = max(range(len(panels)), key=lambda place: len(names[place]))
        handles, labels = axes[longest].get_legend_handles_labels()
        entries = [_plain(label) for label in labels]
        figure.legend(handles, entries, loc="outside right upper", ncols=outside, fontsize=7)
        return
    for place, (of_axes, of_panel) in enumerate(zip(axes, names, strict=True)):
        if len(of_panel) <= _INSIDE and (place == 0 or of_panel != names[0]):
            handles, labels = of_axes.get_legend_handles_labels()
            of_axes.legend(handles, [_plain(label) for label in labels])


def _caption(panels: Sequence[Panel], look: Look) -> str:
    curves: list[Curve] = [curve for panel in panels for curve in panel.curves]
    counts = [count for curve in curves if curve.runs[1] > 1 for count in curve.runs]
    if look.each and len(curves) > _MOST_ENTRIES:
        return f"{max(len(panel.curves) for panel in panels)} runs"
    if not counts:
        return ""
    return describe(Curve("", np.empty(0), np.empty(0), runs=(min(counts), max(counts))), look).replace(
        "95 % interval", "95 % bootstrap interval"
    )


def _plain(text: str) -> str:
    """Text that matplotlib does not treat as mathematics."""
    return text.replace("$", r"\$")
