"""Checks programs, many of them, and tells what broke."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from lox._storage import packing
from tests.fuzz.generate import from_seed
from tests.fuzz.laws import COMPILED, LAWS, Case
from tests.fuzz.oracle import Inexact
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink

# Most programs are built for the CPU that they run on; others as for a GPU or a TPU, which changes their cost but no result.
PLATFORMS = ("cpu", "cuda", "cpu", "tpu")
# A law is about a program and a way to transform it. Many programs with a few laws each see more pairs that differ than a few
# programs with all laws, so a seed draws so many of those that follow the first two.
ALWAYS, DRAWN = LAWS[:2], 4
# XLA sees one program in so many: a prime number, so that the forms of a law (`Case.one_of`) are all compiled.
COMPILED_EVERY = 23
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


@contextlib.contextmanager
def packed_for(platform: str) -> Iterator[None]:
    """Programs are built as for this platform: what is packed, and whether a tap cuts loops into chunks."""
    ours = packing._PACKING["cpu"]
    packing._PACKING["cpu"] = packing.packing_on(platform, may_be_split=False)
    try:
        yield
    finally:
        packing._PACKING["cpu"] = ours


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
        with packed_for(PLATFORMS[case.turn // 60 % len(PLATFORMS)]):
            law(case)
    except Inexact:
        return None
    except Exception as error:
        if _is_a_fault_of_jax(error):
            return None
        return Failure(law.__name__, type(error).__name__, str(error)[:2000], case.program)
    return None


def _is_a_fault_of_jax(error: Exception) -> bool:
    """JAX 0.9 cannot differentiate a while loop forwards that ``jax.linearize`` has been through, with or without lox."""
    *_, place = traceback.extract_tb(error.__traceback__)
    return jax.__version_info__ < (0, 10) and isinstance(error, TypeError) and place.name == "_while_loop_jvp"


def laws_for(seed: int, thorough: bool = False) -> tuple[Callable[[Case], None], ...]:
    """The laws that the program of a seed is held to; all of them if ``thorough``."""
    if thorough:
        return (*LAWS, *COMPILED)
    draw = random.Random(f"laws {seed}")
    compiled = [draw.choice(COMPILED)] if seed % COMPILED_EVERY == 0 else []
    return (*ALWAYS, *draw.sample(LAWS[len(ALWAYS) :], DRAWN), *compiled)


def minimise(failure: Failure, turn: int, laws: Iterable[Callable[[Case], None]] = (*LAWS, *COMPILED)) -> Failure:
    law = next(law for law in laws if law.__name__ == failure.law)

    def fails(program: Program) -> bool:
        found = check_law(Case(program, turn), law)
        # The line of the message that says what is wrong, without the values.
        return found is not None and (found.kind, found.message[:25]) == (failure.kind, failure.message[:25])

    smallest = shrink(failure.program, fails)
    return check_law(Case(smallest, turn), law) or failure


def fuzz(
    count: int, first: int, *, shrinking: bool = True, thorough: bool = False, report: Callable[[str], Any] = print
) -> list[Failure]:
    """Check ``count`` programs, those of the seeds from ``first`` on."""
    failures = []
    start = time.process_time()  # the machine may be busy
    gc.disable()
    gc.freeze()  # what has been imported stays
    for done, seed in enumerate(range(first, first + count), 1):
        program = from_seed(seed)
        found = check(program, seed, laws_for(seed, thorough))
        if found is not None:
            report(f"seed {seed} broke {found.law}")
            failures.append(minimise(found, seed) if shrinking else found)
            report(f"{failures[-1]}\n  turn {seed}")
        if done % TIDIED_EVERY == 0:
            jax.clear_caches()
        if done % 100 == 0:
            gc.collect()
            speed = done / (time.process_time() - start)
            report(f"{done} programs, {len(failures)} failures, {speed:.1f} a second of CPU time, next seed {seed + 1}")
    gc.enable()
    return failures
