"""What a live display knows about each run: the latest values, their trends, and how fast records arrive."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import lox
from lox._logdict.summary import summarized
from lox.loggers import _tree
from lox.loggers._backends.display.numbers import as_float, short
from lox.loggers._delivery.names import short_names

_POINTS = 64  # numbers that a trend keeps, at most
_MAX_TEXTS = 4  # different values of a config that are listed, at most
_RATE_SECONDS = 10.0  # the rate is measured over this many seconds


class Trend:
    """The trend of a value since the start of the run. It keeps only every n-th number, so that there are few."""

    def __init__(self) -> None:
        self.axis = ""
        """The step axis of the numbers; empty if records are counted."""
        self._seen = 0
        self._every = 1
        self._points: list[tuple[float, float]] = []
        self._last = float("nan"), float("nan")

    def extend(self, column: np.ndarray, axis: str = "", steps: np.ndarray | None = None) -> None:
        """Adds records, with their steps along an axis if they have one."""
        while len(column) > _POINTS * self._every:
            self._thin_out()
        numbers = np.arange(self._seen, self._seen + len(column))
        places = numbers if steps is None or len(steps) != len(column) else steps
        self.axis = axis
        for row in range(-self._seen % self._every, len(column), self._every):
            self._points += self._point(places[row], column[row])
        self._seen += len(column)
        while len(self._points) > _POINTS:
            self._thin_out()
        self._last = next(iter(self._point(places[-1], column[-1])), self._last)

    @staticmethod
    def _point(place: Any, value: Any) -> list[tuple[float, float]]:
        number = as_float(value)
        return [] if number is None else [(float(place), number)]

    def _thin_out(self) -> None:
        self._points = self._points[::2]
        self._every *= 2

    def points(self) -> list[tuple[float, float]]:
        """Steps and numbers, from the first record to the last."""
        is_last_a_point = (self._seen - 1) % self._every == 0
        return self._points if is_last_a_point else [*self._points, self._last]

    def numbers(self) -> list[float]:
        return [number for _, number in self.points()]


class RunBoard:
    def __init__(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        self.name = printable(name)
        self.config = dict(_flat(config or {}))
        self.hyperparameters: set[str] = set()
        """Values that were logged just once, without a step."""
        self.records = 0  # those of the key that has the most, so it does not matter which keys are logged together
        self.seen = 0  # those of all keys, to notice new ones
        self._counts: Counter[str] = Counter()
        self.steps: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.history: dict[str, Trend] = {}
        self._arrivals: deque[tuple[float, int]] = deque()

    def add(self, logs: lox.logdict) -> None:
        """Adds a table."""
        self._counts.update({key: int(count) for key, count in logs.counts.items()})
        self.seen = self._counts.total()
        rows = max(self._counts.values(), default=0) - self.records
        self.records += rows
        self._arrivals.append((time.monotonic(), rows))
        for axis, by_key in logs.steps.items():
            last = [as_float(steps[-1]) for steps in by_key.values() if len(steps)]
            # The largest step, because records that are logged rarely may arrive late.
            known = [self.steps.get(printable(axis)), *last]
            self.steps[printable(axis)] = max((step for step in known if step is not None), default=0)
        stepped = {key for by_key in logs.steps.values() for key in by_key}
        for key, value in logs.items():
            once = self._counts[key] == 1 and key not in stepped
            for path, column in _tree.leaves_of(summarized(value)):
                if len(column) and (latest := as_float(column[-1])) is not None:
                    name = printable(_tree.label(key, path))
                    (self.hyperparameters.add if once else self.hyperparameters.discard)(name)
                    self.latest[name] = latest
                    axis = next((axis for axis, by_key in logs.steps.items() if key in by_key), "")
                    steps = logs.steps[axis][key] if axis else None
                    self.history.setdefault(name, Trend()).extend(column, printable(axis), steps)

    def config_text(self) -> str:
        return config_text([self.config])

    def rate(self) -> float:
        """Records per second, measured recently."""
        now = time.monotonic()
        while len(self._arrivals) > 1 and now - self._arrivals[0][0] > _RATE_SECONDS:
            self._arrivals.popleft()
        if not self._arrivals:
            return 0.0
        return sum(rows for _, rows in self._arrivals) / max(now - self._arrivals[0][0], 0.1)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield printable(f"{prefix}{name}"), value


def config_text(configs: Iterable[Mapping[str, Any]]) -> str:
    """The flat configs of some runs as one line."""
    found: dict[str, list[Any]] = {}
    for config in configs:
        for name, value in config.items():
            found.setdefault(name, []).append(value)
    return "  ".join(f"{name}={_span(values)}" for name, values in found.items())


def _span(values: Sequence[Any]) -> str:
    """The value if all runs have the same, the range of numbers, or the first few of other values."""
    distinct = list({str(value): value for value in values}.values())
    if len(distinct) > 1 and all(isinstance(value, int | float) for value in distinct):
        return f"{short(min(distinct))}..{short(max(distinct))}"
    texts = [short(value) if isinstance(value, float) else printable(str(value)) for value in distinct]
    return ",".join(texts[:_MAX_TEXTS]) + ("..." if len(texts) > _MAX_TEXTS else "")


def printable(name: str) -> str:
    """A name without control characters."""
    return name if name.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


class Board:
    """All runs of a display."""

    def __init__(self) -> None:
        self.runs: dict[str, RunBoard] = {}

    def metrics(self) -> list[str]:
        """The keys that are shown with trends: all except those that are hyperparameters in every run that has them."""
        return list(
            dict.fromkeys(key for run in self.runs.values() for key in run.latest if key not in run.hyperparameters)
        )

    def config(self) -> str:
        """The config of the runs, each value or its range. For several runs it includes values that were logged just once: their
        mean would be useless."""
        metrics = set(self.metrics())
        configs = []
        for run in self.runs.values():
            once = run.hyperparameters - metrics if len(self.runs) > 1 else ()
            configs.append({**run.config, **{key: run.latest[key] for key in run.latest if key in once}})
        return config_text(configs)

    def axes(self) -> list[str]:
        return list(dict.fromkeys(axis for run in self.runs.values() for axis in run.steps))

    def short_names(self) -> dict[str, str]:
        return short_names(run.name for run in self.runs.values())

    def latest(self, key: str) -> np.ndarray:
        """The latest value of a key in each run that has one."""
        return np.asarray([run.latest[key] for run in self.runs.values() if key in run.latest])

    def history(self, key: str) -> np.ndarray:
        """The trend of the mean over the runs."""
        each = [np.asarray(run.history[key].numbers()) for run in self.runs.values() if key in run.history]
        length = min(map(len, each))
        return np.mean([numbers[np.linspace(0, len(numbers) - 1, length).astype(int)] for numbers in each], axis=0)

    def records(self) -> int:
        return sum(run.records for run in self.runs.values())

    def seen(self) -> int:
        return sum(run.seen for run in self.runs.values())

    def rate(self) -> float:
        return sum(run.rate() for run in self.runs.values())

    def step_range(self, axis: str) -> tuple[float, float]:
        steps = [run.steps[axis] for run in self.runs.values() if axis in run.steps]
        return min(steps), max(steps)
