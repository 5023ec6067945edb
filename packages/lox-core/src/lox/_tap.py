"""``lox.tap``: each record calls the host while the program runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from lox._calls import explain_options
from lox._errors import LogTypeError
from lox._host import executions
from lox._host.delivery import Receiver
from lox._host.gather import AsRows, DeviceGather, EachDevice, callers_here
from lox._host.order import first_token
from lox._host.streams import BatchStore, Line, RecordStore, Stream, Waiting, send_records
from lox._host.targets import Form, PerRecord
from lox._interpret import program
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.pacing import Call, Pace, Steady, steady_loops
from lox._interpret.plan import check_positive, plan_key
from lox._interpret.rules.shard_map import on_each_device
from lox._interpret.selection import Selection
from lox._interpret.survey import Survey, Usages, Use
from lox._jax import sharding
from lox._logdict import logdict
from lox._marks.mark import Mark, Record
from lox._storage.packing import packing_for
from lox._storage.stores import Aval, select
from lox._types import Array

P = ParamSpec("P")
R = TypeVar("R")

# The number of the token that chains host calls in program order. Stores have numbers from 0.
TOKEN = -1


@explain_options(
    {
        "reduce": "it delivers the records themselves. Fold them in the callback, with logs.reduce(...) and batch=n, or use "
        "lox.spool(f, reduce=...).",
        "capacity": "it delivers records while the function runs, so there is nothing to bound. Leave it out.",
        "keep_logs": "it always leaves the marks in the program. Leave it out.",
    }
)
def tap(
    fun: Callable[P, R],
    callback: Callable[[logdict], Any] | Receiver | None = None,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    prefix: str = "",
    interval: int | None = None,
    batch: int | None = None,
    ordered: bool = False,
) -> Callable[P, R]:
    """Transform ``fun`` into a function that also calls ``callback(logs)`` for its records, while it runs.

    Args:
      fun: the function whose ``lox.log`` calls are streamed, jitted or not.
      callback: gets a logdict of numpy values; by default, prints it. It must not call JAX: that can deadlock.
      argnames: only these keys; patterns such as ``"train/*"`` work.
      tags: only records that have at least one of these tags.
      prefix: put before every key.
      interval: deliver records 0, n, 2n, ... of each key; the others cost no host call.
      batch: collect n records of a call of ``lox.log`` on the device and deliver them stacked, the rest at the end. Each call has
        its own batch, so rare records wait until the program ends; tap those without ``batch``.
      ordered: let JAX guarantee the order. This does not work under ``vmap`` or on several devices.

    The records have arrived when ``jax.effects_barrier()`` returns.

    >>> def f(x):
    ...     lox.log({"x": x})
    ...     return x + 1.0
    >>> y = lox.tap(f, lambda logs: print("got", logs))(jnp.float32(1.0))
    got {'x': 1.0}
    """
    every = check_positive("interval", interval)
    options = TapOptions(
        Selection.of(argnames, tags),
        prefix,
        None if every == 1 else every,
        check_positive("batch", batch),
        bool(ordered),
    )
    receiver = callback if isinstance(callback, Receiver) else Receiver(PerRecord(_check_callback(callback)))
    operands, operand_tree = jax.tree.flatten(receiver.operands)
    operands = [jnp.asarray(operand) for operand in operands]
    label = ("tap", options, receiver.handle, operand_tree)
    interpreter = functools.partial(_interpreter, options, receiver, operand_tree)
    return program.transform(fun, label, interpreter, lambda out, _: out, operands)


@dataclasses.dataclass(frozen=True)
class TapOptions:
    selection: Selection
    prefix: str
    interval: int | None
    batch: int | None
    ordered: bool


def _check_callback(callback: Any) -> Callable[[logdict], Any]:
    if callback is None:
        return print
    if not callable(callback):
        hint = f". To select keys, write argnames={callback!r}" if isinstance(callback, str) else ""
        raise LogTypeError(
            f"lox.tap: callback must be callable, got {callback!r} of type {type(callback).__name__}{hint}"
        )
    return callback


def _interpreter(
    options: TapOptions, receiver: Receiver, operand_tree: Any, traced: program.Traced
) -> Callable[[list[Array], list[Array]], Any]:
    survey = Survey(options.selection)
    usages = survey(traced.jaxpr).usages
    options.selection.warn_of_unknown_names(usages, traced.jaxpr)
    if receiver.check is not None:
        axes = {axis for usage in usages.values() for use in usage.uses for axis in use.mark.axes}
        receiver.check([options.prefix + key for key in usages], sorted(axes))
    tapper = Tapper(survey, options, receiver.handle, traced)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        frame = Frame(Context(tapper.init(), env=operand_tree.unflatten(operands)), nested=False)
        outs = tapper.run(traced.jaxpr, arrays, frame)
        tapper.flush(frame)
        return outs, ()

    return interpret


class Tapper(Collector):
    """Sends records to the host: at once, or through counters and buffers that are carried as stores."""

    tracks_lanes = True

    def __init__(self, survey: Survey, options: TapOptions, handle: Any, traced: program.Traced) -> None:
        super().__init__(survey, keep=True, packing=packing_for(traced.inputs()))
        usages = survey(traced.jaxpr).usages
        self.options = options
        self.handle = handle
        # Shapes and step axes are checked as for spool, so that both accept the same programs.
        self.plans = {key: plan_key(key, usage, None) for key, usage in usages.items()}
        self.counters = _number(_same_marks(usages)) if options.interval else {}
        self.gathers: dict[Any, DeviceGather] = {}
        uses = [use for usage in usages.values() for use in usage.uses]
        calls = survey.calls(traced.jaxpr)
        # Records that are not sent at once: in a buffer, or, if only the first of a chunk is sent, by themselves.
        self.stores: dict[Any, tuple[int, BatchStore | RecordStore]] = {}
        self.paces: dict[int, Pace] = {}
        if options.batch or options.interval:
            self._keep_until_later(traced, usages)
        # A single call, in a loop or not, needs no chain, and batches keep the order of each mark only.
        calls += any(pace.has_rest for pace in self.paces.values())
        self.chained = calls > 1 and not (options.batch or options.ordered) and len({use.mesh for use in uses}) == 1
        self.in_chain = uses[0] if self.chained else None
        # The devices of a shard_map do not count together.
        self.numbered = self.chained and not uses[0].mesh and not sharding.manual_axes_here()

    def _keep_until_later(self, traced: program.Traced, usages: Usages) -> None:
        """Sets the stores, and how scans are taken that know when to send, by the id of their equation."""
        options, size = self.options, (self.options.batch or 1) * (self.options.interval or 1)
        most = self.packing.batches if options.batch else self.packing.intervals
        loops = steady_loops(self.survey, traced.jaxpr, size, most, held=not options.batch) if most else {}
        if not (options.batch or loops):
            return
        kept = usages if options.batch else frozenset[str]().union(*(loop.keys for loop in loops.values()))
        for label, store in _stores(self.survey, usages, options, self.counters, self.packing.host).items():
            if all(key in kept for key in label[0].keys):
                self.stores[label] = (len(set(self.counters.values())) + len(self.stores), store)
        self.paces = {eqn: self._pace(loop, size) for eqn, loop in loops.items()}

    def _pace(self, loop: Steady, size: int) -> Pace:
        held = not self.options.batch
        calls: list[Call] = []
        waiting: tuple[int, ...] = ()
        for eqn, around in loop.marks:
            mark = eqn.params["mark"]
            selected = self.survey.selected(mark)
            record = Record.of(mark, [var.aval for var in eqn.invars])
            kept = [keys for keys in _together(self.counters, selected) if loop.keys.issuperset(keys)]
            waiting += tuple(self.stores[_part(record, keys)[0]][0] for keys in kept)
            if waiting and selected and not self.survey.waits(eqn):
                calls.append(Call(waiting, around))
                waiting = ()
        return Pace(size, tuple(calls), held, held and loop.length % size > 0)

    # --- state ---------------------------------------------------------------------------------------------------

    def init(self) -> dict[int, Any]:
        # A counter inside shard_map is one per device.
        state: dict[int, Any] = {
            number: _for_each_device(jnp.int32(0), self.plans[key].usage.uses[0])
            for key, number in self.counters.items()
        }
        state.update({number: store.init() for number, store in self.stores.values()})
        around = sharding.manual_axes_here()
        state = jax.tree.map(lambda x: sharding.vary_over(x, around), state) if around else state
        if self.in_chain is not None:
            token = executions.begin(self.handle) if self.numbered else first_token()
            state[TOKEN] = _for_each_device(token, self.in_chain)
        return state

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        del folds  # a tap updates its state at the mark
        usages = self.survey(jaxpr).usages
        numbers = {number for key, number in self.counters.items() if key in usages}
        for mark, _ in self.stores:
            if any(key in usages for key in mark.keys):
                numbers.update(number for label, (number, _) in self.stores.items() if label[0] == mark)
        return frozenset(numbers | {TOKEN}) if self.chained and usages else frozenset(numbers)

    # --- records -------------------------------------------------------------------------------------------------

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        self.survey.calls(jaxpr)
        return super().run(jaxpr, args, frame)

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        frame.goes_on = self.survey.waits(eqn)
        super()._mark(eqn, invals, frame)

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        if frame.first is not None and self._hold(frame, record, keys):
            return
        in_lanes = record.where is not None and jnp.ndim(record.where) > 0
        where = jnp.any(record.where) if in_lanes else record.where
        for together, due in self._due(frame, keys, where):
            mark = record.mark.pick(together)
            _, leaves = _part(record, together)
            leaves = [record.where, *leaves] if in_lanes else leaves
            number, store = self.stores.get(_label(mark, leaves), (None, None))
            if isinstance(store, BatchStore) and number in frame.state:
                state = store.add(frame.state[number], leaves, due)
                stream = self._stream(frame, mark, in_lanes)
                frame.state[number] = state if number in frame.later else store.send_if_full(state, stream)
            else:
                handle, leaves = self._handle(frame, mark, leaves)
                frame.waiting.append(Waiting(handle, self._form(mark, in_lanes), leaves, due))
        if frame.waiting and not frame.goes_on:
            self._send(frame)

    def _hold(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> bool:
        """Keep a record for the end of a chunk, if that is when it is sent. Which one is due, the loop knows."""
        for together in _together(self.counters, keys):
            label, leaves = _part(record, together)
            number, _ = self.stores.get(label, (None, None))
            if number is None or number not in frame.later:
                return False
            frame.state[number] = select(frame.first, leaves, frame.state[number])
        return True

    def _send(self, frame: Frame) -> None:
        token = send_records(self._line(frame), frame.waiting, frame.state.get(TOKEN))
        frame.waiting = []
        if token is not None:
            frame.state[TOKEN] = sharding.vary_like(token, frame.state[TOKEN])

    def _due(
        self, frame: Frame, keys: tuple[str, ...], where: Array | None
    ) -> list[tuple[tuple[str, ...], Array | None]]:
        """Split the keys of a mark by the counter that decides whether they are delivered."""
        groups: dict[int | None, list[str]] = {}
        for key in keys:
            number = self.counters.get(key)
            groups.setdefault(number if number in frame.state else None, []).append(key)
        decided = []
        for number, together in groups.items():
            if number is None:
                decided.append((tuple(together), where))
                continue
            seen = frame.state[number]
            due = seen == 0
            following = jnp.where(seen + 1 == self.options.interval, 0, seen + 1)
            frame.state[number] = sharding.vary_like(select(where, following, seen), seen)
            decided.append((tuple(together), due if where is None else due & where))
        return decided

    def pace(self, eqn: Any) -> Pace | None:
        return self.paces.get(id(eqn))

    def after_chunk(self, frame: Frame, pace: Pace, iterations: int) -> None:
        for call in pace.calls:
            if pace.held:
                self._send_held(frame, call.stores, call.around)
            elif iterations == pace.size:
                self._send_full(frame, call.stores)

    def _send_held(self, frame: Frame, numbers: tuple[int, ...], around: tuple[Any, ...]) -> None:
        """Send records from where they were made: inside the shard_maps around their marks."""
        if around:
            outer, *inner = around

            def body(within: Frame, _: Any) -> Any:
                self._send_held(within, numbers, tuple(inner))
                return [], []

            on_each_device(self, frame, outer, frozenset(numbers) | ({TOKEN} & frame.state.keys()), body)
            return
        marks = {number: mark for (mark, _), (number, _) in self.stores.items()}
        for number in numbers:
            handle, leaves = self._handle(frame, marks[number], frame.state[number])
            frame.waiting.append(Waiting(handle, self._form(marks[number], False), leaves, None))
        self._send(frame)

    def _send_full(self, frame: Frame, numbers: tuple[int, ...]) -> None:
        for (mark, _), (number, store) in self.stores.items():
            if number in numbers and isinstance(store, BatchStore):
                stream = self._stream(frame, mark, store.in_lanes)
                frame.state[number] = store.send_full(frame.state[number], stream)

    def flush(self, frame: Frame) -> None:
        """The program ends."""
        for (mark, _), (number, store) in self.stores.items():
            if isinstance(store, BatchStore):
                store.flush(frame.state[number], self._stream(frame, mark, store.in_lanes))
        if self.numbered:
            executions.end(self.handle, frame.state[TOKEN])

    # --- where records go ----------------------------------------------------------------------------------------

    def _form(self, mark: Mark, in_lanes: bool) -> Form:
        return Form(tuple(self.options.prefix + key for key in mark.keys), mark.trees, mark.axes, in_lanes)

    def _line(self, frame: Frame) -> Line:
        operands = (_place(frame.mesh), frame.env) if frame.mesh else frame.env
        return Line(operands, frame.alive, self.options.ordered, self.numbered)

    def _stream(self, frame: Frame, mark: Mark, in_lanes: bool) -> Stream:
        """Where buffers go. There are none in a shard_map."""
        return Stream(self.handle, self._form(mark, in_lanes), self._line(frame))

    def _handle(self, frame: Frame, mark: Mark, leaves: list[Array]) -> tuple[Any, list[Array]]:
        """Who receives a single record, and what."""
        if not frame.mesh:
            return self.handle, leaves
        sizes = tuple(size for _, size in frame.mesh)
        handle = AsRows(self.handle) if self.options.batch else self.handle
        if self._is_certain(frame, mark):
            # Every device makes the call: put their values together.
            gather = DeviceGather(handle, sizes, callers_here(frame.devices, frame.mesh))
            return self.gathers.setdefault((_label(mark, leaves), gather.shape), gather), leaves
        return EachDevice(handle), [jnp.reshape(leaf, (1,) * len(sizes) + jnp.shape(leaf)) for leaf in leaves]

    def _is_certain(self, frame: Frame, mark: Mark) -> bool:
        """Whether every device makes the same calls for a mark. With an interval they depend on all marks of its keys."""
        certain = frame.certain is not None and frame.certain.issuperset(mark.keys)
        return certain and (not self.options.interval or all(self.plans[key].usage.is_certain for key in mark.keys))


def _for_each_device(value: Array, use: Use) -> Array:
    return sharding.for_each_device(value, use.mesh, use.spread)


def _place(mesh: tuple[tuple[str, int], ...]) -> Array:
    """The number of this device in the mesh."""
    place = jnp.int32(0)
    for axis, size in mesh:
        place = place * size + jax.lax.axis_index(axis)
    return place


def _label(mark: Mark, leaves: Iterable[Any]) -> tuple[Mark, Any]:
    """Identifies a buffer: a call of ``lox.log``, with some of its keys, and the types that it was traced with."""
    return mark, tuple((tuple(leaf.shape), leaf.dtype) for leaf in leaves)


def _part(record: Record, keys: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """Some keys of a record: their label, and their leaves with the steps."""
    leaves = [leaf for key in keys for leaf in record.leaves[key]] + list(record.steps.values())
    return _label(record.mark.pick(keys), leaves), leaves


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
    survey: Survey, usages: Usages, options: TapOptions, counters: dict[str, int], packed: int
) -> dict[Any, BatchStore | RecordStore]:
    """A store for each call of ``lox.log`` and each set of its keys that is delivered together."""
    stores: dict[Any, BatchStore | RecordStore] = {}
    by_mark = {(_label(use.mark, use.operands), use.lanes): use for usage in usages.values() for use in usage.uses}
    for use in by_mark.values():
        if use.mesh and options.batch:
            continue
        mark, record = use.mark, Record.of(use.mark, use.operands)
        which = [Aval(use.lanes, jnp.bool_)] if use.lanes else []
        for together in _together(counters, survey.selected(mark)):
            _, leaves = _part(record, together)
            avals = which + [Aval(leaf.shape, leaf.dtype, sharding=sharding.split_of(leaf)) for leaf in leaves]
            values, steps = tuple(avals[: len(avals) - len(mark.axes)]), tuple(avals[len(avals) - len(mark.axes) :])
            stores[_label(mark.pick(together), avals)] = (
                BatchStore(options.batch, values, steps, packed, bool(use.lanes))
                if options.batch
                else RecordStore(values + steps, use.mesh, use.spread)
            )
    return stores
