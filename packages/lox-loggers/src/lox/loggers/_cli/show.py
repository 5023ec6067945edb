"""`lox show`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import lox
from lox.loggers._backends.display.numbers import short, sparkline, whole
from lox.loggers._cli.output import lines, table
from lox.loggers._cli.selection import Chosen, RunSelection, choose
from lox.loggers._compare import statistics
from lox.loggers._compare.columns import Array, NumericColumn, axes_of, numeric_columns
from lox.loggers._errors import RunFormatError
from lox.loggers._json import finite, to_json
from lox.loggers._readers import config as configs
from lox.loggers._readers.runs import Runs

# More runs than this are shown in one table.
_MANY = 8
_MOST_VALUES = 8  # values of a config key that are listed, at most
_LONGEST = 40  # characters of a config value in a table, at most


@dataclasses.dataclass(frozen=True)
class Options:
    """How runs are shown.

    Args:
      by: config keys; runs with equal values are summarised as a group.
      sort: a key; each run has a row, in the order of its value. `-loss` reverses the order.
    """

    each: bool = False
    by: tuple[str, ...] = ()
    sort: str | None = None
    center: str = "mean"
    band: str = "std"
    as_json: bool = False


def show(selection: RunSelection, options: Options) -> tuple[str, bool]:
    """The text, and whether everything could be read."""
    chosen = choose(selection)
    if options.as_json:
        return to_json(finite(_as_data(chosen))) + "\n", chosen.whole
    parts = []
    for name, runs in chosen.experiments.items():
        alone = len(chosen.experiments) == 1 or list(runs) == [name]  # then the name of the run is enough
        title = "" if alone else f"{lines(name)}: "
        parts.append(_show_experiment(title, runs, chosen.wanted, options))
    return "\n".join(parts), chosen.whole


def _show_experiment(title: str, runs: Runs, wanted: Callable[[str], bool], options: Options) -> str:
    if options.by:
        head = f"{title}{_number(len(runs))} by {', '.join(options.by)}\n"
        return head + table(_grouped(runs, wanted, options), indent="  ")
    if options.sort is not None:
        head = f"{title}{_number(len(runs))} by {options.sort.removeprefix('-')}\n"
        return head + table(_sorted(runs, wanted, options.sort), indent="  ")
    if len(runs) > _MANY and not options.each:
        head = f"{title}{len(runs)} runs (--each: a table for each)\n{_config_line(runs)}"
        return head + table([["key", *_SUMMARY], *_summaries(runs, wanted, options)], indent="  ")
    head = f"{title.rstrip()}\n" if title else ""
    return head + "\n".join(_show_run(name, logs, runs, wanted) for name, logs in runs.items())


def _number(runs: int) -> str:
    return f"{runs} run" + "s" * (runs != 1)


# A table for each run.


def _show_run(name: str, logs: lox.logdict, runs: Runs, wanted: Callable[[str], bool]) -> str:
    rows: list[tuple[str, ...]] = [("key", "records", "steps", "", "last", "mean", "min", "max")]
    for key, column in _metrics(logs, runs, wanted):
        with np.errstate(all="ignore"):
            numbers = (column.values[-1], column.values.mean(), column.values.min(), column.values.max())
        texts = (short(float(number)) for number in numbers)
        rows.append((column.title, str(len(column.values)), _steps(logs, key), sparkline(column.values), *texts))
    known = "  ".join(f"{key}={_brief(value)}" for key, value in runs.flat_configs[name].items())
    missing = ", ".join(f"{key} ({kind})" for key, kind in runs.left_out[name].items())
    parts = [
        f"{lines(name)}\n",
        f"  {lines(known)}\n" if known else "",
        table(rows, indent="  ") if len(rows) > 1 else "",
    ]
    return "".join([*parts, f"  not read: {lines(missing)}\n" if missing else ""])


def _steps(logs: lox.logdict, key: str) -> str:
    spans = []
    for axis in axes_of(logs, key):
        steps = np.asarray(logs.steps[axis][key], np.float64)
        spans.append(f"{axis} {whole(float(steps.min()))}..{whole(float(steps.max()))}")
    return ", ".join(spans)


def _metrics(logs: lox.logdict, runs: Runs, wanted: Callable[[str], bool]) -> Iterator[tuple[str, NumericColumn]]:
    for key in logs:
        if key not in runs.constants:
            for column in numeric_columns(logs, key):
                if wanted(column.label):
                    yield key, column


# One table for many.


class _Last(NamedTuple):
    """The last values of one key, one for each run that has it."""

    runs: list[str]
    values: list[float]
    records: list[int]


_SUMMARY = ("runs", "records", "last", "lowest", "", "highest", "")


def _last_values(runs: Runs, wanted: Callable[[str], bool]) -> dict[str, _Last]:
    found: dict[str, _Last] = {}
    for name, logs in runs.items():
        for _, column in _metrics(logs, runs, wanted):
            last = found.setdefault(column.title, _Last([], [], []))
            last.runs.append(name)
            last.values.append(float(column.values[-1]))
            last.records.append(len(column.values))
    return found


def _summaries(runs: Runs, wanted: Callable[[str], bool], options: Options) -> Iterator[list[str]]:
    for label, last in _last_values(runs, wanted).items():
        values = np.asarray(last.values)
        low, high = (int(find(np.where(np.isnan(values), worst, values))) for find, worst in _ENDS)
        fewest, most = min(last.records), max(last.records)
        yield [
            label,
            str(len(values)),
            str(most) if fewest == most else f"{fewest}..{most}",
            _middle(values, options),
            short(values[low].item()),
            last.runs[low],
            short(values[high].item()),
            last.runs[high],
        ]


_ENDS = ((np.argmin, np.inf), (np.argmax, -np.inf))


def _middle(values: Array, options: Options) -> str:
    """The center of the last values and their band."""
    rows = values[:, None]
    center, low, high = statistics.summarize(rows, np.ones_like(rows, bool), options.center, options.band)
    prefix = "" if options.center == "mean" else f"{options.center} "
    if options.band == "std":
        with np.errstate(all="ignore"):
            return f"{prefix}{short(center.item())} ± {short(values.std().item())}"
    return f"{prefix}{short(center.item())} [{short(low.item())}, {short(high.item())}]"


def _grouped(runs: Runs, wanted: Callable[[str], bool], options: Options) -> list[list[str]]:
    rows = [[*options.by, "key", *_SUMMARY]]
    for value, members in runs.by(*options.by).items():
        values = (value,) if len(options.by) == 1 else value
        named = [_brief(part) for part in values]
        rows += [[*named, *row] for row in _summaries(members, wanted, options)]
    return rows


def _sorted(runs: Runs, wanted: Callable[[str], bool], sort: str) -> list[list[str]]:
    """A row for each run: its config and its last values."""
    key, turned = sort.removeprefix("-"), sort.startswith("-")
    last: dict[str, dict[str, float]] = {
        name: {column.label: float(column.values[-1]) for _, column in _metrics(logs, runs, lambda label: True)}
        for name, logs in runs.items()
    }
    config = runs.flat_configs
    known = list(dict.fromkeys(name for of_run in config.values() for name in of_run))
    metrics = list(dict.fromkeys(label for of_run in last.values() for label in of_run))
    if key not in known and key not in metrics:
        raise RunFormatError(f"no run has {key!r}. Available: {', '.join([*known, *metrics])}")

    def place(name: str) -> tuple[int, Any]:
        return configs.sort_key({**last[name], **config[name]}.get(key))

    ordered = sorted(runs, key=place, reverse=turned)
    if turned:  # missing values, and values that are not numbers, stay at the end
        ordered.sort(key=lambda name: place(name)[0] > 0)
    shown = [label for label in metrics if wanted(label) or label == key]
    rows = [["run", *known, *shown]]
    for name in ordered:
        settings = [_brief(config[name][column]) if column in config[name] else "" for column in known]
        numbers = [short(last[name][label]) if label in last[name] else "" for label in shown]
        rows.append([name, *settings, *numbers])
    return rows


def _config_line(runs: Runs) -> str:
    found: dict[str, list[Any]] = {}
    for config in runs.flat_configs.values():
        for key, value in config.items():
            found.setdefault(key, []).append(value)
    settings = [f"{key}={_values(values)}" for key, values in found.items()]
    return f"  {lines('  '.join(settings))}\n" if settings else ""


def _values(values: Sequence[Any]) -> str:
    """The different values of a config key: all of them if they are few, otherwise their range."""
    distinct = sorted({configs.hashable(value) for value in values}, key=configs.sort_key)
    if len(distinct) <= _MOST_VALUES:
        return ", ".join(map(_brief, distinct))
    return f"{_brief(distinct[0])}..{_brief(distinct[-1])} ({len(distinct)} values)"


def _brief(value: Any) -> str:
    text = configs.show(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# For programs.


def _as_data(chosen: Chosen) -> dict[str, Any]:
    return {
        name: {run: _run_data(run, runs, chosen.wanted) for run in runs} for name, runs in chosen.experiments.items()
    }


def _run_data(run: str, runs: Runs, wanted: Callable[[str], bool]) -> dict[str, Any]:
    logs = runs[run]
    keys: dict[str, Mapping[str, Any]] = {}
    for key, column in _metrics(logs, runs, wanted):
        with np.errstate(all="ignore"):
            keys[column.label] = {
                "records": len(column.values),
                "shape": list(column.shape),
                "steps": {axis: _ends_of(logs.steps[axis][key]) for axis in axes_of(logs, key)},
                "last": column.values[-1].item(),
                "mean": column.values.mean().item(),
                "min": column.values.min().item(),
                "max": column.values.max().item(),
            }
    return {"config": runs.configs[run], "keys": keys, "not_read": runs.left_out[run]}


def _ends_of(steps: Any) -> list[Any]:
    numbers = np.asarray(steps)
    return [numbers.min().item(), numbers.max().item()]
