"""What a traced program records, read from its jaxprs before anything is built.

For every key: which marks record it, how many records there will be (if the program fixes that), and which other keys are
always recorded together with it, so that they can share storage. Nothing is traced here. Each jaxpr is read once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax

from lox._interpret import lanes, table
from lox._interpret.lanes import Lanes
from lox._jax import compat, hi_primitives, sharding
from lox._jax.scans import Scan, is_scan
from lox._marks.mark import Mark, Record
from lox._marks.primitives import LogEffect, log_p
from lox._storage.packing import MAX_PACKED_ELEMENTS
from lox._storage.words import is_small

# These are made for every mark of a program, and named tuples are faster to make than dataclasses.


class Use(NamedTuple):
    """One mark of a key, with the types of its leaves and steps."""

    mark: Mark
    leaves: tuple[Any, ...]
    steps: tuple[tuple[str, Any], ...]
    tree: Any
    # The sizes of the mesh axes of the shard_maps around the mark. They lead the shapes above.
    mesh: tuple[int, ...] = ()
    # The types of all operands of the mark. One call of lox.log can be traced with different types.
    operands: tuple[Any, ...] = ()
    # How values with these leading axes are spread over the mesh, if that is part of their type (explicit sharding).
    spread: Any = None
    # The sizes of the lane axes, after those of the mesh, along which some lanes can have a record and others none.
    lanes: Lanes = ()


class Usage(NamedTuple):
    """How a program, or a part of it, records one key."""

    uses: tuple[Use, ...]
    records: int | None  # how many there are; None if that is not known before the program runs
    looped: bool
    masked: bool
    why: str | None  # why the count is not known
    # Where the marks are. Keys with equal profiles are recorded together, and equally often between any two loops.
    profile: frozenset[Any]
    branched: bool = False  # whether some of its marks are in branches, which not every device need take

    @property
    def is_certain(self) -> bool:
        """Whether each of its marks is reached equally often, whatever the values are."""
        return self.records is not None and not self.masked and not self.branched

    @property
    def looped_or_repeated(self) -> bool:
        return self.looped or self.records != 1

    def then(self, other: Usage) -> Usage:
        return Usage(
            self.uses + tuple(use for use in other.uses if use not in self.uses),
            None if self.records is None or other.records is None else self.records + other.records,
            self.looped or other.looped,
            self.masked or other.masked,
            self.why or other.why,
            self.profile | other.profile,
            self.branched or other.branched,
        )

    def times(self, length: int) -> Usage:
        count = None if self.records is None else self.records * length
        return self._replace(records=count, looped=True)

    def unbounded(self, why: str) -> Usage:
        return self._replace(records=None, looped=True, why=self.why or why)


Usages = dict[str, Usage]


def differ_along(usages: Iterable[Usage]) -> tuple[str, ...]:
    """If the transformation is inside a shard_map, the mesh axes along which these records, or their number, can differ."""
    around = sharding.manual_axes_here()
    if not around or not all(usage.records is not None and not usage.branched for usage in usages):
        return around
    operands = [aval for usage in usages for use in usage.uses for aval in use.operands]
    differing = frozenset[str]().union(*map(sharding.varying_axes, operands))
    return tuple(axis for axis in around if axis in differing)


@dataclasses.dataclass(frozen=True)
class BodySummary:
    """What one jaxpr records, and which keys are recorded inside loops or branches of it."""

    usages: Usages
    folded: frozenset[str]


class Survey:
    """Reads jaxprs. Only the keys for which ``selects(mark, key)`` is true count."""

    def __init__(self, selects: Callable[[Mark, str], bool], also: frozenset[str] = frozenset()) -> None:
        self._selects = selects
        self._also = also  # names of primitives to rebuild even without marks
        self._read: dict[int, tuple[Any, BodySummary]] = {}
        self._marked: dict[int, tuple[Any, bool]] = {}
        self._holding: dict[int, tuple[Any, bool]] = {}
        self._calls: dict[int, tuple[Any, int]] = {}
        self._tracks: dict[int, tuple[Any, int]] = {}
        self._waiting: dict[int, Any] = {}
        self._looping: dict[int, tuple[Any, bool]] = {}
        self._selected: dict[int, tuple[Mark, tuple[str, ...]]] = {}

    def __call__(self, jaxpr: Any) -> BodySummary:
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._read:
            # The jaxpr is kept alive with its summary, so its id is not reused meanwhile.
            self._read[id(body)] = (body, self._summarise(body))
        return self._read[id(body)][1]

    def selected(self, mark: Mark) -> tuple[str, ...]:
        if id(mark) not in self._selected:
            keys = tuple(key for key in mark.keys if self._selects(mark, key))
            self._selected[id(mark)] = (mark, keys)
        return self._selected[id(mark)][1]

    def _summarise(self, body: Any) -> BodySummary:
        usages: Usages = {}
        folded: set[str] = set()
        marks: Counter[Any] = Counter()
        segment = 0
        for index, eqn in enumerate(body.eqns):
            if eqn.primitive is log_p:
                found = self._use(eqn, index, body, segment, marks)
            elif self.has_marks(eqn):
                segment += 1
                rule = table.find(eqn)
                found = rule.usages(eqn, self)
                folded |= set(found) if rule.folds else rule.folded(eqn, self)
            else:
                continue
            for key, usage in found.items():
                usages[key] = usages[key].then(usage) if key in usages else usage
        return BodySummary(_with_multiplicity(usages, marks), frozenset(folded))

    def _use(self, eqn: Any, index: int, body: Any, segment: int, marks: Counter[Any]) -> Usages:
        avals, mark = tuple([var.aval for var in eqn.invars]), eqn.params["mark"]
        record = Record.of(mark, avals)
        where = tuple(record.where.shape) if mark.masked else ()
        selected = self.selected(mark)
        # Records with their own steps or condition belong together only if they are of one mark.
        place = (id(body), segment, index if mark.axes or mark.masked else None)
        found = {}
        for key, tree in zip(mark.keys, mark.trees, strict=True):
            if key in selected:
                leaves, steps = tuple(record.leaves[key]), tuple(record.steps.items())
                use = Use(mark, leaves, steps, tree, operands=avals, lanes=where)
                marks[key, place] += 1
                found[key] = Usage((use,), 1, False, mark.masked, None, frozenset([place]))
        return found

    # --- host calls: records that are certain to be made together leave the device together ------------------------

    def calls(self, jaxpr: Any) -> int:
        """How many host calls the compiled program has if each brings as many records as it can. Those of a function count once
        for each call of it."""
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._calls:
            self._calls[id(body)] = (body, self._count_calls(body))
        return self._calls[id(body)][1]

    def waits(self, eqn: Any) -> bool:
        """Whether a mark, of a jaxpr whose calls were counted, is followed by another one of the same call."""
        return id(eqn) in self._waiting

    def _count_calls(self, body: Any) -> int:
        """Marks of one body are one call, unless there is a loop between them: what was logged before a loop must not wait
        for its end."""
        total, last, size = 0, None, 0
        for eqn in body.eqns:
            if eqn.primitive is log_p:
                if not self.selected(eqn.params["mark"]):
                    continue
                size += len(eqn.invars)
                if last is not None and _fits(last, eqn) and size <= _MOST_LEAVES:
                    self._waiting[id(last)] = last
                else:
                    total, size = total + 1, len(eqn.invars)
                last = eqn
            elif self.has_marks(eqn) or self._holds_loop(eqn):
                total, last = total + self._calls_in(eqn), None
        return total

    def _calls_in(self, eqn: Any) -> int:
        if not self.has_marks(eqn):
            return 0
        # The body of an unrolled scan appears several times.
        copies = Scan.of(eqn).unroll if is_scan(eqn) else 1
        jaxprs = list(compat.all_jaxprs_in_params(eqn.params))
        inside = (
            sum(map(self.calls, jaxprs)) if jaxprs else 1
        )  # marks of an object that is traced late are in none of them
        if hi_primitives.name_of(eqn).lower().startswith("custom"):
            # A rule can run instead of the function, and send its records one by one.
            uses = [use for jaxpr in jaxprs for usage in self(jaxpr).usages.values() for use in usage.uses]
            inside = max(inside, len({use.mark for use in uses}))
        return copies * inside

    def tracks(self, jaxpr: Any) -> int:
        """How many parts of a jaxpr that make host calls can run side by side: under ``vmap``, all branches do."""
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._tracks:
            most = max((self._tracks_in(eqn) for eqn in body.eqns), default=0)
            self._tracks[id(body)] = (body, most)
        return self._tracks[id(body)][1]

    def _tracks_in(self, eqn: Any) -> int:
        if eqn.primitive is log_p or not self.has_marks(eqn):
            return int(eqn.primitive is log_p)
        inside = list(map(self.tracks, compat.all_jaxprs_in_params(eqn.params)))
        return sum(inside) if eqn.primitive is jax.lax.cond_p else max(inside, default=1)

    def _holds_loop(self, eqn: Any) -> bool:
        is_loop = is_scan(eqn) or eqn.primitive.name == "while"
        return is_loop or any(map(self._loops, compat.all_jaxprs_in_params(eqn.params)))

    def _loops(self, jaxpr: Any) -> bool:
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._looping:
            self._looping[id(body)] = (body, any(map(self._holds_loop, body.eqns)))
        return self._looping[id(body)][1]

    def has_marks(self, eqn: Any) -> bool:
        """Whether there are marks inside an equation."""
        found = self._holding.get(id(eqn))
        if found is None:
            # Each equation of a program is asked, and most have nothing inside.
            inside = bool(eqn.params) and any(map(self.is_marked, compat.all_jaxprs_in_params(eqn.params)))
            if eqn.effects and not inside:
                # The effect shows a mark that is in none of the jaxprs that lox found. No rule handles that: an error.
                inside = any(isinstance(effect, LogEffect) for effect in eqn.effects)
            found = self._holding[id(eqn)] = (eqn, inside)
        return found[1]

    def concerns(self, eqn: Any) -> bool:
        """Whether an equation must be rebuilt."""
        if eqn.primitive is log_p or self.has_marks(eqn):
            return True
        return bool(self._also) and hi_primitives.name_of(eqn) in self._also

    def is_marked(self, jaxpr: Any) -> bool:
        """Whether it contains any mark, selected or not."""
        body, _ = compat.open_jaxpr(jaxpr)
        if id(body) not in self._marked:
            self._marked[id(body)] = (body, any(map(self.concerns, body.eqns)))
        return self._marked[id(body)][1]


# A call brings up to so many leaves: more would be slow to pack.
_MOST_LEAVES = 64


def _fits(first: Any, second: Any) -> bool:
    """Whether two marks can be one call. Large values are sent at once: they would take up memory until then."""
    small = all(is_small(var.aval.shape, MAX_PACKED_ELEMENTS) for eqn in (first, second) for var in eqn.invars)
    return small and first.ctx == second.ctx


def _with_multiplicity(usages: Usages, marks: Counter[Any]) -> Usages:
    """Two keys at one place belong together only if they are recorded there equally often."""
    repeated: dict[str, dict[Any, int]] = {}
    for (key, place), times in marks.items():
        if times > 1:
            repeated.setdefault(key, {})[place] = times
    for key, places in repeated.items():
        profile = frozenset((place, places[place]) if place in places else place for place in usages[key].profile)
        usages[key] = usages[key]._replace(profile=profile)
    return usages


def in_sequence(parts: Iterable[Usages]) -> Usages:
    total: Usages = {}
    for part in parts:
        for key, usage in part.items():
            total[key] = total[key].then(usage) if key in total else usage
    return total


def in_lanes(sizes: Lanes, usages: Usages) -> Usages:
    """The usages of a loop whose lanes end at different times."""
    if not sizes:
        return usages

    def one(use: Use) -> Use:
        return use._replace(lanes=lanes.longest([use.lanes, sizes]))

    return {key: usage._replace(uses=tuple(map(one, usage.uses))) for key, usage in usages.items()}


def in_branches(branches: list[Usages], names: list[str] | None = None) -> Usages:
    """The usages of branches of which one runs: a count is known if all agree. ``names`` are for messages."""
    names = names or _numbered(len(branches))
    total = in_sequence(branches)
    merged = {}
    for key, usage in total.items():
        counts = [branch[key].records if key in branch else 0 for branch in branches]
        if None not in counts and len(set(counts)) == 1 and all(key in branch for branch in branches):
            merged[key] = usage._replace(records=counts[0], branched=True)
        else:
            merged[key] = usage._replace(records=None, looped=True, why=_difference(key, branches, names))
    return merged


def _numbered(number: int) -> list[str]:
    # JAX orders the branches of a cond like those of a switch: the one for False comes first.
    asides = (" (the one for False)", " (the one for True)") if number == 2 else ("",) * number
    return [f"branch {i}{aside}" for i, aside in enumerate(asides)]


def _difference(key: str, branches: list[Usages], names: list[str]) -> str:
    lines = []
    for branch, name in zip(branches, names, strict=True):
        if key not in branch:
            lines.append(f"{name} does not record it")
        else:
            count = branch[key].records
            times = "a number of times that is not known" if count is None else f"{count} time{'s' * (count != 1)}"
            sites = ", ".join(dict.fromkeys(use.mark.site for use in branch[key].uses))
            lines.append(f"{name} records it {times} ({sites})")
    return "branches: " + "; ".join(lines)
