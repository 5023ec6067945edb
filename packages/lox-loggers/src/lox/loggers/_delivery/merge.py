"""Single records that came one after the other, as one table: a backend takes a block in little more than the time of
a row.

Nobody can tell from what is written: only records that look alike are joined, and those of a run keep their order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import lox
from lox._host.delivery import Delivery
from lox.loggers._delivery.tables import nbytes

# Large records gain nothing from being copied together.
_MAX_BYTES = 4 * 1024 * 1024


class Joined(NamedTuple):
    """Deliveries as one. If they are several, each brought one record for each lane."""

    delivery: Delivery
    number: int


def joined(deliveries: Iterable[Delivery], *, keys_apart: bool = False) -> Iterator[Joined]:
    """The same records in fewer deliveries. Those of different runs may overtake each other, those of one never do,
    unless it is told that only the order within each key counts."""
    groups: dict[Any, dict[tuple[str, ...], _Group]] = {}  # by runs, and by keys if those are apart
    for delivery in deliveries:
        runs = delivery.lanes, np.asarray(delivery.operands).tobytes(), delivery.alive.tobytes()
        if runs not in groups:
            if delivery.lanes or any(lanes for lanes, _, _ in itertools.islice(groups, 1)):
                # Groups with lanes are alone: a run can be in two of them, and what came first is to be written first.
                yield from _drain(groups)
            groups[runs] = {}
        mine = groups[runs]
        keys = tuple(delivery.logs) if keys_apart else ()
        if keys in mine and mine[keys].takes(delivery):
            continue
        if keys in mine or not all(map(set(keys).isdisjoint, mine)):
            yield from _drain({runs: mine})
        mine[keys] = _Group(delivery)
    yield from _drain(groups)


def _drain(groups: dict[Any, dict[tuple[str, ...], _Group]]) -> Iterator[Joined]:
    for of_runs in groups.values():
        for group in of_runs.values():
            yield from group.joined()
        of_runs.clear()
    groups.clear()


class _Group:
    """Deliveries to the same runs, of records that look alike."""

    def __init__(self, first: Delivery) -> None:
        self.lanes = first.lanes
        self._members = [first]
        self._look = _look(first)
        self._bytes = nbytes(first.logs)
        self._left = _MAX_BYTES - self._bytes

    def takes(self, delivery: Delivery) -> bool:
        if self._look is None or self._left < self._bytes or _look(delivery) != self._look:
            return False
        self._members.append(delivery)
        self._left -= self._bytes
        return True

    def joined(self) -> Iterator[Joined]:
        if len(self._members) == 1 or self._shares_runs():
            return (Joined(member, 1) for member in self._members)
        logs = _join([member.logs for member in self._members], len(self.lanes))
        return iter([Joined(self._members[0]._replace(logs=logs), len(self._members))])

    def _shares_runs(self) -> bool:
        """Whether several lanes log to one run, whose records are then in the order of the lanes in each delivery."""
        ids = np.asarray(self._members[0].operands).reshape(-1).tolist()
        return len(set(ids)) < len(ids)


def _look(delivery: Delivery) -> Any:
    """Equal for deliveries whose records can be joined. None if there is not one record in each lane, or one that is
    on its own.

    This is done for each delivery, hence the loops that run in C.
    """
    logs, stacked = delivery.logs, delivery.logs._stacked
    if not logs or (stacked and (delivery.lanes or len(stacked) < len(logs))) or _lacks_records(logs):
        return None
    values: list[Any] = list(logs.values())
    structure = None
    if set(map(type, values)) != _ARRAYS_ONLY:
        values, structure = jax.tree_util.tree_flatten(values)
    dtypes, shapes = list(map(_dtype, values)), list(map(_shape, values))
    if any(map(_metadata, dtypes)):  # numpy would forget them
        return None
    if stacked and any(shape[0] != 1 for shape in shapes):
        return None
    axes = []
    for axis, by_key in logs._steps.items():
        # Where keys have steps of their own, equal steps of other records would become one row with them.
        if len(by_key) != len(logs) or len(set(map(id, by_key.values()))) > 1:
            return None
        step = next(iter(by_key.values()))
        axes.append((axis, step.dtype, step.shape))
    # What differs first decides: a structure cannot be compared with None.
    return bool(stacked), list(logs), structure is None, structure, dtypes, shapes, axes


def _lacks_records(logs: lox.logdict) -> bool:
    """Whether there can be room where no record is: a condition did not hold."""
    counts = logs._counts.values()
    return 0 in counts if set(map(type, counts)) == _NUMBERS_ONLY else not all(map(np.all, counts))


_ARRAYS_ONLY, _NUMBERS_ONLY = {np.ndarray}, {int}
_dtype, _shape, _metadata = map(operator.attrgetter, ("dtype", "shape", "metadata"))


def _join(tables: Sequence[lox.logdict], lanes: int) -> lox.logdict:
    """Logs that look alike, as one table; axes of lanes stay in front."""
    first = tables[0]
    is_table = bool(first.stacked)

    def stack(*arrays: np.ndarray) -> np.ndarray:
        stacked = np.array(arrays)
        return stacked.reshape(-1, *stacked.shape[2:]) if is_table else np.moveaxis(stacked, 0, lanes)

    def column(key: str) -> Any:
        values = [table[key] for table in tables]
        return stack(*values) if type(values[0]) is np.ndarray else jax.tree_util.tree_map(stack, *values)

    any_key = next(iter(first))
    steps = {
        axis: dict.fromkeys(first, stack(*[table._steps[axis][any_key] for table in tables])) for axis in first._steps
    }
    counts = dict.fromkeys(first, len(tables))
    return lox.logdict._make({key: column(key) for key in first}, steps, counts, frozenset(first), {})
