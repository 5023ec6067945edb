"""The pictures of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.harness import Figure

Pictures = dict[str, list[tuple[str, str]]]


def draw(figures: Sequence[Figure], folder: Path) -> Pictures:
    """Draw what there is to draw; ``{topic: [(file, caption)]}``."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: Pictures = {}
    for topic, name, caption, make in PICTURES:
        chosen = [figure for figure in figures if figure.topic == topic]
        if not chosen:
            continue
        fig, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
        if make(axes, chosen):
            fig.savefig(folder / name, dpi=120)
            pictures.setdefault(topic, []).append((name, caption))
        plt.close(fig)
    return pictures


def _spool(axes: Any, figures: list[Figure]) -> bool:
    lines: dict[str, list[tuple[float, float]]] = {}
    for figure in figures:
        if figure.axis and figure.unit == "time":
            kind, _, length = figure.case.split(", ")
            lines.setdefault(f"{kind}, {length}", []).append((figure.axis[1], figure.ratio))
    for label, points in lines.items():
        if len(points) > 1:
            axes.plot(*zip(*sorted(points), strict=True), "o-", label=label)
    axes.axhline(1, color="gray", lw=0.8)
    axes.set(xscale="log", yscale="log", xlabel="scalars per step", ylabel="time, scan outputs by hand = 1")
    axes.legend(fontsize=8)
    return bool(lines)


def _by_axis(axes: Any, figures: list[Figure], names: dict[str, str], scale: float = 1.0) -> bool:
    """One line for each of the names in ``measured``, over the figures' axis."""
    for name, label in names.items():
        points = {
            figure.axis[1]: figure.measured[name] * scale
            for figure in figures
            if figure.axis and name in figure.measured
        }
        if points:
            axes.plot(*zip(*sorted(points.items()), strict=True), "o-", label=label)
    axes.legend(fontsize=8)
    return any(figure.axis for figure in figures)


def _tap(axes: Any, figures: list[Figure]) -> bool:
    chosen = [figure for figure in figures if figure.axis and not figure.case.endswith("T=10000")]
    names = {
        "jax.debug.callback": "jax.debug.callback",
        "io_callback": "io_callback",
        "tap": "lox.tap",
        "tap(batch=128)": "lox.tap, batch=128",
    }
    found = _by_axis(axes, chosen, names, 1e6)
    axes.set(xscale="log", yscale="log", xlabel="scalars per record", ylabel="microseconds per step")
    return found


def _lanes(axes: Any, figures: list[Figure]) -> bool:
    names = {
        "vmapped jax.debug.callback": "vmapped jax.debug.callback",
        "tap, lane by lane": "lox.tap, a call of the user's function for each lane",
        "tap, lanes together": "lox.tap, all lanes at once, as loggers get them",
        "no logging": "no logging",
    }
    found = _by_axis(axes, figures, names, 1e3)
    axes.set(xscale="log", yscale="log", xlabel="lanes", ylabel="milliseconds per step")
    return found


def _memory(axes: Any, figures: list[Figure]) -> bool:
    chosen = [figure for figure in figures if figure.axis and ", 8 scalars" in figure.case]
    names = {"stack, then reduce": "stack, then reduce", "spool(reduce='mean')": "spool(reduce='mean')"}
    found = _by_axis(axes, chosen, names, 1 / 1024)
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel="KB, 8 scalars")
    return found


def _transform(axes: Any, figures: list[Figure]) -> bool:
    for what in dict.fromkeys(figure.axis[0] for figure in figures if figure.axis):
        for name, style in (("make_jaxpr(spool(f))", "o-"), ("make_jaxpr(f)", "o:")):
            points = [(f.axis[1], f.measured[name] * 1e3) for f in figures if f.axis and f.axis[0] == what]
            axes.plot(*zip(*points, strict=True), style, label=f"{name}, {what}")
    axes.set(xscale="log", yscale="log", xlabel="how many", ylabel="milliseconds")
    axes.legend(fontsize=7)
    return any(figure.axis for figure in figures)


def _job(axes: Any, figures: list[Figure]) -> bool:
    bars = {"no logging": 1.0, **{figure.what: figure.ratio for figure in figures}}
    places = axes.barh(list(bars), list(bars.values()))
    axes.bar_label(places, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="time, no logging = 1", xlim=(0, max(bars.values()) * 1.12))
    return bool(figures)


def _backends(axes: Any, figures: list[Figure]) -> bool:
    rates: dict[str, float] = {}
    for figure in figures:
        if figure.unit == "rate":
            rates.update({name: 1 / figure.measured[name] for name in (figure.what, figure.against)})
    ordered = sorted(rates.items(), key=lambda item: item[1])
    places = axes.barh([name for name, _ in ordered], [rate for _, rate in ordered])
    axes.bar_label(places, labels=[f"{rate:,.0f}" for _, rate in ordered], padding=3, fontsize=7)
    axes.tick_params(labelsize=7)
    axes.set(xscale="log", xlabel="rows of 8 scalars per second", xlim=(None, max(rates.values(), default=1) * 20))
    return bool(rates)


PICTURES = [
    ("spool", "bench-spool.png", "Time of spool over scan outputs written by hand", _spool),
    ("reduce", "bench-memory.png", "Memory of a mean as the run grows", _memory),
    ("tap", "bench-tap.png", "Time per step of callbacks", _tap),
    ("lanes", "bench-lanes.png", "Time per step as lanes grow", _lanes),
    ("transform", "bench-transform.png", "Tracing time as programs grow", _transform),
    ("backends", "bench-backends.png", "Rows per second of backends and loops", _backends),
    ("job", "bench-job.png", "PPO from 64 seeds", _job),
]
