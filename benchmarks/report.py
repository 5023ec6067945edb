"""What a run found: as a table, as JSON, as Markdown for the docs."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib

from benchmarks.harness import Figure


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "device": jax.devices()[0].device_kind,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def describe(host: dict[str, Any], clock: str) -> str:
    return (
        f"{host['processor']}, {host['cores']} cores, load {host['load']} at the start; {host['system']}; "
        f"Python {host['python']}, JAX {host['jax']}; {clock} clock"
    )


# --- one figure ------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f}M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def interval(figure: Figure) -> str:
    return "" if figure.low == figure.high else f"{number(figure.low)} to {number(figure.high)}"


def target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'at least' if figure.at_least else 'at most'} {figure.target:g}"


def verdict(figure: Figure) -> str:
    words = []
    if figure.met is not None:
        words.append("met" if figure.met else "MISSED")
    if figure.noisy:
        words.append("too noisy")
    return ", ".join(words)


def row(figure: Figure) -> tuple[str, ...]:
    unit = {"time": "", "yes": ""}.get(figure.unit, f" [{figure.unit}]")
    what = f"{figure.what} / {figure.against}{unit}"
    case = f"{figure.case} ({figure.note})" if figure.note else figure.case
    return what, case, number(figure.ratio), interval(figure), target(figure), verdict(figure)


HEADER = ("what / against", "case", "ratio", "interval", "target", "")


# --- many ------------------------------------------------------------------------------------------------------------


def print_heading(topic: str) -> None:
    print(f"\n{topic}\n{'-' * len(topic)}")


def print_figure(figure: Figure) -> None:
    what, case, ratio, spread, wanted, judged = row(figure)
    print(f"  {what:64.64} {case:58.58} {ratio:>8} {spread:>18} {wanted:>14}  {judged}", flush=True)


def print_summary(figures: Sequence[Figure]) -> None:
    judged = [figure for figure in figures if figure.met is not None]
    missed = [figure for figure in judged if not figure.met]
    noisy = [figure for figure in figures if figure.noisy]
    print(f"\n{len(figures)} figures, {len(judged)} with a target, {len(missed)} missed, {len(noisy)} too noisy")
    for figure in missed:
        print(f"  missed: {figure.name}: {number(figure.ratio)}, target {target(figure)}")
    if len(noisy) > len(figures) / 4:
        print("  The machine was too busy for this run: more than a quarter of the figures are too noisy to be used.")


def as_json(figures: Iterable[Figure], host: dict[str, Any], clock: str) -> str:
    found = [{**dataclasses.asdict(figure), "noisy": figure.noisy, "met": figure.met} for figure in figures]
    return json.dumps({"machine": host, "clock": clock, "figures": found}, indent=1) + "\n"


def keep(path: Path, figures: Sequence[Figure], host: dict[str, Any], clock: str) -> None:
    """Write the figures; those of other topics that are there already stay."""
    new = {figure.name for figure in figures}
    topics = {figure.topic for figure in figures}
    old = from_json(path.read_text())[0] if path.exists() else []
    kept = [figure for figure in old if figure.topic not in topics and figure.name not in new]
    path.write_text(as_json([*kept, *figures], host, clock))


def from_json(text: str) -> tuple[list[Figure], dict[str, Any], str]:
    data = json.loads(text)
    known = {field.name for field in dataclasses.fields(Figure)}
    figures = []
    for entry in data["figures"]:
        fields = {name: value for name, value in entry.items() if name in known}
        fields["axis"] = tuple(fields["axis"]) if fields["axis"] else None
        figures.append(Figure(**fields))
    return figures, data["machine"], data["clock"]


def markdown(figures: Sequence[Figure], topic: str) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "| --- | --- | ---: | ---: | --- | --- |"]
    for figure in figures:
        if figure.topic == topic:
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row(figure)) + " |")
    return "\n".join(lines)
