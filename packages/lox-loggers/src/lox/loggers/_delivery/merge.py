"""The one place on the host where records are batched: deliveries that wait together become few, large tables.

Writing a table takes a backend little more time than writing a row, and no writer has to gather records itself.

What is written is the same as without batching. Only records that look alike are joined, and the records of a run keep their
order. With `keys_apart`, only the order within each key matters, so records with other keys in between do not end a table.
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

# Joining larger records gains nothing.
_MAX_BYTES = 4 * 1024 * 1024


class Joined(NamedTuple):
    """Several deliveries as one."""

    delivery: Delivery
    members: Sequence[Delivery]
    """The deliveries it was joined from, in order."""


def joined(deliveries: Iterable[Delivery], *, keys_apart: bool = False) -> Iterator[Joined]:
    """The same records in fewer deliveries. The order within a run does not change (with `keys_apart`, the order within a key of
    a run), but the order between runs may."""
    groups: dict[Any, _RunGroups] = {}
    for delivery in deliveries:
        runs = delivery.lanes, np.asarray(delivery.operands).tobytes(), delivery.alive.tobytes()
        if runs not in groups:
            if delivery.lanes or any(lanes for lanes, _, _ in itertools.islice(groups, 1)):
                # Deliveries with lanes are joined only with each other: a run can be in two sets of lanes, and earlier records
                # must be written first.
                yield from _drain(groups)
            groups[runs] = _RunGroups(keys_apart)
        yield from groups[runs].add(delivery)
    yield from _drain(groups)


def _drain(groups: dict[Any, _RunGroups]) -> Iterator[Joined]:
    for of_runs in groups.values():
        yield from of_runs.drain()
    groups.clear()


class _RunGroups:
    """What waits for one set of runs: one group, or, with `keys_apart`, groups that have no key in common."""

    def __init__(self, keys_apart: bool) -> None:
        self._keys_apart = keys_apart
        self._groups: dict[tuple[str, ...], _Group] = {}

    def add(self, delivery: Delivery) -> Iterator[Joined]:
        """Takes a delivery, and yields what has to be written before it."""
        keys = tuple(delivery.logs) if self._keys_apart else ()
        if keys in self._groups and self._groups[keys].takes(delivery):
            return
        shared = [there for there in self._groups if there == keys or not set(keys).isdisjoint(there)]
        if shared and self._keys_apart:
            mixed = _MixedGroup.of([self._groups[there] for there in shared])
            if mixed.takes(delivery):
                for there in shared:
                    del self._groups[there]
                self._groups[tuple(mixed.looks)] = mixed
                return
        if shared:
            yield from self.drain()
        self._groups[keys] = _Group(delivery)

    def drain(self) -> Iterator[Joined]:
        for group in self._groups.values():
            yield from group.joined()
        self._groups.clear()


class _Group:
    """Deliveries to the same runs, with records that look alike."""

    def __init__(self, first: Delivery) -> None:
        self.members = [first]
        self._look = _look(first)
        size = nbytes(first.logs)
        self._bytes_per_row = 0 if self._look is None else size // max(1, _rows(first))
        self.left = _MAX_BYTES - size

    @property
    def looks(self) -> dict[str, Any]:
        """How each key looks."""
        return {key: _look(_only(self.members[0], key)) for key in self.members[0].logs}

    def takes(self, delivery: Delivery) -> bool:
        """Adds a delivery if it looks like the others and there is room for it."""
        if self._look is None or _look(delivery) != self._look:
            return False
        return self._has_room(delivery, self._bytes_per_row * _rows(delivery))  # rows that look alike are equally large

    def joined(self) -> Iterator[Joined]:
        if len(self.members) == 1 or self._shares_runs():
            return (Joined(member, [member]) for member in self.members)
        return iter([Joined(self.members[0]._replace(logs=self._table()), self.members)])

    def _has_room(self, delivery: Delivery, size: int) -> bool:
        if size > self.left:
            return False
        self.members.append(delivery)
        self.left -= size
        return True

    def _table(self) -> lox.logdict:
        return _join([member.logs for member in self.members], len(self.members[0].lanes))

    def _shares_runs(self) -> bool:
        """Whether several lanes log to one run. Its records are then in the order of the lanes within each delivery."""
        ids = np.asarray(self.members[0].operands).reshape(-1).tolist()
        return len(set(ids)) < len(ids)


class _MixedGroup(_Group):
    """Deliveries to the same runs that have some keys in common, each of which always looks the same."""

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.members = [member for group in groups for member in group.members]
        self._looks = {key: look for group in groups for key, look in group.looks.items()}
        self.left = _MAX_BYTES - sum(_MAX_BYTES - group.left for group in groups)

    @classmethod
    def of(cls, groups: Sequence[_Group]) -> _MixedGroup:
        first, *others = groups
        return first if isinstance(first, cls) and not others else cls(groups)

    @property
    def looks(self) -> dict[str, Any]:
        return self._looks

    def takes(self, delivery: Delivery) -> bool:
        looks = {key: _look(_only(delivery, key)) for key in delivery.logs}
        known = self._looks | looks
        if None in known.values() or any(self._looks.get(key, look) != look for key, look in looks.items()):
            return False
        if not self._has_room(delivery, nbytes(delivery.logs)):
            return False
        self._looks = known
        return True

    def _table(self) -> lox.logdict:
        lanes = len(self.members[0].lanes)
        whole = lox.logdict()
        for key in self._looks:
            whole |= _join([_only(member, key).logs for member in self.members if key in member.logs], lanes)
        return whole


def _only(delivery: Delivery, key: str) -> Delivery:
    """A delivery with just one of its keys."""
    logs = delivery.logs
    picked = lox.logdict._make(
        {key: logs[key]},
        {axis: {key: by_key[key]} for axis, by_key in logs._steps.items() if key in by_key},
        {key: logs._counts[key]},
        logs._stacked.intersection([key]),
        {},
    )
    return delivery._replace(logs=picked)


def _look(delivery: Delivery) -> Any:
    """A value that is equal for deliveries that can be joined; None for a delivery that stays alone.

    All keys of a delivery that can be joined have the same steps and the same number of records, in every lane. This runs for
    each delivery, so its loops are those of C functions such as `map`.
    """
    logs, stacked = delivery.logs, delivery.logs._stacked
    if not logs or (stacked and len(stacked) < len(logs)):
        return None
    values: list[Any] = list(logs.values())
    structure = None
    if set(map(type, values)) != _ARRAYS_ONLY:
        values, structure = jax.tree_util.tree_flatten(values)
    dtypes, shapes = list(map(_dtype, values)), list(map(_shape, values))
    if any(map(_metadata, dtypes)):  # numpy would drop the metadata
        return None
    place, rows = len(delivery.lanes), 1
    if stacked:
        of_rows = {shape: _without(shape, place) for shape in set(shapes)}
        rows, *others = {shape[place] for shape in of_rows}
        if others:
            return None
        shapes = list(map(of_rows.__getitem__, shapes))
    if _lacks_records(logs, rows):
        return None
    axes = []
    for axis, by_key in logs._steps.items():
        # If keys had steps of their own, equal steps of different records would end up in one row.
        if len(by_key) != len(logs) or len(set(map(id, by_key.values()))) > 1:
            return None
        step = next(iter(by_key.values()))
        axes.append((axis, step.dtype, _without(step.shape, place) if stacked else step.shape))
    # The order matters, because a structure cannot be compared with None.
    return bool(stacked), list(logs), structure is None, structure, dtypes, shapes, axes


def _rows(delivery: Delivery) -> int:
    """How many rows a delivery that has a look has in each lane."""
    if not delivery.logs._stacked:
        return 1
    value = next(iter(delivery.logs.values()))
    array = value if type(value) is np.ndarray else jax.tree_util.tree_leaves(value)[0]
    return int(array.shape[len(delivery.lanes)])


def _without(shape: tuple[int, ...], place: int) -> tuple[int, ...]:
    return shape[:place] + shape[place + 1 :]


def _lacks_records(logs: lox.logdict, rows: int) -> bool:
    """Whether some rows hold no record, because a condition was false or a ring is not full."""
    counts = logs._counts.values()
    if set(map(type, counts)) == _NUMBERS_ONLY:
        return min(counts) < rows
    return any(np.any(np.less(count, rows)) for count in counts)


_ARRAYS_ONLY, _NUMBERS_ONLY = {np.ndarray}, {int}
_dtype, _shape, _metadata = map(operator.attrgetter, ("dtype", "shape", "metadata"))


def _join(tables: Sequence[lox.logdict], lanes: int) -> lox.logdict:
    """Logs that look alike as one table. The axes of lanes stay in front."""
    first = tables[0]
    is_table = bool(first.stacked)

    def join(*arrays: np.ndarray) -> np.ndarray:
        if is_table:
            return np.concatenate(arrays, axis=lanes)
        return np.moveaxis(np.array(arrays), 0, lanes)  # for many small arrays, faster than np.stack

    def column(key: str) -> Any:
        values = [table[key] for table in tables]
        return join(*values) if type(values[0]) is np.ndarray else jax.tree_util.tree_map(join, *values)

    any_key = next(iter(first))
    steps = {
        axis: dict.fromkeys(first, join(*[table._steps[axis][any_key] for table in tables])) for axis in first._steps
    }
    data = {key: column(key) for key in first}
    rows = jax.tree_util.tree_leaves(data[any_key])[0].shape[lanes]
    return lox.logdict._make(data, steps, dict.fromkeys(first, rows), frozenset(first), {})
