"""Loops that a tap takes in chunks: what the marks of a chunk record is held in stores, and sent after it. So the loop does not
ask in each iteration whether there is something to send.

``lox._storage.packing`` says where this pays. GPUs wait for the host at every condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lox._interpret import table
from lox._interpret.cuts import Chunks, Cuts, Label, has_rules, label_of, label_of_equation
from lox._interpret.survey import Survey
from lox._jax import compat, sharding
from lox._jax.scans import Scan, is_scan
from lox._marks.primitives import log_p


class Call(NamedTuple):
    """What leaves the device together after a chunk.

    Attributes:
      stores: their numbers.
      around: the equations of the shard_maps inside the loop in which the marks are.
    """

    stores: tuple[int, ...]
    around: tuple[Any, ...] = ()

    @property
    def num_axes(self) -> int:
        """How many mesh axes these shard_maps have. Outside them, they lead the stores."""
        return sum(len(sharding.manual_axes_of(eqn)) for eqn in self.around)


class Pace(NamedTuple):
    """How a scan is taken.

    Attributes:
      size: so many iterations are a chunk; 0 if it is not cut.
      calls: those made after each chunk. Their stores are sent at no other time.
      clocks: if the stores hold single records, the numbers of the clocks that tell their order. Each chunk starts them again.
      full: the buffers that a whole chunk fills.
      asks: whether a record that may not be due is sent under a condition. Otherwise the host is told.
    """

    size: int = 0
    calls: tuple[Call, ...] = ()
    clocks: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    asks: bool = True

    @property
    def stores(self) -> frozenset[int]:
        return frozenset(number for call in self.calls for number in call.stores)


AS_A_WHOLE = Pace()


class Paces:
    """How the scans of a program are taken.

    Args:
      cuts: how they can be cut; None: not at all.
      stores: the numbers of the stores of each mark.
      clocks: the number of the clock of each key, if the stores hold single records.
    """

    def __init__(
        self,
        survey: Survey,
        jaxpr: Any,
        cuts: Cuts | None,
        stores: Mapping[Label, tuple[int, ...]],
        clocks: Mapping[str, int],
    ) -> None:
        self._survey, self._cuts, self._stores, self._clocks = survey, cuts, stores, clocks
        # By the id of the equation, and what loops around it send. The equations are kept alive with their ids.
        self._found: dict[Any, tuple[Any, Pace]] = {}
        self.loose: set[int] = set()  # the stores that are filled outside of chunks, too
        self._visit(jaxpr, frozenset(), set())

    @property
    def held(self) -> frozenset[int]:
        """The stores that are sent after chunks."""
        return frozenset[int]().union(*(pace.stores for _, pace in self._found.values()))

    @property
    def num_rests(self) -> int:
        """How often iterations are left after whole chunks. They are compiled by themselves."""
        sizes = [(Scan.of(eqn).length, pace.size) for eqn, pace in self._found.values() if pace.size]
        return sum(length > size and length % size > 0 for length, size in sizes)

    def of(self, eqn: Any, later: frozenset[int]) -> Pace:
        """How a scan is taken if loops around it send the stores ``later``."""
        return self._found.get((id(eqn), later.difference(self._clocks.values())), (eqn, AS_A_WHOLE))[1]

    def _visit(self, jaxpr: Any, later: frozenset[int], seen: set[Any]) -> None:
        body, _ = compat.open_jaxpr(jaxpr)
        if (id(body), later) in seen:
            return
        seen.add((id(body), later))
        for eqn in body.eqns:
            if eqn.primitive is log_p:
                self.loose.update(set(self._stores.get(label_of_equation(eqn), ())) - later)
            elif self._survey.has_marks(eqn) and has_rules(eqn):
                uses = [use for usage in table.find(eqn).usages(eqn, self._survey).values() for use in usage.uses]
                self.loose.update(*(self._stores.get(label_of(use.mark, use.operands), ()) for use in uses))
            elif self._survey.has_marks(eqn):
                inside = later
                if is_scan(eqn):
                    pace = self._find(eqn, later)
                    self._found[id(eqn), later] = (eqn, pace)
                    inside = later | pace.stores
                for inner in compat.all_jaxprs_in_params(eqn.params):
                    self._visit(inner, inside, seen)

    def _find(self, eqn: Any, later: frozenset[int]) -> Pace:
        marks = [each for each in marks_in(Scan.of(eqn).jaxpr) if each[0] in self._stores]
        labels = frozenset(label for label, _ in marks if not later.issuperset(self._stores[label]))
        if self._cuts is None or not labels:
            return AS_A_WHOLE
        chunks = self._cuts.of(eqn, labels)
        if chunks is None:
            # Only single records have a clock. Buffers ask whether they are full.
            return Pace(asks=not (self._clocks and self._cuts.are_inside(eqn, labels)))
        keys = [key for mark, _ in chunks.labels for key in mark.keys if key in self._clocks]
        full = [number for label in chunks.full for number in self._stores[label]]
        clocks = frozenset(self._clocks[key] for key in keys)
        return Pace(chunks.size, tuple(self._calls(chunks, marks)), clocks, frozenset(full))

    def _calls(self, chunks: Chunks, marks: list[tuple[Label, tuple[Any, ...]]]) -> Iterator[Call]:
        """One for the marks that are in no shard_map, and one for each shard_map."""
        calls: dict[Any, tuple[list[int], Any]] = {}
        sent: set[int] = set()
        for label, around in marks:
            if label in chunks.labels:
                numbers, _ = calls.setdefault(tuple(map(id, around)), ([], around))
                numbers += [number for number in self._stores[label] if number not in sent]
                sent.update(numbers)
        return (Call(tuple(numbers), around) for numbers, around in calls.values() if numbers)


def marks_in(jaxpr: Any, around: tuple[Any, ...] = ()) -> Iterator[tuple[Label, tuple[Any, ...]]]:
    """The labels of all marks, each with the equations of the shard_maps around it."""
    for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive is log_p:
            yield label_of_equation(eqn), around
        else:
            within = (*around, eqn) if eqn.primitive.name == "shard_map" else around
            for inner in compat.all_jaxprs_in_params(eqn.params):
                yield from marks_in(inner, within)
