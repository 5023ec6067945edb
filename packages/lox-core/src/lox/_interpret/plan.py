"""How the records of each key are kept, decided before the program is built.

=====================================  ==========================================================
a key                                  is kept
=====================================  ==========================================================
with a fixed number of records         as rows: outputs of the loops that make them
with a reduction                       folded, in a ``ReduceStore``
with ``where`` or a dynamic number     as the last n, in a ``RingStore``
with an interval                       in a ``RingStore`` with just the rows that are kept
=====================================  ==========================================================
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lox._errors import (
    BranchMismatchError,
    ConflictError,
    DynamicCountError,
    LogTypeError,
    OptionError,
    name_sites,
)
from lox._interpret import lanes
from lox._interpret.lanes import Lanes
from lox._interpret.selection import Selection
from lox._interpret.survey import Usage, Usages, Use, differ_along
from lox._jax import compat, sharding
from lox._marks.mark import Record
from lox._reduce import KEEP_ALL, Reduction, check_reducible, resolve
from lox._storage.counts import MAX_PERIOD, MAX_RECORDS
from lox._storage.packing import Packing
from lox._storage.stores import Aval, Finished, ReduceStore, RingStore, Store, start_varying


def check_positive(name: str, value: Any) -> int | None:
    """An option that counts something: None, or a whole number of at least 1."""
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise LogTypeError(f"lox: {name} must be a whole number, got {value!r} of type {type(value).__name__}")
    number = value.__index__()
    if number < 1:
        raise OptionError(f"lox: {name} must be at least 1, got {number}")
    if number > MAX_RECORDS:
        raise OptionError(f"lox: {name} must be below 2**31, got {number}: records are counted in 32 bits")
    return number


@dataclasses.dataclass(frozen=True)
class SpoolOptions:
    selection: Selection
    keep_logs: bool
    interval: int | None
    reduce: Reduction | None
    prefix: str
    capacity: int | None


class Type(NamedTuple):
    """What the records of a leaf or a step have in common."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any = None  # how it is split between devices, if that is part of its type


class KeyPlan(NamedTuple):
    """The types of one key's records, and how they are kept."""

    key: str
    tree: Any
    leaves: tuple[Type, ...]
    steps: tuple[tuple[str, Type], ...]
    usage: Usage
    reduction: Reduction

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.steps)

    @property
    def lanes(self) -> Lanes:
        return lanes.longest(use.lanes for use in self.usage.uses)


@dataclasses.dataclass(frozen=True)
class Group:
    """Keys that are always recorded together, in one store."""

    keys: tuple[KeyPlan, ...]
    store: Store
    bounded: bool  # whether it is a ring, in which rows can be unused
    capacity: int | None
    count: int | None  # None if only the store knows
    mesh: tuple[int, ...]  # the store is that of one device and one lane, and its state leads with these axes,
    lanes: Lanes  # and then with these

    def init(self) -> Any:
        start = start_varying(self.store, differ_along([plan.usage for plan in self.keys]))
        axes = self.mesh + self.lanes
        if not axes:
            return start
        spread = self.keys[0].usage.uses[0].spread
        return jax.tree.map(lambda x: sharding.spread(jnp.broadcast_to(x, axes + jnp.shape(x)), spread), start)

    def add(self, state: Any, leaves: list[Any], steps: list[Any], keep: Any) -> Any:
        """Add a record, on one device. ``keep`` has some or all of the lane axes."""
        add = self.store.add
        if self.lanes and keep is not None:
            keep = lanes.spread(keep, self.lanes)
        for _ in self.lanes:
            add = jax.vmap(add, in_axes=(0, 0, 0, None if keep is None else 0))
        return add(state, leaves, steps, keep)

    def finish(self, state: Any) -> Finished:
        finish, axes = self.store.finish, self.mesh + self.lanes
        for _ in axes:
            finish = jax.vmap(finish)
        done = finish(state)
        if axes and not self.reduces:
            # The record axis comes first.
            leaves = [jnp.moveaxis(leaf, len(axes), 0) for leaf in done.leaves]
            steps = [jnp.moveaxis(step, len(axes), 0) for step in done.steps]
            return Finished(leaves, steps, done.count)
        return done

    @property
    def reduces(self) -> bool:
        return isinstance(self.store, ReduceStore)

    def leaves_of(self, leaves: list[Any]) -> dict[str, list[Any]]:
        rest = iter(leaves)
        return {plan.key: [next(rest) for _ in plan.leaves] for plan in self.keys}


@dataclasses.dataclass(frozen=True)
class Plan:
    keys: dict[str, KeyPlan]
    rows: frozenset[str]  # keys that are returned as rows
    groups: tuple[Group, ...]

    def numbers_of(self, keys: Iterable[str]) -> frozenset[int]:
        wanted = set(keys)
        return frozenset(i for i, group in enumerate(self.groups) if any(plan.key in wanted for plan in group.keys))


def make_plan(usages: Usages, options: SpoolOptions, packing: Packing) -> Plan:
    keys = {key: plan_key(key, usage, options.reduce) for key, usage in usages.items()}
    rows: set[str] = set()
    grouped: dict[Any, tuple[Any, list[KeyPlan]]] = {}
    for key, plan in keys.items():
        kinds = _kinds(plan, options)
        if None in kinds:
            rows.add(key)
        for kind in kinds:
            if kind is not None:
                label = (_label(kind), plan.usage.profile, plan.axes, plan.lanes)
                grouped.setdefault(label, (kind, []))[1].append(plan)
    groups = tuple(_make_group(kind, tuple(plans), options, packing) for kind, plans in grouped.values())
    return Plan(keys, frozenset(rows), groups)


def _label(kind: Any) -> Any:
    """A hashable key, even if a user's reducer is not hashable."""
    return tuple((name, id(reducer)) for name, reducer in kind.reducers) if isinstance(kind, Reduction) else kind


def _kinds(plan: KeyPlan, options: SpoolOptions) -> list[Any]:
    """How a key is kept: None for rows, a Reduction, or the number of rows of a ring and its capacity."""
    kinds: list[Any] = []
    if plan.usage.records is None:
        _check_period(options.capacity or 1, options.interval or 1)
    if plan.reduction.reducers:
        kinds.append(dataclasses.replace(plan.reduction, keep=False))
    if plan.reduction.keep:
        kinds.append(_ring_or_rows(plan, options))
    return kinds


def _ring_or_rows(plan: KeyPlan, options: SpoolOptions) -> tuple[int, int | None] | None:
    usage = plan.usage
    if usage.records is None:
        if options.capacity is None:
            raise _dynamic_error(plan)
        return options.capacity, options.capacity
    if usage.masked and options.capacity is not None:
        return options.capacity, options.capacity
    # Rows of a key that is also reduced go into a store of their own: rows that leave a body would be folded twice.
    if usage.masked or plan.reduction.reducers or ((options.interval or 1) > 1 and usage.looped_or_repeated):
        return -(-usage.records // (options.interval or 1)), None
    return None


def _check_period(capacity: int, interval: int) -> None:
    if capacity * interval > MAX_PERIOD:
        raise OptionError(
            f"lox.spool: capacity times interval must be at most 2**30, got {capacity} times {interval}: records whose "
            "number is not known in advance are counted in 32 bits. Choose a smaller capacity or interval"
        )


def _make_group(kind: Any, plans: tuple[KeyPlan, ...], options: SpoolOptions, packing: Packing) -> Group:
    mesh = _mesh_of(plans)
    local = functools.partial(_local, mesh + plans[0].lanes)
    leaves = tuple(local(leaf) for plan in plans for leaf in plan.leaves)
    steps = tuple(local(aval) for _, aval in plans[0].steps)
    for plan in plans:
        # With `jax.export`, a length need not be a number.
        if isinstance(plan.usage.records, int) and plan.usage.records > MAX_RECORDS:
            raise OptionError(
                f"lox.spool: {plan.key!r} ({name_sites(use.mark.site for use in plan.usage.uses)}) has {plan.usage.records} "
                "records, but one call can count at most 2**31 - 1. Call the function for parts of the loop, and reduce "
                "the parts again"
            )
    store: Any
    if isinstance(kind, Reduction):
        for plan in plans:
            for leaf in plan.leaves:
                check_reducible(plan.key, leaf.dtype, kind, plan.usage.uses[0].mark.site)
        store, bounded, capacity = (
            ReduceStore(kind, leaves, steps, options.interval or 1, packing.folds, _may_be_many(plans)),
            False,
            None,
        )
    else:
        rows, capacity = kind
        # Without a capacity, there is room for all records.
        wraps = capacity is not None
        store = RingStore(rows, leaves, steps, options.interval or 1, packing.rows, packing.mixed, wraps)
        bounded = any(plan.usage.records is None or plan.usage.masked for plan in plans)
    return Group(plans, store, bounded, capacity, _static_count(plans, options), mesh, plans[0].lanes)


def _mesh_of(plans: tuple[KeyPlan, ...]) -> tuple[int, ...]:
    for plan in plans:
        first, *others = plan.usage.uses
        for use in others:
            if use.mesh != first.mesh:
                raise ConflictError(
                    f"lox: {plan.key!r} is recorded both inside and outside shard_map, or on different meshes, at "
                    f"{first.mark.site} and {use.mark.site}. Such records cannot be folded together; use different keys "
                    "inside and outside shard_map"
                )
    return plans[0].usage.uses[0].mesh


def _local(axes: tuple[int, ...], whole: Type) -> Aval:
    """The type on one device, in one lane."""
    return Aval(whole.shape[len(axes) :], whole.dtype, sharding=None if axes else whole.sharding)


def _may_be_many(plans: tuple[KeyPlan, ...]) -> bool:
    """Whether 32 bits may not be enough to count the records."""
    records = plans[0].usage.records
    return not isinstance(records, int) or records > MAX_RECORDS


def _static_count(plans: tuple[KeyPlan, ...], options: SpoolOptions) -> int | None:
    usage = plans[0].usage
    if usage.records is None or usage.masked:
        return None
    return -(-usage.records // (options.interval or 1))


def _dynamic_error(plan: KeyPlan) -> DynamicCountError:
    sites = name_sites(use.mark.site for use in plan.usage.uses)
    why = plan.usage.why or ""
    ways_out = (
        "Reduce the records (lox.log(..., reduce='mean') or spool(f, reduce=...)), keep the last n "
        "(spool(f, capacity=n)), or use lox.tap"
    )
    if why.startswith("branches: "):
        return BranchMismatchError(
            f"lox.spool: the branches of a cond do not record {plan.key!r} in the same way: {why.removeprefix('branches: ')}. "
            f"The number of records must be known when the program is traced. {ways_out}"
        )
    return DynamicCountError(
        f"lox.spool: {plan.key!r} ({sites}) is recorded in a {why}, so the number of its records is not known when "
        f"the program is traced. {ways_out}"
    )


# --- one key ---------------------------------------------------------------------------------------------------------


def plan_key(key: str, usage: Usage, default: Reduction | None) -> KeyPlan:
    """Check that all marks of a key fit together, and find the types of its records."""
    first = usage.uses[0]
    for use in usage.uses:
        _refuse_unreduced(key, use)
    for other in usage.uses[1:]:
        _check_fit(key, first, other)
    leaves = tuple(_common_type(key, [use.leaves[i] for use in usage.uses], usage) for i in range(len(first.leaves)))
    steps = tuple(
        (axis, Type(aval.shape, _promote(axis, [dict(use.steps)[axis] for use in usage.uses], usage)))
        for axis, aval in first.steps
    )
    return KeyPlan(key, first.tree, leaves, steps, usage, _reduction(key, usage, default))


def _refuse_unreduced(key: str, use: Use) -> None:
    """Raises an error for a value that is a sum over devices that is not added up yet. It cannot be stored, packed or sent, and
    adding it up makes devices communicate, which the user has to decide."""
    if not any(map(sharding.unreduced_axes, use.operands)):
        return
    axes = frozenset[str]().union(*map(sharding.unreduced_axes, Record.of(use.mark, use.operands).leaves[key]))
    if axes:
        raise ConflictError(
            f"lox: {key!r} ({use.mark.site}) is unreduced over {', '.join(map(repr, sorted(axes)))}: each device has a part of "
            "a sum. Add it up before you log it, with jax.reshard(x, jax.P(...)), or jax.lax.psum in a shard_map; or log "
            "something else"
        )


def _common_type(key: str, avals: list[Any], usage: Usage) -> Type:
    if len(avals) == 1:
        return Type(avals[0].shape, avals[0].dtype, sharding.split_of(avals[0]))
    split = [found for aval in avals if (found := sharding.split_of(aval)) is not None]
    return Type(avals[0].shape, _promote(key, avals, usage), split[0] if split else None)


def _check_fit(key: str, first: Use, other: Use) -> None:
    def conflict(what: str, a: Any, b: Any) -> ConflictError:
        return ConflictError(
            f"lox: {key!r} is logged with {what} {a} at {first.mark.site} and {b} at {other.mark.site}; "
            "use the same for both, or different keys"
        )

    if first.tree != other.tree:
        raise conflict("the structure", first.tree, other.tree)
    for a, b in zip(first.leaves, other.leaves, strict=True):
        if a.shape != b.shape:
            raise conflict("the shape", a.shape, b.shape)
    if set(first.mark.axes) != set(other.mark.axes):
        raise conflict("the step axes", list(first.mark.axes), list(other.mark.axes))
    for axis, aval in first.steps:
        if aval.shape != dict(other.steps)[axis].shape:
            raise conflict(f"the shape of step {axis!r}", aval.shape, dict(other.steps)[axis].shape)


def _promote(name: str, avals: list[Any], usage: Usage) -> Any:
    if len(avals) == 1 or len({aval.dtype for aval in avals}) == 1:
        return avals[0].dtype
    try:
        with compat.mode_for(aval.dtype for aval in avals):
            return jnp.result_type(*[_weakly_typed(aval) for aval in avals])
    except (TypeError, ValueError) as error:
        sites = name_sites(use.mark.site for use in usage.uses)
        dtypes = ", ".join(dict.fromkeys(str(aval.dtype) for aval in avals))
        raise ConflictError(f"lox: the dtypes of {name!r} ({dtypes}, at {sites}) have no common type") from error


def _weakly_typed(aval: Any) -> Any:
    """A stand-in that JAX promotes like a value of this type."""
    if not getattr(aval, "weak_type", False):
        return aval.dtype
    kind = {"b": bool, "i": int, "u": int, "f": float, "c": complex}[jnp.dtype(aval.dtype).kind]
    return kind


def _reduction(key: str, usage: Usage, default: Reduction | None) -> Reduction:
    if len(usage.uses) == 1:
        return usage.uses[0].mark.reduce or default or KEEP_ALL
    chosen = [(use.mark.reduce or default or KEEP_ALL, use.mark.site) for use in usage.uses]
    for how, site in chosen[1:]:
        if how != chosen[0][0]:
            raise ConflictError(
                f"lox: {key!r} has different reductions at {chosen[0][1]} and {site}: give both the same reduce=, "
                "or use different keys"
            )
    return chosen[0][0]


def spool_options(*given: Any) -> SpoolOptions:
    """Checks the options of ``lox.spool``. Equal options give the same object."""
    try:
        return _known_spool_options(*given)
    except TypeError:  # an option is not hashable, such as a list; or it is wrong, and the error comes again
        return _spool_options(*given)


def _spool_options(
    argnames: Any, tags: Any, keep_logs: bool, interval: Any, reduce: Any, prefix: str, capacity: Any
) -> SpoolOptions:
    return SpoolOptions(
        Selection.of(argnames, tags),
        bool(keep_logs),
        check_positive("interval", interval),
        resolve(reduce),
        prefix,
        check_positive("capacity", capacity),
    )


_known_spool_options = functools.lru_cache(typed=True)(_spool_options)
