"""Records on their way from a mark to the host, one by one or gathered in a buffer on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._host import order
from lox._host.delivery import Delivery, as_arrays
from lox._host.primitive import deliver
from lox._host.targets import Form, Part, RecordsTarget, RowsTarget
from lox._jax import compat, sharding
from lox._storage.stores import Aval, RingStore, empty, select
from lox._types import Alive, Array


@dataclasses.dataclass(frozen=True)
class Line:
    """The way from a place in a program to the host: what every call from there has in common.

    Attributes:
      operands: those of the receiver, sent along each time.
      alive: whether the program really is there.
      sequence: puts the calls in order by their tokens; None: nobody does.
      waits: whether calls wait for each other where they are not put in order.
    """

    operands: Any
    alive: Alive
    ordered: bool
    sequence: order.Sequence | None = None
    waits: bool = True

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
            sequence=self.sequence,
            waits=self.waits,
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


def send_records(line: Line, records: Sequence[Waiting], token: Array | None, asks: bool = True) -> Array | None:
    """Send records in one call; returns the next token. If it ``asks``, there is no call if none of them is due."""
    conditions = [record.due for record in records if record.due is not None]
    due = functools.reduce(lax.bitwise_or, conditions) if asks and len(conditions) == len(records) else None
    leaves: list[Array] = []
    parts = []
    for record in records:
        # Of one record, a call that is made only then says that it is due.
        masked = [record.due] if record.due is not None and (due is None or len(records) > 1) else []
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

    token: Array | None

    def send_rows(
        self, ring: RingStore, count: Array | None, buffers: Sequence[Array], due: Array | None
    ) -> Array | None:
        """Send a buffer with ``count`` rows in use; None: all. ``due``: whether to send it at all; None: yes. Returns the next
        token."""

        def target(tree: Any) -> RowsTarget:
            return RowsTarget(self.handle, self.form, ring, tree, full=count is None)

        after = self.line.deliver(target, [*([] if count is None else [count]), *buffers], due, self.token)
        return after[0] if after else None


@dataclasses.dataclass(frozen=True)
class RecordStore:
    """One record that is sent later: when it was made, its leaves, then its steps. There is none if the time is negative. In a
    shard_map, each device has its own.

    Attributes:
      in_lanes: the first leaf says which lanes made the record.
      mesh: the sizes of the mesh axes.
      spread: how the stores of the devices lie on a mesh with explicit axes.
    """

    leaves: tuple[Aval, ...]
    in_lanes: bool = False
    mesh: tuple[int, ...] = ()
    spread: Any = None

    def init(self) -> list[Array]:
        with compat.mode_for(aval.dtype for aval in self.leaves):
            nothing = [jnp.int32(-1), *map(empty, self.leaves)]
            return [sharding.for_each_device(leaf, self.mesh, self.spread) for leaf in nothing]

    def add(self, state: list[Array], leaves: Sequence[Array], due: Array | None, time: Any) -> list[Array]:
        return jax.tree.map(sharding.vary_like, select(due, [time, *leaves], state), state)

    def emptied(self, state: list[Array], before: list[Array]) -> list[Array]:
        """As it was ``before`` a chunk, so that nothing is carried from one to the next."""
        del state
        return before


@dataclasses.dataclass(frozen=True)
class BatchStore:
    """A buffer of ``rows`` records that is sent when it is full, or after a chunk of a loop. In a shard_map, each device has its
    own. The attributes are those of a ``RecordStore``."""

    rows: int
    leaves: tuple[Aval, ...]
    steps: tuple[Aval, ...]
    packed: int
    in_lanes: bool = False
    mesh: tuple[int, ...] = ()
    spread: Any = None

    @functools.cached_property
    def _ring(self) -> RingStore:
        return RingStore(self.rows, self.leaves, self.steps, packed=self.packed, wraps=False)

    def init(self) -> Any:
        return jax.tree.map(lambda x: sharding.for_each_device(x, self.mesh, self.spread), self._ring.init())

    def add(self, state: Any, leaves: Sequence[Array], due: Array | None, time: Any = None) -> Any:
        del time  # rows are in order
        number = len(self.leaves)
        added = self._ring.add(state, leaves[:number], leaves[number:], due)
        return jax.tree.map(sharding.vary_like, added, state)

    # The token after the call is the last that these return.

    def send_if_full(self, state: Any, stream: Stream) -> tuple[Any, Array | None]:
        count, buffers = state
        full = count == self.rows
        token = stream.send_rows(self._ring, None, buffers, full)
        return (lax.select(full, np.int32(0), count), buffers), token

    def send(self, state: Any, stream: Stream, is_full: bool) -> Array | None:
        """Send what there is, even if that is nothing."""
        count, buffers = state
        return stream.send_rows(self._ring, None if is_full else count, buffers, None)

    def emptied(self, state: Any, before: Any = None) -> Any:
        del before  # what is in the rows does not matter
        count, buffers = state
        return sharding.vary_like(lax.full_like(count, 0), count), buffers

    def flush(self, state: Any, stream: Stream) -> Array | None:
        """Send what is left."""
        count, buffers = state
        return stream.send_rows(self._ring, count, buffers, count > 0)
