"""What a live display knows about each run: the latest values, how they went, and how fast records come."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

import lox
from lox.loggers import _tree
from lox.loggers._numbers import as_float

_HISTORY = 64  # numbers behind a sparkline
_RATE_SECONDS = 10.0  # the rate is that of so many seconds


class RunBoard:
    def __init__(self, name: str) -> None:
        self.name = name
        self.records = 0
        self.steps: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.history: dict[str, deque[float]] = {}
        self._arrivals: deque[tuple[float, int]] = deque()

    def add(self, logs: lox.logdict) -> None:
        """Takes note of a table. Only its last rows are looked at: a display has no use for the others."""
        rows = max((int(count) for count in logs.counts.values()), default=0)
        self.records += rows
        self._arrivals.append((time.monotonic(), rows))
        for axis, by_key in logs.steps.items():
            last = [as_float(steps[-1]) for steps in by_key.values() if len(steps)]
            self.steps[axis] = max((step for step in last if step is not None), default=0)
        for key, value in logs.items():
            for path, column in _tree.leaves_of(value):
                self._add_column("/".join([key, *(str(part) for _, part in path)]), column[-_HISTORY:])

    def rate(self) -> float:
        """Records per second, lately."""
        now = time.monotonic()
        while len(self._arrivals) > 1 and now - self._arrivals[0][0] > _RATE_SECONDS:
            self._arrivals.popleft()
        if not self._arrivals:
            return 0.0
        return sum(rows for _, rows in self._arrivals) / max(now - self._arrivals[0][0], 0.1)

    def _add_column(self, name: str, column: np.ndarray) -> None:
        numbers = [number for row in column if (number := as_float(row)) is not None]
        if numbers:
            self.latest[name] = numbers[-1]
            self.history.setdefault(name, deque(maxlen=_HISTORY)).extend(numbers)


class Board:
    """All runs of a display."""

    def __init__(self) -> None:
        self.runs: dict[str, RunBoard] = {}

    def metrics(self) -> list[str]:
        return list(dict.fromkeys(key for run in self.runs.values() for key in run.latest))

    def axes(self) -> list[str]:
        return list(dict.fromkeys(axis for run in self.runs.values() for axis in run.steps))

    def short_name(self, run: RunBoard) -> str:
        """As much of the end of a run's name as tells it apart, and at least eight characters."""
        length = 8
        while length < len(run.name) and sum(other.endswith(run.name[-length:]) for other in self.runs) > 1:
            length += 1
        return run.name[-length:]

    def latest(self, key: str) -> np.ndarray:
        """The latest value of a key in each run that has one."""
        return np.asarray([run.latest[key] for run in self.runs.values() if key in run.latest])

    def history(self, key: str) -> np.ndarray:
        """How the mean over the runs went, as far back as all of them go."""
        each = [list(run.history[key]) for run in self.runs.values() if key in run.history]
        length = min(map(len, each))
        return np.mean([numbers[-length:] for numbers in each], axis=0)

    def records(self) -> int:
        return sum(run.records for run in self.runs.values())

    def rate(self) -> float:
        return sum(run.rate() for run in self.runs.values())

    def step_range(self, axis: str) -> tuple[float, float]:
        steps = [run.steps[axis] for run in self.runs.values() if axis in run.steps]
        return min(steps), max(steps)
