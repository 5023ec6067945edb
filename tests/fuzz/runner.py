"""Checks programs, many of them, and tells what broke."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax

from tests.fuzz.generate import from_seed
from tests.fuzz.laws import COMPILED, LAWS, Case
from tests.fuzz.oracle import Inexact
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink

# XLA sees one program in so many.
COMPILED_EVERY = 25
# Every program leaves traces behind in JAX's caches. Tidying costs the most where it is done often: what is compiled for
# single operations goes with the rest, and the collector looks through all that JAX remembers.
TIDIED_EVERY = 500


@dataclasses.dataclass(frozen=True)
class Failure:
    law: str
    kind: str
    message: str
    program: Program

    def __str__(self) -> str:
        return f"{self.law}: {self.kind}: {self.message}\n  {self.program!r}"


def check(program: Program, turn: int = 0, laws: Iterable[Callable[[Case], None]] = LAWS) -> Failure | None:
    """The first law that ``program`` breaks."""
    case = Case(program, turn)
    for law in laws:
        failure = check_law(case, law)
        if failure is not None:
            return failure
    return None


def check_law(case: Case, law: Callable[[Case], None]) -> Failure | None:
    try:
        law(case)
    except Inexact:
        return None
    except Exception as error:
        return Failure(law.__name__, type(error).__name__, str(error)[:2000], case.program)
    return None


def laws_for(seed: int) -> tuple[Callable[[Case], None], ...]:
    return (*LAWS, *COMPILED) if seed % COMPILED_EVERY == 0 else LAWS


def minimise(failure: Failure, turn: int, laws: Iterable[Callable[[Case], None]] = (*LAWS, *COMPILED)) -> Failure:
    law = next(law for law in laws if law.__name__ == failure.law)

    def fails(program: Program) -> bool:
        found = check_law(Case(program, turn), law)
        # The line of the message that says what is wrong, without the values.
        return found is not None and (found.kind, found.message[:25]) == (failure.kind, failure.message[:25])

    smallest = shrink(failure.program, fails)
    return check_law(Case(smallest, turn), law) or failure


def fuzz(count: int, first: int, *, shrinking: bool = True, report: Callable[[str], Any] = print) -> list[Failure]:
    """Check ``count`` programs, those of the seeds from ``first`` on."""
    failures = []
    start = time.monotonic()
    gc.disable()
    for done, seed in enumerate(range(first, first + count), 1):
        program = from_seed(seed)
        found = check(program, seed, laws_for(seed))
        if found is not None:
            report(f"seed {seed} broke {found.law}")
            failures.append(minimise(found, seed) if shrinking else found)
            report(f"{failures[-1]}\n  turn {seed}")
        if done % TIDIED_EVERY == 0:
            jax.clear_caches()
        if done % 100 == 0:
            gc.collect()
            speed = done / (time.monotonic() - start)
            report(f"{done} programs, {len(failures)} failures, {speed:.1f} programs per second, next seed {seed + 1}")
    gc.enable()
    return failures
