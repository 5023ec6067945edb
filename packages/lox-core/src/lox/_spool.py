"""``lox.spool``: the records are returned with the result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import jax

from lox._calls import explain_options
from lox._errors import ConflictError
from lox._interpret import program
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.plan import Group, KeyPlan, Plan, SpoolOptions, make_plan, spool_options
from lox._interpret.returned import Returned
from lox._interpret.survey import Survey
from lox._jax import compat, sharding
from lox._logdict import logdict
from lox._marks.mark import Record
from lox._marks.primitives import detach
from lox._reduce import APPEND
from lox._storage.packing import Packing, packing_for
from lox._storage.rows import Chunk, Rows, SharedJoin
from lox._types import Array

P = ParamSpec("P")
R = TypeVar("R")


@explain_options(
    {
        "callback": "it returns the records when the function returns. To get them while it runs, use lox.tap(f, callback).",
        "batch": "it returns all records at the end. To get n at a time while the function runs, use lox.tap(f, batch=n).",
        "ordered": "its records are always in program order. Leave it out.",
    }
)
def spool(
    fun: Callable[P, R],
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    capacity: int | None = None,
) -> Callable[P, tuple[R, logdict]]:
    """Transform ``fun`` into a function that returns ``(out, logs)``.

    Args:
      fun: the function whose ``lox.log`` calls are collected, jitted or not.
      argnames: only these keys; patterns such as ``"train/*"`` work.
      tags: only records that have at least one of these tags.
      keep_logs: leave the marks in the program as well, for a transformation outside.
      interval: keep records 0, n, 2n, ... of each key.
      reduce: what records fold into, for calls of ``lox.log`` without their own ``reduce``.
      prefix: put before every returned key.
      capacity: for keys whose number of records is not fixed (``while_loop``, branches that differ), keep the last n.

    >>> def f(xs):
    ...     def step(carry, x):
    ...         carry += x
    ...         lox.log({"carry": carry})
    ...         return carry, x
    ...     return jax.lax.scan(step, 0, xs)[0]
    >>> y, logs = lox.spool(f)(jnp.arange(3))
    >>> print(logs)
    {'carry': [0, 1, 3]}
    """
    options = spool_options(argnames, tags, keep_logs, interval, reduce, prefix, capacity)
    return _transform(fun, options, _as_they_are)


def spool_returned(
    fun: Callable[P, R],
    argnames: Any = None,
    tags: Any = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: Any = None,
    prefix: str = "",
    capacity: int | None = None,
) -> Callable[P, tuple[R, Returned]]:
    """``spool``, with logs that are not put together yet."""
    options = spool_options(argnames, tags, keep_logs, interval, reduce, prefix, capacity)
    return _transform(fun, options, Returned.of)


def _transform(fun: Callable[..., Any], options: SpoolOptions, form: Callable[[logdict], Any]) -> Any:
    return program.transform(
        fun,
        ("spool", options, form),
        functools.partial(_interpreter, options, form),
        _without_gradients,
        results=_beside_logs,
    )


def _beside_logs(out: Any) -> tuple[Any, None]:
    return out, None


def _as_they_are(logs: logdict) -> logdict:
    return logs


def _without_gradients(out: Any, logs: Any) -> tuple[Any, Any]:
    """Logged values carry no gradient. Inside loops and calls, this is done where they are recorded."""
    if not compat.tracing_now():
        return out, logs
    leaves, tree = jax.tree.flatten(logs)
    return out, tree.unflatten(detach(leaves))


def _interpreter(
    options: SpoolOptions, form: Callable[[logdict], Any], traced: program.Traced
) -> Callable[[list[Array], list[Array]], Any]:
    survey = Survey(options.selection)
    usages = survey(traced.jaxpr).usages
    options.selection.warn_of_unknown_names(usages, traced.jaxpr)
    packing = packing_for(traced.inputs())
    plan = make_plan(usages, options, packing)
    spooler = Spooler(survey, options.keep_logs, plan, packing)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        del operands
        frame = Frame(Context({i: group.init() for i, group in enumerate(plan.groups)}), nested=False)
        outs = spooler.run(traced.jaxpr, arrays, frame)
        spooler.settle(frame, frozenset(frame.state))
        logs = assemble(plan, frame)
        return outs, form(logs.prefix(options.prefix) if options.prefix else logs)

    return interpret


class Spooler(Collector):
    """Collects records: as rows, or in stores."""

    returns_records = True

    def __init__(self, survey: Survey, keep: bool, plan: Plan, packing: Packing) -> None:
        super().__init__(survey, keep, packing)
        self.plan = plan
        self.inside_shard_map = bool(sharding.manual_axes_here())

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        steps = record.steps
        for key in keys:
            plan = self.plan.keys.get(key)
            if plan is None:
                raise ConflictError(
                    f"lox.spool: {key!r} ({record.mark.site}) is recorded by a derivative rule and not by its function, "
                    "so grad(spool(f)) cannot return it. Write spool(grad(f))"
                )
            leaves = tuple(_cast(leaf, aval) for leaf, aval in zip(record.leaves[key], plan.leaves, strict=True))
            frame.rows.append(key, Chunk(leaves, self._steps(plan, steps), record.where))

    @staticmethod
    def _steps(plan: KeyPlan, steps: dict[str, Array]) -> tuple[tuple[str, Array], ...]:
        return tuple((axis, _cast(steps[axis], aval)) for axis, aval in plan.steps)

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        summary = self.survey(jaxpr)
        return self.plan.numbers_of(summary.usages if folds else summary.folded)

    def settle(self, frame: Frame, numbers: frozenset[int]) -> None:
        settled: set[str] = set()
        varies = self.inside_shard_map or frame.mesh
        for number in sorted(numbers):
            group = self.plan.groups[number]
            before = frame.state[number]
            after = _fold_pending(group, before, frame.rows)
            # A carried value must keep its type. In shard_map, that includes the mesh axes along which it varies.
            frame.state[number] = jax.tree.map(sharding.vary_like, after, before) if varies else after
            settled.update(plan.key for plan in group.keys)
        for key in settled - self.plan.rows:
            frame.rows.pop(key, None)


def _fold_pending(group: Group, state: Any, rows: Rows) -> Any:
    pending = [rows.get(plan.key, ()) for plan in group.keys]
    if len(set(map(len, pending))) > 1:
        keys = ", ".join(repr(plan.key) for plan in group.keys)
        raise ConflictError(
            f"lox.spool: {keys} are recorded together by a function, but not by its derivative rule. Record the same in "
            "both, or write spool(grad(f)) instead of grad(spool(f))"
        )
    for chunks in zip(*pending, strict=True):
        leaves = [leaf for chunk in chunks for leaf in chunk.leaves]
        steps = [step for _, step in chunks[0].steps]
        state = group.add(state, leaves, steps, chunks[0].where)
    return state


def _cast(array: Array, aval: Any) -> Array:
    array = compat.cast(array, aval.dtype)
    return array if aval.sharding is None else sharding.split_like(array, aval)


# --- from rows and states to logs ------------------------------------------------------------------------------------


def assemble(plan: Plan, frame: Frame) -> logdict:
    """The logs of a finished program. Keys are in the order in which they were first recorded."""
    join = SharedJoin()
    stored = [(group, _from_store(group, frame.state[number])) for number, group in enumerate(plan.groups)]
    rows = [
        _from_rows(plan.keys[key], frame.rows[key], join) for key in plan.keys if key in plan.rows and key in frame.rows
    ]
    reduced = logdict._of_disjoint([part for group, part in stored if group.reduces])
    kept = logdict._of_disjoint([part for group, part in stored if not group.reduces] + rows)
    for key in reduced.keys() & kept.keys():
        # With ("append", "mean"), the rows are one of the results.
        usage = plan.keys[key].usage
        single = not (usage.looped_or_repeated or usage.masked)
        appended = jax.tree.map(lambda leaf: leaf[0], kept[key]) if single else kept[key]
        dict.__setitem__(reduced, key, {**reduced[key], APPEND: appended})
    logs = logdict._of_disjoint([reduced, kept.filter(lambda key: key not in reduced)])
    logs = logs._pick({key: key for key in plan.keys if key in logs})
    logs._steps = {axis: logs._steps[axis] for axis in _in_order(plan.keys[key].axes for key in logs)}
    return logs


def _in_order(axes_of_keys: Iterable[tuple[str, ...]]) -> list[str]:
    """All step axes, ordered so that each key keeps the order it was logged with: a key is shown over its first axis."""
    order: list[str] = []
    for axes in axes_of_keys:
        place = len(order)
        for axis in reversed(axes):
            if axis not in order:
                order.insert(place, axis)
            place = order.index(axis)
    return order


def _from_rows(plan: KeyPlan, chunks: tuple[Chunk, ...], join: SharedJoin) -> logdict:
    stacked = len(chunks) > 1 or bool(chunks[0].lengths)
    chunk = join(chunks) if stacked else chunks[0]
    return logdict._make(
        {plan.key: plan.tree.unflatten(chunk.leaves)},
        {axis: {plan.key: step} for axis, step in chunk.steps},
        {plan.key: chunk.rows},
        frozenset([plan.key] if stacked else []),
        {},
    )


def _from_store(group: Group, state: Any) -> logdict:
    done = group.finish(state)
    values, counts = {}, {}
    stacked: set[str] = set()
    for plan in group.keys:
        leaves = group.leaves_of(done.leaves)[plan.key]
        if group.reduces:
            parts = [plan.tree.unflatten(list(part)) for part in zip(*leaves, strict=True)]
            values[plan.key] = plan.reduction.label(parts)
        else:
            values[plan.key] = plan.tree.unflatten(leaves)
            stacked.add(plan.key)
        counts[plan.key] = done.count if group.count is None else group.count
    steps = {
        axis: {plan.key: step for plan in group.keys} for axis, step in zip(group.keys[0].axes, done.steps, strict=True)
    }
    bounds: dict[str, int | None] = dict.fromkeys(stacked, group.capacity) if group.bounded else {}
    return logdict._make(values, steps, counts, frozenset(stacked), bounds)
