"""``docs/benchmarks.md`` and its plots, out of what a run found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import plots, report
from benchmarks.harness import NOISY, Figure

DOCS = Path(__file__).parents[1] / "docs"

HEAD = """\
# Benchmarks

What lox costs, beside what you would write by hand or install instead. The short of it, as ratios of time (less than 1: lox is
faster):

{summary}

## How it is measured

Every figure is a **ratio** of two medians that were measured in turns (A B A B ...) in one process, so that whatever else the
machine did falls on both. The interval is where the ratio lies, nine times out of ten; figures whose interval is wider
than {noisy:.0%} to either side say *too noisy*. Targets are those the project set itself before it was written.

`hatch run bench:all` measures all of it and writes this page; it is made for ten minutes on two quiet cores.
`hatch run bench:quick` measures the part that guards against regressions, and fails where a ratio is more than 30 % worse than the stored one.
The *wall* clock is that on the wall; the *cpu* clock counts the seconds of the process on any core, which stays usable where others use the machine too.

What programs cost on a TPU or a GPU is read from [compiled programs](#on-accelerators).

Measured on: {machine}. Topics can be measured in separate runs (`--topic`); the load is the highest of them.
"""

ACCELERATORS = """\
## On accelerators

For a TPU and a GPU, programs are compiled without a device, and the figures are read from what the compiler made of them. Nothing was run.
[The page on accelerators](accelerators.md) explains the tables and how they were obtained: `hatch run tpu:figures` and
`hatch run cuda:figures` write them there.

```{include} accelerators.md
:start-after: "<!-- tpu: begin -->"
:end-before: "<!-- tpu: end -->"
```

The same programs, compiled for an NVIDIA H100:

```{include} accelerators.md
:start-after: "<!-- cuda: begin -->"
:end-before: "<!-- cuda: end -->"
```
"""

# The lines that the page begins with. A number in braces is that of a figure below: which ones, and in which order,
# is said beside it.
_EIGHT, _PPO = "matvec, 8 scalars, T=", "PPO, 64 seeds"
SUMMARY: tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...] = (
    (
        "**Marks that nobody looks at**: {}. The compiled program is the one without them.",
        (("marks", "no marks", "scan of matvec, 8 scalars, run"),),
    ),
    (
        "**`spool`**: {} of scan outputs written by hand, for eight scalars a step; {} for one; {} where the step itself is next to "
        "nothing.",
        (
            ("spool", "scan outputs", f"{_EIGHT}10000"),
            ("spool", "scan outputs", "matvec, 1 scalars, T=10000"),
            ("spool", "scan outputs", "trivial, 8 scalars, T=10000"),
        ),
    ),
    (
        "**`tap`**: {} of `jax.debug.callback`, and {} with `batch=128`. A step of a fifth of a microsecond takes {} and {} times "
        "as long as without logging.",
        (
            ("tap", "jax.debug.callback", _EIGHT),
            ("tap(batch=128)", "jax.debug.callback", _EIGHT),
            ("tap", "no logging", f"{_EIGHT}10000"),
            ("tap(batch=128)", "no logging", f"{_EIGHT}10000"),
        ),
    ),
    (
        "**A whole job**, PPO from 64 seeds with a TensorBoard run for each, against the same without logging: {} spooled, {} "
        "live, {} with `jax.debug.callback`.",
        (
            ("TensorBoard at the end (spool)", "no logging", _PPO),
            ("live to TensorBoard (tap)", "no logging", _PPO),
            ("debug.callback", "no logging", _PPO),
        ),
    ),
)

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
        "Against accumulators and ring buffers written by hand, one for each value. The running means of both are "
        "compensated, so they do not stall in a long loop; lox's does not overflow either.",
    ),
    "tap": (
        "`tap`",
        "Each record calls the host while the program runs; the callback does nothing. JAX's own callbacks are measured on fewer steps: they take seconds.",
    ),
    "inside": (
        "`probe` and `find_nonfinite`",
        "A training step of a transformer that is watched for its first nan or inf, against the step itself and `checkify`; and marks "
        "that a probe adds, against marks at the same places.",
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
    (DOCS / "benchmarks.md").write_text(page(figures, host, clock, pictures))
    print(f"wrote {DOCS / 'benchmarks.md'}")


def page(
    figures: Sequence[Figure], host: dict[str, Any], clock: str, pictures: Mapping[str, Sequence[tuple[str, str]]]
) -> str:
    """The summary, how it was measured, a section for each topic, and last the targets that are missed."""
    parts = [HEAD.format(summary=_summary(figures), noisy=NOISY, machine=report.describe(host, clock))]
    for topic, (title, text) in SECTIONS.items():
        if any(figure.topic == topic for figure in figures):
            parts.append(f"## {title}\n\n{text}\n")
            parts += [f"![{caption}](_static/{name})\n" for name, caption in pictures.get(topic, [])]
            parts.append(report.markdown(figures, topic) + "\n")
    return "\n".join([*parts, ACCELERATORS, *_missed(figures)])


def _summary(figures: Sequence[Figure]) -> str:
    lines = []
    for text, wanted in SUMMARY:
        found = [_find(figures, *each) for each in wanted]
        if None not in found:  # a topic that was not measured has no line
            lines.append("- " + text.format(*[report.number(figure.ratio) for figure in found if figure]))
    judged = [figure for figure in figures if figure.met is not None]
    met = [figure for figure in judged if figure.met]
    lines.append(
        f"- **Targets**: {len(met)} of {len(judged)} are met. " + _where_the_others_are(len(judged) - len(met))
    )
    return "\n".join(lines)


def _where_the_others_are(missed: int) -> str:
    return f"The other {missed} are [at the end](#missed-targets)." if missed else ""


def _find(figures: Sequence[Figure], what: str, against: str, case: str) -> Figure | None:
    for figure in figures:
        if (figure.what, figure.against, figure.unit) == (what, against, "time") and figure.case.startswith(case):
            return figure
    return None


def _missed(figures: Sequence[Figure]) -> list[str]:
    missed = [
        f"- {figure.what} / {figure.against}, {figure.case}: {report.number(figure.ratio)} "
        f"({report.target(figure)}{', too noisy' if figure.noisy else ''})"
        for figure in figures
        if figure.met is False
    ]
    return ["## Missed targets\n", "\n".join(missed) + "\n"] if missed else []
