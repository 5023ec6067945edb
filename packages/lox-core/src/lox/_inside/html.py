"""A report of ``find_nonfinite`` as a notebook shows it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import jax
import numpy as np

from lox._html.numbers import short
from lox._html.table import Cell, block, more, table, title, warning
from lox._inside.report import short_line

if TYPE_CHECKING:
    from lox._inside.report import Report

_MOST_ROWS = 20
_COLUMNS = [Cell(name, "t") for name in ("", "operation", "line", "in", "pass", "iteration", "operands")]


def show_report(report: Report) -> str:
    """A row for the first nan or inf; with several lanes or records, a row for each that has one."""
    if isinstance(report.found, jax.core.Tracer):
        return block(title("find_nonfinite", f"{report.found.aval.str_short()}, not known yet"))
    found = np.argwhere(np.asarray(report.found)).tolist()
    if not found:
        return block(title("find_nonfinite", "no nan or inf arose"))
    if not np.ndim(report.found):
        return block(title("find_nonfinite"), table(_COLUMNS, [_row(report)]))
    lanes = [tuple(index) for index in found[:_MOST_ROWS]]
    rows = [[", ".join(map(str, lane)), *_row(report[lane])] for lane in lanes]
    return block(
        title("find_nonfinite", f"{len(found)} of {math.prod(np.shape(report.found))} found a nan or inf"),
        table(["lane", *_COLUMNS], rows),
        more(len(found) - len(rows), "lanes"),
    )


def _row(report: Report) -> list[str | Cell]:
    site = report.sites[int(report.site)]
    iterations = [f"{count} of {path}" for path, count in report.loops.items()]
    iterations += [f"device {int(report.device)}"] if report.device >= 0 else []
    ranges = [short(low) if low == high else f"{short(low)} to {short(high)}" for low, high in report.operands]
    operation = f"{site.primitive} (lox cannot look into it)" if site.opaque else site.primitive
    words = [
        operation,
        short_line(site.line),
        site.scope,
        "backward" if site.backward else "forward",
        ", ".join(iterations),
        ", ".join(ranges),
    ]
    return [warning("nan" if report.nan else "inf"), *(Cell(word, "t") for word in words)]
