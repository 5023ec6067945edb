"""Runs as a notebook shows them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import lox
from lox._html import curve as svg
from lox._html.numbers import mean, short, span, spread
from lox._html.table import Cell, Markup, block, dim, more, table, text, title
from lox._logdict.html import Row, counted, show_rows
from lox.loggers._compare.columns import Array, NumericColumn, axes_of, numeric_columns
from lox.loggers._compare.curves import Curve, Look, over_runs, series_of
from lox.loggers._delivery.names import short_names
from lox.loggers._readers import config as configs

if TYPE_CHECKING:
    from lox.loggers._delivery.run import Run
    from lox.loggers._readers.runs import Runs

_MOST_KEYS = 20
_MOST_RUNS = 20
_MOST_CONFIGS = 8
_MOST_CURVES = 3  # columns with curves in the table of runs, at most
_LOOK = Look()


class _Member(NamedTuple):
    """One value in one run."""

    run: str
    logs: lox.logdict
    key: str
    column: NumericColumn


def show_runs(runs: Runs) -> str:
    """A row for each key over all runs, then a row for each run, with its config and its latest values."""
    if not runs:
        return block(title("Runs", "none"))
    chosen, left_out = _metrics(runs)
    varying, shared = split_configs(runs.flat_configs.values())
    note = "mean and standard deviation over the runs" if len(runs) > 1 and chosen else ""
    return block(
        title("Runs", counted(len(runs), "run"), note),
        show_rows(itertools.starmap(_row, chosen.items())) if chosen else Markup(""),
        more(left_out, "keys"),
        _table_of_runs(runs, dict(itertools.islice(chosen.items(), _MOST_CURVES)), varying),
        more(len(runs) - _MOST_RUNS, "runs"),
        Markup(f"<div>{dim(shared)}</div>") if shared else Markup(""),
    )


def show_open_runs(runs: Sequence[Run]) -> str:
    """A row for each run of a logger, with its config."""
    flat = {number: configs.flat(run.plain_config) for number, run in enumerate(runs)}
    varying, shared = split_configs(flat.values())
    names = short_names(run.name for run in runs)
    rows: list[list[str | Cell]] = [
        [names[run.name], Cell(run.hex_key, "t"), str(run.lane), *_config_cells(flat[number], varying)]
        for number, run in enumerate(runs[:_MOST_RUNS])
    ]
    columns: list[str | Cell] = ["run", Cell("key", "t"), "lane", *varying]
    return block(
        title("runs", f"{len(runs)} open", shared),
        table(columns, rows) if rows else Markup(""),
        more(len(runs) - _MOST_RUNS, "runs"),
    )


def split_configs(flat: Iterable[Mapping[str, Any]]) -> tuple[list[str], str]:
    """The names of the settings that differ between runs, and a text with those that are the same in all."""
    each = list(flat)
    values: dict[str, list[Any]] = {}
    for config in each:
        for name, value in config.items():
            values.setdefault(name, []).append(value)
    same = {
        name: found[0]
        for name, found in values.items()
        if len(each) > 1 and len(found) == len(each) and all(configs.same(found[0], other) for other in found)
    }
    varying = [name for name in values if name not in same]
    parts = [f"{name} = {configs.show(value)}" for name, value in itertools.islice(same.items(), _MOST_CONFIGS)]
    return varying[:_MOST_CONFIGS], "all: " + ", ".join(parts) if parts else ""


def to_svg(curve: Curve) -> svg.SvgCurve:
    """A curve for the drawing code of core."""
    low = curve.center if curve.low is None else np.where(np.isfinite(curve.low), curve.low, curve.center)
    high = curve.center if curve.high is None else np.where(np.isfinite(curve.high), curve.high, curve.center)
    return svg.SvgCurve(curve.steps, curve.center, low, high)


def _metrics(runs: Runs) -> tuple[dict[str, list[_Member]], int]:
    """The metrics by label (hyperparameters are not among them), and how many are left out."""
    found: dict[str, list[_Member]] = {}
    others: set[str] = set()
    for member in _members(runs):
        label = member.column.label
        if label in found or len(found) < _MOST_KEYS:
            found.setdefault(label, []).append(member)
        else:
            others.add(label)
    return found, len(others)


def _members(runs: Runs) -> Iterator[_Member]:
    for name, logs in runs.items():
        for key in logs:
            if key not in runs.constants:
                for column in numeric_columns(logs, key):
                    if len(column.values):
                        yield _Member(name, logs, key, column)


def _row(label: str, members: Sequence[_Member]) -> Row:
    lengths = [len(member.column.values) for member in members]
    everything = np.concatenate([member.column.values for member in members])
    finite = everything[np.isfinite(everything)]
    ends = np.asarray([member.column.values[-1] for member in members])
    axis = _shared_axis(members)
    series = [series_of(member.run, member.logs, member.key, label, axis, _LOOK) for member in members]
    steps = [of_run.steps for of_run in series if len(of_run.steps)]
    row = Row(
        label,
        records=span(min(lengths), max(lengths)),
        steps=_steps_text(axis, steps),
        last=spread(ends),
        wrong=counted(len(everything) - len(finite), "value") + " not finite" if len(finite) < len(everything) else "",
        element=members[0].column.shape,
    )
    if not len(finite):
        return row
    drawn = over_runs("", [of_run for of_run in series if len(of_run.steps)], _LOOK) if steps else None
    return row._replace(
        mean=short(mean(finite)),
        low=short(float(finite.min())),
        high=short(float(finite.max())),
        curve=to_svg(drawn) if drawn is not None and len(drawn.steps) > 1 else None,
    )


def _shared_axis(members: Sequence[_Member]) -> str:
    """The first step axis that all runs have, or else the record number."""
    axes = [axes_of(member.logs, member.key) for member in members]
    return next((axis for axis in axes[0] if all(axis in of_run for of_run in axes)), "record")


def _steps_text(axis: str, steps: Sequence[Array]) -> str:
    if axis == "record" or not steps:
        return ""
    low, high = min(float(of_run.min()) for of_run in steps), max(float(of_run.max()) for of_run in steps)
    return Markup(f"{dim(axis)} {text(span(low, high))}")


def _table_of_runs(runs: Runs, shown: Mapping[str, Sequence[_Member]], varying: Sequence[str]) -> Markup:
    names = short_names(runs)
    of_run = {label: {member.run: member for member in members} for label, members in shown.items()}
    rows = []
    for name in itertools.islice(runs, _MOST_RUNS):
        row: list[str | Cell] = [names[name], *_config_cells(runs.flat_configs[name], varying)]
        for members in of_run.values():
            row += _value_cells(members.get(name))
        rows.append(row)
    columns: list[str | Cell] = ["run", *varying]
    for label in of_run:
        columns += [label, ""]
    return table(columns, rows)


def _config_cells(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    return [configs.show(config[name]) if name in config else "" for name in names]


def _value_cells(member: _Member | None) -> list[str | Cell]:
    if member is None:
        return ["", ""]
    values = member.column.values
    small = svg.sparkline(svg.line(np.arange(len(values)), values), member.column.label, width=90, points=48)
    return [short(float(values[-1])), small]
