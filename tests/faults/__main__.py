"""`python -m tests.faults 100` kills processes that log, 100 rounds for each backend; options: --help."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.rounds import BACKENDS, Plan, Round, Server

ONE_BY_ONE = 75  # file operations; of those that come later, every tenth


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("rounds", type=int, help="rounds of kill -9 at random moments, for each backend")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    parser.add_argument("--operations", action="store_true", help="also kill at each file operation in turn")
    options = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, Server(Path(scratch) / "errors") as server:
        for backend in options.backend or _installed():
            failed += _random_rounds(server, backend, options.rounds, options.seed, Path(scratch))
            if options.operations:
                failed += _every_operation(server, backend, Path(scratch))
    return int(failed > 0)


def _installed() -> list[str]:
    missing = {"tensorboard"} if importlib.util.find_spec("tensorboard") is None else set()
    return [backend for backend in BACKENDS if backend not in missing]


def _random_rounds(server: Server, backend: str, rounds: int, seed: int, scratch: Path) -> int:
    begun, lives, failed = time.monotonic(), 0, 0
    for number in range(seed, seed + rounds):
        one = Round(server, Plan.draw(backend, number), scratch / f"{backend}-{number}")
        failed += _fails(one.play, f"{backend}, round {number}: {one.plan}")
        lives += one.killed
    spent = time.monotonic() - begun
    print(f"{backend}: {rounds} rounds, {lives} processes killed, {failed} rounds failed, {spent:.0f} s", flush=True)
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

        failed += _fails(play, f"{backend}, at operation {number}")
        dies = one.killed > 0
        killed += dies
    print(f"{backend}: killed at {killed} file operations, {failed} failed", flush=True)
    return failed


def _fails(play: object, what: str) -> bool:
    try:
        play()  # type: ignore[operator]
    except AssertionError as error:
        print(f"FAILED {what}\n{error}", file=sys.stderr, flush=True)
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
