"""What a tap keeps on the device from one record to the next: counters for ``interval=``, and records that are sent later."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from lox._host.streams import BatchStore, RecordStore
from lox._interpret.cuts import Cuts, Label, label_of
from lox._interpret.pacing import AS_A_WHOLE, Pace, Paces
from lox._interpret.selection import Selection
from lox._interpret.survey import Survey, Usages, Use
from lox._jax import sharding
from lox._marks.mark import Mark, Record
from lox._storage.packing import MAX_PACKED_ELEMENTS, Packing
from lox._storage.stores import Aval
from lox._types import Array

# The numbers of the token that chains host calls in program order, and of the one that the program began with. Counters and
# stores have numbers from 0, clocks below these.
TOKEN, FIRST_TOKEN = -1, -2


@dataclasses.dataclass(frozen=True)
class TapOptions:
    selection: Selection
    prefix: str
    interval: int | None
    batch: int | None
    ordered: bool


class Kept:
    """Counters, stores and clocks, each with its number.

    Attributes:
      counters: of each key, if there is an interval.
      stores: of records that are not sent at once, by the label of what is recorded.
      clocks: of each key. They tell in which order a loop has recorded what it sends later; the devices of a shard_map have
        their own.
    """

    def __init__(self, survey: Survey, jaxpr: Any, options: TapOptions, packing: Packing) -> None:
        self._survey, self._usages = survey, survey(jaxpr).usages
        self.counters = _number(_same_marks(self._usages)) if options.interval else {}
        self.stores: dict[Label, tuple[int, BatchStore | RecordStore]] = {}
        self.clocks: dict[str, int] = {}
        self._paces: Paces | None = None
        if options.batch or (options.interval and packing.intervals):
            self._paces = self._keep_until_later(jaxpr, options, packing)

    def _keep_until_later(self, jaxpr: Any, options: TapOptions, packing: Packing) -> Paces:
        """Sets the stores and the clocks; returns how loops are taken that send what is in them."""
        if not options.batch:
            meshes = _number({key: usage.uses[0].mesh for key, usage in self._usages.items()})
            self.clocks = {key: FIRST_TOKEN - 1 - number for key, number in meshes.items()}
        of_marks: dict[Label, tuple[int, ...]] = {}
        first = len(set(self.counters.values()))
        for mark, label, store in _stores(self._survey, self._usages, options, self.counters, packing):
            number, _ = self.stores.setdefault(label, (first + len(self.stores), store))
            of_marks[mark] = (*of_marks.get(mark, ()), number)
        most = packing.batches if options.batch else packing.intervals
        cuts = Cuts(self._survey, jaxpr, options.interval or 1, options.batch or 1, most, not options.batch)
        paces = Paces(self._survey, jaxpr, cuts if most else None, of_marks, self.clocks)
        # Outside of chunks, buffers are sent when they are full; but from a shard_map, nobody could send the rest.
        buffers = {number for number, store in self.stores.values() if options.batch and not store.mesh}
        needed = paces.held | (paces.loose & buffers)
        self.stores = {label: stored for label, stored in self.stores.items() if stored[0] in needed}
        self.clocks = self.clocks if paces.held else {}
        return paces

    @property
    def num_rests(self) -> int:
        """How often iterations are left after whole chunks of loops."""
        return 0 if self._paces is None else self._paces.num_rests

    def pace(self, eqn: Any, later: frozenset[int]) -> Pace:
        return AS_A_WHOLE if self._paces is None else self._paces.of(eqn, later)

    def init(self) -> dict[int, Any]:
        # A counter inside shard_map is one per device.
        zeros = {number: key for numbers in (self.counters, self.clocks) for key, number in numbers.items()}
        state: dict[int, Any] = {
            number: for_each_device(jnp.int32(0), self._usages[key].uses[0]) for number, key in zeros.items()
        }
        state.update({number: store.init() for number, store in self.stores.values()})
        around = sharding.manual_axes_here()
        return jax.tree.map(lambda x: sharding.vary_over(x, around), state) if around else state

    def used_by(self, usages: Usages) -> set[int]:
        """The numbers of what a part of a program with these usages changes."""
        numbers = {numbers[key] for numbers in (self.counters, self.clocks) for key in usages if key in numbers}
        for mark, _ in self.stores:
            if any(key in usages for key in mark.keys):
                numbers.update(number for label, (number, _) in self.stores.items() if label[0] == mark)
        return numbers

    def buffers(self) -> Iterator[tuple[Label, int, BatchStore]]:
        """Those that can hold records of a mark outside of chunks."""
        loose = set() if self._paces is None else self._paces.loose
        for label, (number, store) in self.stores.items():
            if number in loose and isinstance(store, BatchStore) and not store.mesh:
                yield label, number, store


def for_each_device(value: Array, use: Use) -> Array:
    return sharding.for_each_device(value, use.mesh, use.spread)


def label_of_part(mark: Mark, keys: tuple[str, ...], leaves: Iterable[Any]) -> Label:
    """Identifies some keys of a call of ``lox.log``: a line that logs different keys each time has several such calls."""
    part, types = label_of(mark.pick(keys), leaves)
    return part, (mark, types)


def leaves_of(record: Record, keys: tuple[str, ...]) -> list[Any]:
    """The leaves of some keys of a record, and the steps."""
    return [leaf for key in keys for leaf in record.leaves[key]] + list(record.steps.values())


def _same_marks(usages: Usages) -> dict[str, Any]:
    """Keys of exactly the same marks are always recorded together, so they can share a counter. Keys of different marks cannot:
    each mark advances its counter."""
    return {key: frozenset(use.mark for use in usage.uses) for key, usage in usages.items()}


def _number(labels: dict[str, Any]) -> dict[str, int]:
    """Equal labels, equal numbers."""
    numbers: dict[Any, int] = {}
    return {key: numbers.setdefault(label, len(numbers)) for key, label in labels.items()}


def _together(counters: dict[str, int], keys: Iterable[str]) -> list[tuple[str, ...]]:
    """The keys of a mark that are delivered together, because one counter decides for all of them."""
    groups: dict[int | None, list[str]] = {}
    for key in keys:
        groups.setdefault(counters.get(key), []).append(key)
    return [tuple(group) for group in groups.values()]


def _stores(
    survey: Survey, usages: Usages, options: TapOptions, counters: dict[str, int], packing: Packing
) -> Iterator[tuple[Label, Label, BatchStore | RecordStore]]:
    """A store for each call of ``lox.log`` and each set of its keys that is delivered together, with the labels of both."""
    packed = min(packing.host, MAX_PACKED_ELEMENTS)
    uses = {(label_of(use.mark, use.operands), use.lanes): use for usage in usages.values() for use in usage.uses}
    for (of_mark, _), use in uses.items():
        mark, record = use.mark, Record.of(use.mark, use.operands)
        which = [Aval(use.lanes, jnp.bool_)] if use.lanes else []
        for together in _together(counters, survey.selected(mark)):
            leaves = leaves_of(record, together)
            avals = which + [Aval(leaf.shape, leaf.dtype, sharding=sharding.split_of(leaf)) for leaf in leaves]
            values, steps = tuple(avals[: len(avals) - len(mark.axes)]), tuple(avals[len(avals) - len(mark.axes) :])
            places = (bool(use.lanes), use.mesh, use.spread)
            store = (
                BatchStore(options.batch, values, steps, packed, *places)
                if options.batch
                else RecordStore(values + steps, *places)
            )
            yield of_mark, label_of_part(mark, together, avals), store
