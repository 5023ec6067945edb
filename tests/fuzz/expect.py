"""What the logs of a program must be, from its text and the rows of the oracle.

``survey`` reads off the text how often each key is recorded; ``expected_logs`` lays the rows out as SPEC says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.oracle import Row
from tests.fuzz.program import BACKWARD, FORWARD, LANES, TANGENT, Block, Branch, Call, Key, Log, LogGrad, Scan, While

EXTREMES = {"min": math.inf, "max": -math.inf}


@dataclasses.dataclass(frozen=True)
class Use:
    """What a program does with one key. ``count`` is None where only a run can tell."""

    key: Key
    count: int | None
    looped: bool = False
    masked: bool = False
    depth: int = 0
    sites: frozenset[Any] = frozenset()
    dtypes: frozenset[str] = frozenset()

    def then(self, other: Use) -> Use:
        count = None if self.count is None or other.count is None else self.count + other.count
        return dataclasses.replace(
            self,
            count=count,
            looped=self.looped or other.looped,
            masked=self.masked or other.masked,
            sites=self.sites | other.sites,
            dtypes=self.dtypes | other.dtypes,
        )

    @property
    def single(self) -> bool:
        """Recorded once, outside any loop."""
        return self.count == 1 and not self.looped


Uses = dict[str, Use]
Select = Callable[[str, tuple[str, ...], bool], bool]  # name, tags, explicit


def not_explicit(name: str, tags: tuple[str, ...], explicit: bool) -> bool:
    del name, tags
    return not explicit


def in_sequence(parts: list[Uses]) -> Uses:
    total: Uses = {}
    for part in parts:
        for name, use in part.items():
            total[name] = total[name].then(use) if name in total else use
    return total


class Surveyor:
    """``levels``: how many differentiations are around the block, and whether the innermost runs backwards."""

    def __init__(self, select: Select) -> None:
        self.select = select
        self.wide = False  # in x64 mode

    def block(self, block: Block, depth: int, levels: tuple[str, ...]) -> tuple[Uses, Uses]:
        """Forward and backward uses."""
        forward, backward = [], []
        for statement in block.statements:
            method = getattr(self, "on_" + type(statement).__name__.lower(), None)
            if method is not None:
                f, b = method(statement, depth, levels)
                forward.append(f)
                backward.insert(0, b)
        return in_sequence(forward), in_sequence(backward)

    def use(self, key: Key, name: str, depth: int, **changed: Any) -> Uses:
        with jax.enable_x64(self.wide or bool(jax.config.jax_enable_x64)):
            number = jnp.result_type((int, float, bool)[key.number % 3]).name  # of Python, so that x64 decides
        dtype = {"i": "int32", "number": number}.get(key.form, "float32")
        return {name: Use(key, 1, depth=depth, **{"dtypes": frozenset([dtype]), **changed})}

    def on_log(self, s: Log, depth: int, levels: Any) -> Any:
        uses: Uses = {}
        for key in s.keys:
            name = s.prefix + key.name(depth)
            if self.select(name, s.tags, s.explicit):
                dtypes = {"dtypes": frozenset([s.dtype])} if key.form == "cast" else {}
                site = frozenset([(s.site % 4, s)])
                uses |= self.use(key, name, depth, masked=s.where is not None, sites=site, **dtypes)
        return uses, {}

    def on_loggrad(self, s: LogGrad, depth: int, levels: Any) -> Any:
        name = s.key.name(depth)
        wanted = levels and levels[-1] == "reverse" and self.select(name, (), False)
        masked = s.where is not None
        return {}, self.use(s.key, name, depth, masked=masked, sites=frozenset([s])) if wanted else {}

    def on_scan(self, s: Scan, depth: int, levels: Any) -> Any:
        def times(uses: Uses) -> Uses:
            return {
                name: dataclasses.replace(use, count=None if use.count is None else use.count * s.length, looped=True)
                for name, use in uses.items()
            }

        forward, backward = self.block(s.body, depth, levels)
        return times(forward), times(backward)

    def on_while(self, s: While, depth: int, levels: Any) -> Any:
        forward, _ = self.block(s.body, depth, levels)
        test = self.on_log(s.test, depth, levels)[0] if s.test is not None else {}
        uses = in_sequence([test, forward])
        return {name: dataclasses.replace(use, count=None, looped=True) for name, use in uses.items()}, {}

    def on_branch(self, s: Branch, depth: int, levels: Any) -> Any:
        both = [self.block(body, depth, levels) for body in s.bodies]
        return tuple(_either([uses[i] for uses in both]) for i in (0, 1))

    def on_call(self, s: Call, depth: int, levels: Any) -> Any:
        how = s.how.partition(":")[0]
        if how in BACKWARD + FORWARD:
            mode = "forward" if how in FORWARD else "reverse"
            forward, backward = self.block(s.body, depth, (*levels, mode))
            return in_sequence([forward, backward]), {}
        if how in ("custom_jvp", "custom_vjp"):
            return self._custom(s, how, depth, levels)
        if how == "nolog":
            return {}, {}
        if how == "passive":
            return self.block(s.body, depth, ())
        if how == "spool":
            return self._inner_spool(s, depth, levels)
        if how == "x64":
            before, self.wide = self.wide, True
            uses = self.block(s.body, depth, levels)
            self.wide = before
            return uses
        return self.block(s.body, depth + (how == "vmap"), levels)

    def _inner_spool(self, s: Call, depth: int, levels: Any) -> Any:
        keep = dict(s.options).get("keep_logs", False)
        outer, kept = self.select, lambda name, tags, explicit: keep or explicit
        self.select = lambda *mark: kept(*mark) and outer(*mark)
        forward, _ = self.block(s.body, 0, levels)
        self.select = outer
        return forward, {}

    def _custom(self, s: Call, how: str, depth: int, levels: Any) -> Any:
        options = dict(s.options)
        if options.get("form") == "own":
            forward, backward = self.block(s.body, depth, levels)
            own = self.use(TANGENT, TANGENT.name(depth), depth, sites=frozenset([s]))
            return in_sequence([forward, own if self.select(TANGENT.name(depth), (), False) else {}]), backward
        forward, backward = self.block(s.body, depth, levels[:-1])
        rule = options.get("rule")
        if rule is None or not levels or not self.select(rule.name(depth), (), False):
            return forward, backward
        marks = self.use(rule, rule.name(depth), depth, sites=frozenset([s]))
        if how == "custom_jvp":
            return in_sequence([forward, marks]), backward
        return forward, in_sequence([marks, backward])


def _either(branches: list[Uses]) -> Uses:
    total = in_sequence(branches)
    merged = {}
    for name, use in total.items():
        counts = {branch[name].count if name in branch else None for branch in branches}
        if len(counts) == 1 and None not in counts:
            merged[name] = dataclasses.replace(use, count=counts.pop())
        else:
            merged[name] = dataclasses.replace(use, count=None, looped=True)
    return merged


def survey(block: Block, select: Select = not_explicit, *, differentiated: bool = False) -> Uses:
    levels = ("reverse",) if differentiated else ()
    return in_sequence(list(Surveyor(select).block(block, 0, levels)))


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Column:
    """All that is expected of one key: rows of leaves (float64 or complex), and of steps."""

    leaves: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    count: int
    stacked: bool
    use: Use


def leaf_shapes(use: Use) -> dict[str, tuple[int, ...]]:
    lanes = (LANES,) * use.depth
    if use.key.form == "tree":
        return {"a": lanes, "b0": (*lanes, 2), "b1": lanes}
    return {"": (*lanes, 2) if use.key.form == "v" else lanes}


def leaves_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"a": value["a"], "b0": value["b"][0], "b1": value["b"][1]}
    return {"": value}


def gather_lanes(rows: list[Row]) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Rows of the lanes of a vmap, put together: the n-th of one lane meets the n-th of the others."""
    by_lane: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        by_lane.setdefault(row.lanes, []).append(row)
    lanes = sorted(by_lane)
    shape = (LANES,) * len(lanes[0]) if lanes else ()
    gathered = []
    for together in zip(*(by_lane[lane] for lane in lanes), strict=True):
        parts = [leaves_of(row.value) for row in together]
        leaves = {
            name: np.array([part[name] for part in parts], np.float64).reshape(shape + np.shape(parts[0][name]))
            for name in parts[0]
        }
        steps = {
            axis: np.array([row.steps[axis] for row in together], np.float64).reshape(shape)
            for axis in together[0].steps
        }
        gathered.append((leaves, steps))
    return gathered


def column(use: Use, rows: list[Row], interval: int | None = None, capacity: int | None = None) -> Column:
    records = gather_lanes(rows)[:: interval or 1]
    count = len(records)
    size = count
    dynamic = use.count is None or use.masked
    if dynamic and capacity is not None:
        records, size = records[-capacity:], capacity
    elif use.masked and use.count is not None:
        size = -(-use.count // (interval or 1))
    leaves = {
        name: _padded([record[0][name] for record in records], shape, size) for name, shape in leaf_shapes(use).items()
    }
    lanes = (LANES,) * use.depth
    steps = {axis: _padded([record[1][axis] for record in records], lanes, size) for axis in use.key.axes}
    single = use.single and not use.masked
    if single:
        leaves, steps = ({name: x[0] for name, x in part.items()} for part in (leaves, steps))
    return Column(leaves, steps, count, not single, use)


def _padded(rows: list[np.ndarray], shape: tuple[int, ...], size: int) -> np.ndarray:
    padded = np.zeros((size, *shape))
    for i, row in enumerate(rows):
        padded[i] = row
    return padded


def reduced(use: Use, rows: list[Row], how: str, interval: int | None = None) -> dict[str, np.ndarray]:
    """One reduction, in numpy."""
    full = column(dataclasses.replace(use, count=None, looped=True), rows, interval)
    return {name: reduce_rows(leaf, how) for name, leaf in full.leaves.items()}


def reduce_rows(rows: np.ndarray, how: str) -> np.ndarray:
    if how == "count":
        return np.asarray(len(rows))
    if len(rows) == 0:
        empty = {"mean": math.nan, "std": math.nan, **EXTREMES}.get(how, 0.0)
        return np.full(rows.shape[1:], empty)
    if how in ("first", "last", "replace"):
        return rows[0] if how == "first" else rows[-1]
    return getattr(np, how)(rows, axis=0)


def rows_by_key(rows: list[Row], select: Select = not_explicit) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if select(row.key, row.tags, row.explicit):
            found.setdefault(row.key, []).append(row)
    return found


# --- the digest of an inner spool ------------------------------------------------------------------------------------


def digest_expected(body: Block, rows: list[Row], options: dict[str, Any]) -> float:
    """What ``build.digest`` makes of these rows."""
    total = 0
    found = rows_by_key(rows)
    for name, use in survey(body).items():
        mine = found.get(name, [])
        how = use.key.reduce or options.get("reduce")
        interval = options.get("interval")
        columns = column(use, mine, interval, options.get("capacity"))
        parts = list(columns.leaves.values()) + list(columns.steps.values())
        if how is not None:
            every = column(dataclasses.replace(use, count=None, looped=True), mine, interval)
            names = (how,) if isinstance(how, str) else how
            parts = [reduce_rows(leaf, one) for one in names for leaf in every.leaves.values()]
            last = "first" if set(names) == {"first"} else "last"
            parts += [reduce_rows(step, last) for step in every.steps.values()]
        for part in parts:
            numbers = np.ravel(part).astype(np.int64)
            total += int(np.sum(numbers * np.arange(1, numbers.size + 1)))
        total += columns.count
    return math.fmod(total, 13)
