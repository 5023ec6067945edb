"""``hatch run tpu:figures`` and ``cuda:figures`` measure the compiled programs and write the tables of a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import jax
from jax.sharding import PartitionSpec

import lox
from tests.accelerators import programs
from tests.accelerators.compiled import Target

PAGE = Path(__file__).parents[2] / "docs" / "accelerators.md"


def table(target: Target, cost: str, of: object) -> list[str]:
    """For each program its ``cost``, which ``of`` reads from it, and its peak memory, beside the one written by hand."""
    lines = [
        f"| program | {cost}: lox | by hand | ratio | peak bytes: lox | by hand | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    everywhere = [(pair, {}) for pair in programs.pairs()]
    for pair, where in [*everywhere, (programs.pair_on_devices(target.devices()), programs.ON_DEVICES)]:
        hand, mine = (target.compile(f, *pair.args, **where) for f in (pair.by_hand, pair.with_lox))
        costs = [of(mine), of(hand)]  # type: ignore[operator]
        cells = [*costs, costs[0] / costs[1], mine.peak, hand.peak, mine.peak / hand.peak]
        lines.append(
            f"| {pair.name} | " + " | ".join(f"{c:.2f}" if isinstance(c, float) else f"{c:,}" for c in cells) + " |"
        )
    return lines


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def collectives(target: Target) -> list[str]:
    """For programs on four devices, what they exchange."""
    split = [PartitionSpec(), PartitionSpec("d")]
    steps = {
        "by hand": programs.training_step_by_hand(False),
        "`spool`": lox.spool(programs.training_step(True, False)),
        '`spool(reduce="mean")`': lox.spool(programs.training_step(True, False), reduce="mean"),
    }
    lines = [_row("training step on 4 devices", "collectives"), _row("---", "---")]
    for name, fun in steps.items():
        found = target.compile(fun, *programs.TRAINING, number=4, specs=split).transfers
        lines.append(_row(name, ", ".join(f"{number} {kind}" for kind, number in found.items())))
    return lines


def on_a_tpu() -> list[str]:
    from tests.accelerators.tpu import TPU, cycles

    lines = [_row("`lox.tap` of", "sends", "receives", "receives in a loop"), _row("---", "---:", "---:", "---:")]
    for name, (fun, args, _) in programs.TAPPED.items():
        program = TPU.compile(lox.tap(fun, lambda logs: None), *args)
        in_loops = sum(" recv(" in line for body in program.loop_bodies() for line in body)
        lines.append(_row(name, program.transfers.get("send", 0), program.transfers.get("recv", 0), in_loops))
    return [*table(TPU, "cycles", cycles), "", *lines, "", *collectives(TPU)]


def on_a_gpu() -> list[str]:
    from tests.accelerators import cuda

    lines = [_row("`lox.tap` of", "host calls", "operands of each", "conditions"), _row("---", "---:", "---:", "---:")]
    for name, (fun, args, _) in programs.TAPPED.items():
        with cuda.host_calls_that_go_nowhere():
            program = cuda.H100.compile(lox.tap(fun, lambda logs: None), *args)
        calls = cuda.host_calls(program)
        lines.append(_row(name, len(calls), max(calls), program.text.count(" conditional(")))
    return [*table(cuda.H100, "kernels", cuda.kernels), "", *lines, "", *collectives(cuda.H100)]


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # what traces; the others only compile
    (platform,) = sys.argv[1:]
    begin, end = f"<!-- {platform}: begin -->", f"<!-- {platform}: end -->"
    lines = "\n".join([begin, *{"tpu": on_a_tpu, "cuda": on_a_gpu}[platform](), end])
    PAGE.write_text(re.sub(f"(?s){begin}.*{end}", lambda _: lines, PAGE.read_text()))
    print(lines)
