"""Sending records to the host, one by one or gathered in a buffer on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lox._logdict import logdict
from lox._mark import Mark
from lox._stores import Aval, RingStore

Array = Any


@dataclasses.dataclass(frozen=True)
class Stream:
    """Makes logs out of the records of one mark, and delivers them."""

    tapper: Any
    frame: Any
    mark: Mark

    def send_one(self, leaves: Sequence[Array], steps: Sequence[Array], due: Array | None) -> None:
        alive = self.frame.alive if due is None else self.frame.alive & due
        counts = dict.fromkeys(self.names, 1)
        self.tapper.deliver(self.frame, self._logs(leaves, steps, counts, stacked=False), alive, due is not None)

    def send_rows(self, leaves: Sequence[Array], steps: Sequence[Array], count: Array, due: Array) -> None:
        counts = dict.fromkeys(self.names, count)
        logs = self._logs(leaves, steps, counts, stacked=True)
        self.tapper.deliver(self.frame, logs, self.frame.alive & due, True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tapper.options.prefix + key for key in self.mark.keys)

    def _logs(self, leaves: Sequence[Array], steps: Sequence[Array], counts: dict[str, Any], stacked: bool) -> logdict:
        rest = iter(leaves)
        values = {
            name: tree.unflatten([next(rest) for _ in range(tree.num_leaves)])
            for name, tree in zip(self.names, self.mark.trees, strict=True)
        }
        by_axis = {axis: dict.fromkeys(self.names, step) for axis, step in zip(self.mark.axes, steps, strict=True)}
        names = frozenset(self.names if stacked else ())
        return logdict._make(values, by_axis, counts, names, dict.fromkeys(names))


@dataclasses.dataclass(frozen=True)
class BatchStore:
    """A buffer of ``rows`` records that is sent when it is full."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]

    @functools.cached_property
    def _ring(self) -> RingStore:
        return RingStore(self.rows, self.leaves, self.steps)

    def init(self) -> Any:
        return self._ring.init()

    def add(self, state: Any, leaves: Sequence[Array], steps: Sequence[Array], due: Array | None, stream: Stream) -> Any:
        count, buffers = self._ring.add(state, leaves, steps, due)
        full = count == self.rows
        self._send(count, buffers, full, stream)
        return jnp.where(full, 0, count), buffers

    def flush(self, state: Any, stream: Stream) -> None:
        """Send what is left."""
        count, buffers = state
        self._send(count, buffers, count > 0, stream)

    def _send(self, count: Array, buffers: list[Array], due: Array, stream: Stream) -> None:
        arrays = self._ring.unpack(buffers)
        stream.send_rows(arrays[: len(self.leaves)], arrays[len(self.leaves) :], count, due)


