"""Measuring in turns, and the figures that come out of it."""

from __future__ import annotations

import dataclasses
import gc
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

# A sample lasts at least this long: short calls are repeated, so that the clock and the loop around them do not count.
SAMPLE_SECONDS = 2e-3
MIN_ROUNDS, MAX_ROUNDS = 9, 301
# A figure whose ratio is uncertain by more than this part of itself is called too noisy.
NOISY = 0.10

# "wall" or "cpu" (seconds of this process on any core: steadier where others use the machine too).
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]

Thunk = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number of the report.

    Attributes:
      ratio: what ``what`` costs, as a multiple of ``against``; its target is an upper bound, or with ``at_least`` a lower one.
      low, high: the interval in which the ratio lies, nine times out of ten; equal where nothing is uncertain (bytes).
      unit: what is compared: "time", "bytes", "speedup", "rate" (rows a second), "growth", "yes" (0 or 1).
      measured: medians by name (seconds, or bytes), for those who want to see more than ratios.
    """

    topic: str
    what: str
    against: str
    case: str
    ratio: float
    low: float
    high: float
    target: float | None = None
    at_least: bool = False
    unit: str = "time"
    measured: dict[str, float] = dataclasses.field(default_factory=dict)
    axis: tuple[str, float] | None = None  # where it lies in a plot: ("T", 10_000)
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.topic}: {self.what} / {self.against} ({self.case})"

    @property
    def uncertainty(self) -> float:
        return (self.high - self.low) / 2 / self.ratio if self.ratio else 0.0

    @property
    def noisy(self) -> bool:
        return self.uncertainty > NOISY

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


@dataclasses.dataclass(frozen=True)
class Samples:
    """Seconds per call, by name; sample i of each was taken in the same round."""

    times: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def medians(self) -> dict[str, float]:
        return {name: self.median(name) for name in self.times}

    def ratio(self, a: str, b: str) -> tuple[float, float, float]:
        """The ratio of the medians, and the interval that its rounds leave it."""
        middle = self.median(a) / self.median(b)
        pairs = sorted(x / y for x, y in zip(self.times[a], self.times[b], strict=True))
        # The interval of a median by order statistics: ranks n/2 -+ 1.64 sqrt(n)/2.
        n = len(pairs)
        reach = 0.82 * n**0.5
        low, high = pairs[max(0, int(n / 2 - reach))], pairs[min(n - 1, int(n / 2 + reach))]
        return middle, min(low, middle), max(high, middle)

    def figure(self, a: str, b: str, **fields: Any) -> Figure:
        ratio, low, high = self.ratio(a, b)
        fields = {"what": a, "against": b, **fields}
        return Figure(ratio=ratio, low=low, high=high, measured=self.medians(), **fields)

    def speedup(self, a: str, b: str, **fields: Any) -> Figure:
        """How many times faster ``a`` is than ``b``."""
        ratio, low, high = self.ratio(b, a)
        fields = {"what": a, "against": b, "at_least": True, "unit": "speedup", **fields}
        return Figure(ratio=ratio, low=low, high=high, measured=self.medians(), **fields)


def in_turns(
    thunks: dict[str, Thunk],
    *,
    seconds: float = 1.0,
    rounds: int = MIN_ROUNDS,
    wait: bool = True,
    per: dict[str, int] | None = None,
) -> Samples:
    """Measure the thunks in turns for about ``seconds``, in at least ``rounds``, after calls that do not count.

    Rounds in which the operating system took the processor away are left out, if enough others remain.

    Args:
      wait: block until the arrays that a thunk returns are there.
      per: how many things (rows) a call of each thunk does; times are then per thing.
    """
    repeats = {name: _repeats(thunk, wait) for name, thunk in thunks.items()}
    taken_in: list[tuple[bool, dict[str, float]]] = []
    names = list(thunks)
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    try:
        while len(taken_in) < rounds or (time.perf_counter() - start < seconds and len(taken_in) < MAX_ROUNDS):
            before = _preemptions()
            taken = {name: _sample(thunks[name], repeats[name], wait) for name in names}
            taken_in.append((_preemptions() == before, taken))
            names.reverse()  # nobody always comes after the same one
    finally:
        gc.enable()
    calm = [taken for undisturbed, taken in taken_in if undisturbed]
    used = calm if len(calm) >= rounds else [taken for _, taken in taken_in]
    parts = per or {}
    return Samples({name: [taken[name] / parts.get(name, 1) for taken in used] for name in thunks})


def _preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _repeats(thunk: Thunk, wait: bool) -> int:
    _sample(thunk, 1, wait)
    once = min(_sample(thunk, 1, wait) for _ in range(2))
    return max(1, int(SAMPLE_SECONDS / max(once, 1e-7)))


def _sample(thunk: Thunk, repeats: int, wait: bool) -> float:
    start = clock()
    for _ in range(repeats):
        result = thunk()
    if wait:
        jax.block_until_ready(result)
    return (clock() - start) / repeats


def exact(a: float, b: float, **fields: Any) -> Figure:
    """A ratio of things that are counted, not timed."""
    ratio = a / b if b else (1.0 if not a else float("inf"))
    measured = {fields["what"]: a, fields["against"]: b}
    return Figure(ratio=ratio, low=ratio, high=ratio, **{"unit": "bytes", "measured": measured, **fields})


def memory(fun: Callable[..., Any], *args: Any) -> int:
    """Bytes that the compiled program needs beside its arguments."""
    stats = jax.jit(fun).lower(*args).compile().memory_analysis()
    return stats.temp_size_in_bytes + stats.output_size_in_bytes
