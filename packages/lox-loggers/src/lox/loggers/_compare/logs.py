"""Drawing logs in memory as `lox plot` draws logs in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

import lox
from lox._errors import LogTypeError
from lox._logdict.lanes import lane_axes, lanes_of
from lox._logdict.table import as_table
from lox.loggers._readers.runs import Runs


def plot_logs(
    logs: lox.logdict, keys: str | Iterable[str] | None, lanes: int | None, options: Mapping[str, Any]
) -> Any:
    """A figure of the logs. Each lane counts as a run."""
    return runs_of(logs, lanes).plot(keys, **options)


def runs_of(logs: lox.logdict, lanes: int | None = None) -> Runs:
    """The lanes as runs, each named by its number."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(logs)):
        raise LogTypeError("lox: logs.plot() needs concrete values: call it outside jit, vmap and grad")
    axes = lane_axes(logs, "plot") if lanes is None else lanes
    named = {"lane " + ", ".join(map(str, lane)): as_table(of_lane) for lane, of_lane in lanes_of(logs, axes)}
    runs = Runs(named)
    # In files, a value that never changes may be a hyperparameter that a resumed run wrote again. Here, records are metrics.
    runs._constants = {key for key in runs.constants if key not in logs.stacked}
    return runs
