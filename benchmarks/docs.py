"""``docs/benchmarks.md`` and its plots, out of what a run found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.harness import NOISY, Figure

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """\
# Benchmarks

What lox costs, beside what you would write by hand or install instead. Every figure is a **ratio** of two medians that
were measured in turns (A B A B ...) in one process, so that whatever else the machine did falls on both. The interval is
where the ratio lies, nine times out of ten; figures whose interval is wider than {noisy:.0%} to either side say
*too noisy*. Targets are those the project set itself before it was written.

`hatch run bench:all` measures all of it and writes this page; it is made for ten minutes on two quiet cores.
`hatch run bench:quick` measures the part that guards against regressions, and fails where a ratio is more than 30 % worse than the stored one.
The *wall* clock is that on the wall; the *cpu* clock counts the seconds of the process on any core, which stays usable where others use the machine too.

Measured on: {machine}. Topics can be measured in separate runs (`--topic`); the load is the highest of them.
"""

SECTIONS = {
    "untouched": (
        "Marks that nobody looks at",
        "The optimised program is the one without the marks, and a call of the jitted function takes JAX's fast path.",
    ),
    "spool": (
        "`spool`",
        "Against a scan with one output for each value, written by hand. The *matvec* step is a 64x64 matrix times a vector "
        "and a tanh, a fifth of a microsecond; the *trivial* one is a multiplication and an addition. lox packs the values of a "
        "record into one row, which XLA writes with one instruction. Where that costs memory, it is the row and the "
        "columns it is split into at the end; large values are not packed.",
    ),
    "oryx": (
        "oryx",
        "`oryx.core.harvest`, the nearest relative, cannot be imported with a JAX that lox supports; so it is compared with scan outputs "
        "under JAX 0.4.38, the newest it works with.",
    ),
    "reduce": (
        "`reduce`, `capacity`, `interval`",
        "Against accumulators and ring buffers written by hand, one for each value. lox's running mean is compensated (it neither stalls nor "
        "overflows), which the hand-written one is not.",
    ),
    "tap": (
        "`tap`",
        "Each record calls the host while the program runs; the callback does nothing. JAX's own callbacks are measured on fewer steps: they take seconds.",
    ),
    "peers": (
        "jax-tap and jax-tqdm",
        "Both watch a scan from outside with JAX's callbacks: one hands over values, the other moves a progress bar.",
    ),
    "lanes": (
        "Many lanes",
        "A vmapped program, eight scalars a step. lox makes one host call for all lanes; a vmapped callback of JAX makes one for each.",
    ),
    "dispatch": ("Calling again", "Nothing is traced or compiled a second time, jitted or not."),
    "transform": (
        "Tracing and compiling",
        "`make_jaxpr(spool(f))` traces the function, looks for marks, and builds the new program. Growth is measured against a straight line: 1 is linear.",
    ),
    "backends": (
        "Backends",
        "Rows of eight scalars and a step, as rows per second: larger is better here. All of them append; the last rows of a long run cost what the first ones did.",
    ),
    "logger": ("Loggers", "What a training loop pays for a logger around its step."),
    "job": (
        "A realistic job",
        "PPO on a cart and pole from 64 seeds at once, each seed with a TensorBoard run of its own, nine scalars an update.",
    ),
}


def write(figures: Sequence[Figure], host: dict[str, Any], clock: str) -> None:
    pictures = plots.draw(figures, DOCS / "_static")
    parts = [HEAD.format(noisy=NOISY, machine=report.describe(host, clock)), _summary(figures)]
    for topic, (title, text) in SECTIONS.items():
        if any(figure.topic == topic for figure in figures):
            parts.append(f"## {title}\n\n{text}\n")
            parts += [f"![{caption}](_static/{name})\n" for name, caption in pictures.get(topic, [])]
            parts.append(report.markdown(figures, topic) + "\n")
    (DOCS / "benchmarks.md").write_text("\n".join(parts))
    print(f"wrote {DOCS / 'benchmarks.md'}")


def _summary(figures: Sequence[Figure]) -> str:
    judged = [figure for figure in figures if figure.met is not None]
    missed = [figure for figure in judged if not figure.met]
    lines = [f"Of {len(judged)} targets, {len(judged) - len(missed)} are met."]
    if missed:
        lines += ["Missed:", ""]
        lines += [
            f"- {figure.what} / {figure.against}, {figure.case}: {report.number(figure.ratio)} "
            f"({report.target(figure)}{', too noisy' if figure.noisy else ''})"
            for figure in missed
        ]
    return "\n".join(lines) + "\n"
