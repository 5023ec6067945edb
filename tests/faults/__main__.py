"""`python -m tests.faults 100` kills processes that log, 100 rounds for each backend; options: --help."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.plain import INSTALLED
from tests.faults.rounds import BACKENDS, Plan, Round, fault_server
from tests.forks import Server

ONE_BY_ONE = 75  # file operations; of those that come later, every tenth


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rounds", type=int, help="rounds of faults at random moments, for each backend")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first round: `1 --seed 7 --backend csv` plays one again"
    )
    parser.add_argument("--operations", action="store_true", help="also kill at each file operation in turn")
    options = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, fault_server() as server:
        for backend in options.backend or INSTALLED:
            failed += _random_rounds(server, backend, options.rounds, options.seed, Path(scratch))
            if options.operations:
                failed += _every_operation(server, backend, Path(scratch))
    return int(failed > 0)


def _random_rounds(server: Server, backend: str, rounds: int, seed: int, scratch: Path) -> int:
    begun, processor_time = time.monotonic(), time.process_time()
    kinds: Counter[str] = Counter()
    killed, failed = 0, 0
    for number in range(seed, seed + rounds):
        one = Round(server, Plan.draw(backend, number), scratch / f"{backend}-{number}")
        failed += _fails(one, one.play, f"{backend}, round {number}: {one.plan}")
        killed += one.killed
        kinds[one.plan.kind] += 1
        processor_time -= one.processor_time
    processor_time = (time.process_time() - processor_time) / rounds
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    print(
        f"{backend}: {rounds} rounds ({parts}), {killed} processes killed, {failed} rounds failed, "
        f"{time.monotonic() - begun:.0f} s, {processor_time:.2f} s of a processor for a round",
        flush=True,
    )
    return failed


def _every_operation(server: Server, backend: str, scratch: Path) -> int:
    """Dies at the first file operation, at the second, and so on, until a process comes to its end."""
    number, killed, failed, dies = 0, 0, 0, True
    while dies:
        number += 1 if number < ONE_BY_ONE else 10
        plan = Plan(backend, number, "log", 3, True, True, 1, True)
        one = Round(server, plan, scratch / f"{backend}-operation-{number}")

        def play(one: Round = one, number: int = number) -> None:
            if one.die_of(operation=number):
                one.complete()

        failed += _fails(one, play, f"{backend}, at operation {number}")
        dies = one.killed > 0
        killed += dies
    print(f"{backend}: killed at {killed} file operations, {failed} failed", flush=True)
    return failed


def _fails(one: Round, play: Callable[[], None], what: str) -> bool:
    """Whether a round fails. Its files are kept then."""
    try:
        play()
    except AssertionError as error:
        kept = one.move_files(Path(tempfile.mkdtemp(prefix="lox-faults-")))
        print(f"FAILED {what}\n{error}\nIts files are in {kept}", file=sys.stderr, flush=True)
        return True
    one.remove_files()
    return False


if __name__ == "__main__":
    sys.exit(main())
