"""``hatch run tpu:figures`` and ``cuda:figures`` measure the compiled programs and write the tables of a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax

import lox
from tests.accelerators import programs
from tests.accelerators.compiled import Program, Target

PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"


def table(target: Target, cost: str, of: object) -> list[str]:
    """For each program its ``cost``, which ``of`` reads from it, and its peak memory, beside the one written by hand."""
    lines = [
        f"| program | {cost}: lox | by hand | ratio | peak bytes: lox | by hand | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for pair in programs.pairs():
        hand, mine = (target.compile(f, *pair.args) for f in (pair.by_hand, pair.with_lox))
        costs = [of(mine), of(hand)]  # type: ignore[operator]
        cells = [*costs, costs[0] / costs[1], mine.peak, hand.peak, mine.peak / hand.peak]
        lines.append(
            f"| {pair.name} | " + " | ".join(f"{c:.2f}" if isinstance(c, float) else f"{c:,}" for c in cells) + " |"
        )
    return lines


def tapped(target: Target) -> Program:
    return target.compile(lox.tap(programs.marked(programs.scalars(8)), lambda logs: None), *programs.MATVEC)


def on_a_tpu() -> list[str]:
    from tests.accelerators.tpu import TPU, cycles

    transfers = tapped(TPU).transfers
    told = f"`lox.tap` of 8 scalars: {transfers.get('send', 0)} send, {transfers.get('recv', 0)} receive."
    return [*table(TPU, "cycles", cycles), "", told]


def on_a_gpu() -> list[str]:
    from tests.accelerators import cuda

    with cuda.host_calls_that_go_nowhere():
        (operands,) = cuda.host_calls(tapped(cuda.H100))
    told = f"`lox.tap` of 8 scalars: 1 host call with {operands} operand."
    return [*table(cuda.H100, "kernels", cuda.kernels), "", told]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # what traces; the others only compile
    (platform,) = sys.argv[1:]
    begin, end = f"<!-- {platform}: begin -->", f"<!-- {platform}: end -->"
    lines = "\n".join([begin, *{"tpu": on_a_tpu, "cuda": on_a_gpu}[platform](), end])
    PAGE.write_text(re.sub(f"(?s){begin}.*{end}", lambda _: lines, PAGE.read_text()))
    print(lines)
