"""Records on their way from a mark to the host, one by one or gathered in a buffer on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from lox._host.delivery import Delivery, as_arrays
from lox._host.primitive import deliver
from lox._host.targets import Form, Part, RecordsTarget, RowsTarget
from lox._jax import compat, sharding
from lox._storage.stores import Aval, RingStore, empty
from lox._types import Alive, Array


@dataclasses.dataclass(frozen=True)
class Line:
    """The way from a place in a program to the host: what every call from there has in common.

    Attributes:
      operands: those of the receiver, sent along each time.
      alive: whether the program really is there.
      numbered: whether the tokens of its calls count them.
    """

    operands: Any
    alive: Alive
    ordered: bool
    numbered: bool = False

    def deliver(
        self, make: Callable[[Any], Any], leaves: Sequence[Any], due: Array | None, token: Array | None = None
    ) -> list[Array]:
        """``make`` takes the tree of the operands and returns the target."""
        operands, tree = jax.tree.flatten(self.operands)
        return deliver(
            make(tree),
            as_arrays([*operands, *leaves]),
            constants=len(operands),
            token=token,
            numbered=self.numbered,
            alive=self.alive if due is None else due if self.alive is True else self.alive & due,
            masked=due is not None,
            ordered=self.ordered,
        )


@dataclasses.dataclass(frozen=True)
class Waiting:
    """A record that waits for those that are certain to follow, so that one call brings them all.

    Attributes:
      leaves: those of the values, then the steps.
      due: whether there is a record at all; None: yes.
    """

    handle: Callable[[Delivery], None]
    form: Form
    leaves: Sequence[Array]
    due: Array | None


def send_records(line: Line, records: Sequence[Waiting], token: Array | None) -> Array | None:
    """Send records in one call; returns the next token. There is no call if none of them is due."""
    conditions = [record.due for record in records if record.due is not None]
    due = functools.reduce(lax.bitwise_or, conditions) if len(conditions) == len(records) else None
    leaves: list[Array] = []
    parts = []
    for record in records:
        # Of one record, the call itself says that it is due.
        masked = [record.due] if record.due is not None and len(records) > 1 else []
        leaves += [*masked, *record.leaves]
        parts.append(Part(record.handle, record.form, len(masked) + len(record.leaves), bool(masked)))
    after = line.deliver(lambda tree: RecordsTarget(tree, tuple(parts)), leaves, due, token)
    return after[0] if after else None


@dataclasses.dataclass(frozen=True)
class Stream:
    """Delivers buffers of records of one mark to a handle."""

    handle: Callable[[Delivery], None]
    form: Form
    line: Line

    def send_rows(self, ring: RingStore, count: Array | None, buffers: Sequence[Array], due: Array | None) -> None:
        """Send a buffer with ``count`` rows in use; None: all. ``due``: whether to send it at all; None: yes."""

        def target(tree: Any) -> RowsTarget:
            return RowsTarget(self.handle, self.form, ring, tree, full=count is None)

        self.line.deliver(target, [*([] if count is None else [count]), *buffers], due)


@dataclasses.dataclass(frozen=True)
class RecordStore:
    """One record that is sent later: its leaves, then its steps. In a shard_map, each device has its own.

    Attributes:
      mesh: the sizes of the mesh axes.
      spread: how the stores of the devices lie on a mesh with explicit axes.
    """

    leaves: tuple[Aval, ...]
    mesh: tuple[int, ...] = ()
    spread: Any = None

    def init(self) -> list[Array]:
        with compat.mode_for(aval.dtype for aval in self.leaves):
            return [sharding.for_each_device(empty(aval), self.mesh, self.spread) for aval in self.leaves]


@dataclasses.dataclass(frozen=True)
class BatchStore:
    """A buffer of ``rows`` records that is sent when it is full."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]
    packed: int
    in_lanes: bool = False  # the first leaf says which lanes made the record

    @functools.cached_property
    def _ring(self) -> RingStore:
        return RingStore(self.rows, self.leaves, self.steps, packed=self.packed, wraps=False)

    def init(self) -> Any:
        return self._ring.init()

    def add(self, state: Any, leaves: Sequence[Array], due: Array | None) -> Any:
        number = len(self.leaves)
        return self._ring.add(state, leaves[:number], leaves[number:], due)

    def send_if_full(self, state: Any, stream: Stream) -> Any:
        count, buffers = state
        full = count == self.rows
        stream.send_rows(self._ring, None, buffers, full)
        return lax.select(full, np.int32(0), count), buffers

    def send_full(self, state: Any, stream: Stream) -> Any:
        """Send a buffer that is known to be full."""
        count, buffers = state
        stream.send_rows(self._ring, None, buffers, None)
        return sharding.vary_like(lax.full_like(count, 0), count), buffers

    def flush(self, state: Any, stream: Stream) -> None:
        """Send what is left."""
        count, buffers = state
        stream.send_rows(self._ring, count, buffers, count > 0)
