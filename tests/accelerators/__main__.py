"""``hatch run tpu:figures``: measures the compiled programs and writes the table of ``docs/accelerators.md``."""

from __future__ import annotations

import re
from pathlib import Path

import jax

import lox
from tests.accelerators import programs, tpu

PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def rows() -> list[str]:
    lines = [
        "| program | cycles: lox | by hand | ratio | peak bytes: lox | by hand | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for pair in programs.pairs():
        hand, mine = (tpu.compile_for(1, f, *pair.args) for f in (pair.by_hand, pair.with_lox))
        cells = [mine.cycles, hand.cycles, mine.cycles / hand.cycles, mine.peak, hand.peak, mine.peak / hand.peak]
        lines.append(
            f"| {pair.name} | " + " | ".join(f"{c:.2f}" if isinstance(c, float) else f"{c:,}" for c in cells) + " |"
        )
    tapped = lox.tap(programs.marked(programs.scalars(8)), lambda logs: None)
    transfers = tpu.compile_for(1, tapped, *programs.MATVEC).transfers
    lines += ["", f"`lox.tap` of 8 scalars: {transfers.get('send', 0)} send, {transfers.get('recv', 0)} receive."]
    return lines


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # what traces; libtpu only compiles
    text = PAGE.read_text()
    table = "\n".join([BEGIN, *rows(), END])
    PAGE.write_text(re.sub(f"(?s){BEGIN}.*{END}", lambda _: table, text))
    print(table)
