"""What a chunk of a loop has held, on its way to the host: records that each know when they were made, and rows of buffers that
may be empty."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lox._host.delivery import Delivery
from lox._host.streams import Line, Waiting
from lox._host.targets import Part, RecordsTarget
from lox._types import Array


def send_held(line: Line, records: Sequence[Waiting], token: Array | None) -> Array | None:
    """Send the records of a chunk in one call; returns the next token. The first leaf of each says when it was made."""
    parts = tuple(Part(record.handle, record.form, len(record.leaves), False) for record in records)
    leaves = [leaf for record in records for leaf in record.leaves]
    after = line.deliver(lambda tree: RecordsTarget(tree, (HeldPart(parts),)), leaves, None, token)
    return after[0] if after else None


@dataclasses.dataclass(frozen=True)
class HeldPart:
    """Records of several marks that a call brings, each in its place. They are handed on in the order in which they were made;
    those of a negative time are not there."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def hand_on(self, lanes: tuple[int, ...], alive: np.ndarray, operands: Any, leaves: Sequence[np.ndarray]) -> None:
        rest = iter(leaves)
        held = [[next(rest) for _ in range(part.size)] for part in self.parts]
        for i, which in _in_order(np.stack([record[0] for record in held]), alive):
            part = self.parts[i]
            part.handle(Delivery(lanes, which, operands, part.form.record(held[i][1:])))


def _in_order(times: np.ndarray, alive: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Places of records, and the lanes whose record it is. Each lane has its own order: those that come to the same place next
    go together."""
    never = np.iinfo(times.dtype).max
    left = np.where((times >= 0) & alive, times, never)
    while True:
        following, first = left.argmin(0), left.min(0)
        if first.min(initial=never) == never:
            return
        place = int(following.flat[first.argmin()])
        which = (following == place) & (first < never)
        yield place, which
        left[place] = np.where(which, never, left[place])


@dataclasses.dataclass(frozen=True)
class UnlessEmpty:
    """Hands on the rows of those lanes that have any."""

    handle: Callable[[Delivery], None]

    def __call__(self, delivery: Delivery) -> None:
        count = np.asarray(next(iter(delivery.logs.counts.values())))
        some = (count > 0).reshape((*delivery.lanes, -1)).any(-1)
        if (delivery.alive & some).any():
            self.handle(delivery._replace(alive=delivery.alive & some))
