"""``lox.tap``: each record calls the host while the program runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from lox._calls import explain_options
from lox._errors import LogTypeError
from lox._host import executions, order
from lox._host.chunk import UnlessEmpty, send_held
from lox._host.delivery import Receiver
from lox._host.gather import AsRows, DeviceGather, EachDevice, callers_here
from lox._host.streams import BatchStore, Line, RecordStore, Stream, Waiting, send_records
from lox._host.targets import Form, PerRecord
from lox._host.tokens import first_token, on_track
from lox._interpret import program
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.cuts import Cuts, Label, label_of
from lox._interpret.pacing import AS_A_WHOLE, Pace, Paces, marks_in
from lox._interpret.plan import check_positive, plan_key
from lox._interpret.rules.shard_map import on_each_device
from lox._interpret.selection import Selection
from lox._interpret.survey import Survey, Usages, Use
from lox._jax import sharding
from lox._logdict import logdict
from lox._marks.mark import Mark, Record
from lox._storage.packing import MAX_PACKED_ELEMENTS, Packing, packing_for
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
      batch: collect up to n records of a call of ``lox.log`` on the device and deliver them stacked, the rest at the end. Each
        call has its own batch, so rare records can wait until the program ends; tap those without ``batch``.
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
        tapper.begin(frame)
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
        # Records that are not sent at once, by the label of what is recorded.
        self.stores: dict[Label, tuple[int, BatchStore | RecordStore]] = {}
        # Clocks tell in which order a loop has recorded what it sends later. The devices of a shard_map have their own.
        self.clocks: dict[str, int] = {}
        self.paces: Paces | None = None
        if options.batch or (options.interval and self.packing.intervals):
            self.paces = self._keep_until_later(traced.jaxpr, usages)
            calls += self.paces.num_rests + bool(options.batch)
        # A single call, in a loop or not, needs no chain. Buffers are also sent when the program ends.
        self.chained = calls > 1 and not options.ordered and len({use.mesh for use in uses}) == 1
        self.in_chain = uses[0] if self.chained else None
        self.tracks = survey.tracks(traced.jaxpr)
        # The shard_maps in which the calls of the chain are made.
        places = (around for (mark, _), around in marks_in(traced.jaxpr) if survey.selected(mark))
        self.around = next(places, ()) if self.chained else ()
        # Tokens count calls if all devices that make them can say where they begin.
        self.counts = self.chained and bool(self.around) == bool(uses[0].mesh)
        # Outside compiled programs, nothing else keeps it alive between two calls.
        self.sequence = order.sequence_for(handle) if self.counts else None

    def _keep_until_later(self, jaxpr: Any, usages: Usages) -> Paces:
        """Sets the stores and the clocks; returns how loops are taken that send what is in them."""
        options = self.options
        if not options.batch:
            meshes = _number({key: usage.uses[0].mesh for key, usage in usages.items()})
            self.clocks = {key: TOKEN - 1 - number for key, number in meshes.items()}
        of_marks: dict[Label, tuple[int, ...]] = {}
        first = len(set(self.counters.values()))
        for mark, label, store in _stores(self.survey, usages, options, self.counters, self.packing):
            number, _ = self.stores.setdefault(label, (first + len(self.stores), store))
            of_marks[mark] = (*of_marks.get(mark, ()), number)
        most = self.packing.batches if options.batch else self.packing.intervals
        cuts = Cuts(self.survey, jaxpr, options.interval or 1, options.batch or 1, most, not options.batch)
        paces = Paces(self.survey, jaxpr, cuts if most else None, of_marks, self.clocks)
        # Outside of chunks, buffers are sent when they are full; but from a shard_map, nobody could send the rest.
        buffers = {number for number, store in self.stores.values() if options.batch and not store.mesh}
        needed = paces.held | (paces.loose & buffers)
        self.stores = {label: stored for label, stored in self.stores.items() if stored[0] in needed}
        self.clocks = self.clocks if paces.held else {}
        return paces

    # --- state ---------------------------------------------------------------------------------------------------

    def init(self) -> dict[int, Any]:
        # A counter inside shard_map is one per device.
        state: dict[int, Any] = {
            number: _for_each_device(jnp.int32(0), self.plans[key].usage.uses[0])
            for key, number in self.counters.items()
        }
        state.update({number: store.init() for number, store in self.stores.values()})
        for key, number in self.clocks.items():
            state[number] = _for_each_device(jnp.int32(0), self.plans[key].usage.uses[0])
        around = sharding.manual_axes_here()
        state = jax.tree.map(lambda x: sharding.vary_over(x, around), state) if around else state
        if self.in_chain is not None:
            token = _for_each_device(first_token(self.tracks), self.in_chain)
            state[TOKEN] = sharding.vary_over(token, around)
        return state

    def begin(self, frame: Frame) -> None:
        """The program begins."""
        if self.counts:
            self._on_devices(frame, self.around, frozenset([TOKEN]), self._begin_here)

    def _begin_here(self, frame: Frame) -> None:
        sizes = jax.sharding.get_abstract_mesh().shape
        place = _place(tuple((axis, sizes[axis]) for axis in sharding.manual_axes_here()))
        token = executions.begin(self.handle, frame.state[TOKEN], place)
        frame.state[TOKEN] = sharding.vary_like(token, frame.state[TOKEN])

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        del folds  # a tap updates its state at the mark
        usages = self.survey(jaxpr).usages
        numbers = {numbers[key] for numbers in (self.counters, self.clocks) for key in usages if key in numbers}
        for mark, _ in self.stores:
            if any(key in usages for key in mark.keys):
                numbers.update(number for label, (number, _) in self.stores.items() if label[0] == mark)
        return frozenset(numbers | {TOKEN}) if self.chained and usages else frozenset(numbers)

    # --- records -------------------------------------------------------------------------------------------------

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        self.survey.calls(jaxpr)
        return super().run(jaxpr, args, frame)

    def branch(self, jaxprs: Sequence[Any], i: int, args: Sequence[Array], frame: Frame) -> list[Array]:
        """Branches that run side by side count their calls on tracks of their own."""
        offset = sum(map(self.survey.tracks, jaxprs[:i]))
        if not offset or TOKEN not in frame.state:
            return super().branch(jaxprs, i, args, frame)
        frame.state[TOKEN] = on_track(frame.state[TOKEN], offset)
        outs = super().branch(jaxprs, i, args, frame)
        frame.state[TOKEN] = on_track(frame.state[TOKEN], -offset)
        return outs

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        frame.goes_on = self.survey.waits(eqn)
        super()._mark(eqn, invals, frame)

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        in_lanes = record.where is not None and jnp.ndim(record.where) > 0
        where = jnp.any(record.where) if in_lanes else record.where
        clock = self.clocks.get(keys[0])
        time: Any = None if clock is None else frame.state.get(clock)
        for together, due in self._due(frame, keys, where):
            mark = record.mark.pick(together)
            _, leaves = _part(record, together)
            leaves = [record.where, *leaves] if in_lanes else leaves
            label = label_of(mark, leaves)
            number, store = self.stores.get(label, (None, None))
            if store is not None and number in frame.later:
                frame.state[number] = store.add(frame.state[number], leaves, due, time)
            elif isinstance(store, BatchStore) and number in frame.state and not frame.mesh:
                state = store.add(frame.state[number], leaves, due)
                frame.state[number], token = store.send_if_full(state, self._stream(frame, label, store))
                self._go_on(frame, token)
            else:
                frame.waiting.append(Waiting(self._handle(frame, label), self._form(mark, in_lanes), leaves, due))
        if clock is not None and clock in frame.later:
            frame.state[clock] = time + 1
        if frame.waiting and not frame.goes_on:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._go_on(frame, send_records(self._line(frame), frame.waiting, frame.state.get(TOKEN), frame.asks))
        frame.waiting = []

    def _go_on(self, frame: Frame, token: Array | None) -> None:
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

    # --- chunks of loops ------------------------------------------------------------------------------------------

    def pace(self, eqn: Any, later: frozenset[int]) -> Pace:
        return AS_A_WHOLE if self.paces is None else self.paces.of(eqn, later)

    def before_chunks(self, frame: Frame, pace: Pace) -> None:
        """What is left in buffers comes first: the records of a mark are in order."""
        for label, number, store in self._buffers():
            if number in pace.stores:
                stream = self._stream(frame, label, store, maybe_empty=True)
                self._go_on(frame, store.send(frame.state[number], stream, is_full=False))
                frame.state[number] = store.emptied(frame.state[number])

    def after_chunk(self, frame: Frame, pace: Pace, iterations: int, before: dict[int, Any]) -> None:
        full = pace.full if iterations == pace.size else frozenset[int]()
        for call in pace.calls:
            self._send_kept(frame, call.stores, call.around, full)
        stores = dict(self.stores.values())
        frame.state.update({n: stores[n].emptied(frame.state[n], before[n]) for n in pace.stores})
        frame.state.update({number: before[number] for number in pace.clocks})

    def _send_kept(self, frame: Frame, numbers: tuple[int, ...], around: tuple[Any, ...], full: frozenset[int]) -> None:
        """Send what stores have from where it was recorded: inside the shard_maps around the marks."""

        def send(frame: Frame) -> None:
            held: list[Waiting] = []
            for label, (number, store) in self.stores.items():
                if number not in numbers:
                    continue
                if isinstance(store, BatchStore):
                    stream = self._stream(frame, label, store, maybe_empty=number not in full)
                    self._go_on(frame, store.send(frame.state[number], stream, is_full=number in full))
                else:
                    form = self._form(label[0], store.in_lanes)
                    held.append(Waiting(self._handle(frame, label), form, frame.state[number], None))
            if held:
                self._go_on(frame, send_held(self._line(frame), held, frame.state.get(TOKEN)))

        self._on_devices(frame, around, frozenset(numbers) | ({TOKEN} & frame.state.keys()), send)

    def _on_devices(
        self, frame: Frame, around: Sequence[Any], numbers: frozenset[int], act: Callable[[Frame], None]
    ) -> None:
        """Do something inside these shard_maps, with these stores."""
        if not around:
            act(frame)
            return
        outer, *inner = around

        def body(within: Frame, _: Any) -> Any:
            self._on_devices(within, inner, numbers, act)
            return [], []

        on_each_device(self, frame, outer, numbers, body)

    def _buffers(self) -> Iterator[tuple[Label, int, BatchStore]]:
        """Those that can hold records of a mark outside of chunks."""
        loose = set() if self.paces is None else self.paces.loose
        for label, (number, store) in self.stores.items():
            if number in loose and isinstance(store, BatchStore) and not store.mesh:
                yield label, number, store

    def flush(self, frame: Frame) -> None:
        """The program ends."""
        for label, number, store in self._buffers():
            self._go_on(frame, store.flush(frame.state[number], self._stream(frame, label, store)))
        if self.counts:
            end = lambda frame: executions.end(self.handle, frame.state[TOKEN])  # noqa: E731
            self._on_devices(frame, self.around, frozenset([TOKEN]), end)

    # --- where records go ----------------------------------------------------------------------------------------

    def _form(self, mark: Mark, in_lanes: bool) -> Form:
        return Form(tuple(self.options.prefix + key for key in mark.keys), mark.trees, mark.axes, in_lanes)

    def _line(self, frame: Frame) -> Line:
        operands = (_place(frame.mesh), frame.env) if frame.mesh else frame.env
        # Batches keep the order of each mark only, unless calls are numbered.
        receiver = self.handle if self.counts else None
        return Line(operands, frame.alive, self.options.ordered, receiver, waits=not self.options.batch)

    def _stream(self, frame: Frame, label: Label, store: BatchStore, maybe_empty: bool = False) -> Stream:
        """Where a buffer goes."""
        handle = self._on_mesh(frame, label, self.handle)
        form, token = self._form(label[0], store.in_lanes), frame.state.get(TOKEN)
        return Stream(UnlessEmpty(handle) if maybe_empty else handle, form, self._line(frame), token)

    def _handle(self, frame: Frame, label: Label) -> Any:
        """Who receives a single record."""
        alone = frame.mesh and self.options.batch
        return self._on_mesh(frame, label, AsRows(self.handle) if alone else self.handle)

    def _on_mesh(self, frame: Frame, label: Label, handle: Any) -> Any:
        """``handle``, behind what puts the values of the devices of a shard_map together."""
        if not frame.mesh:
            return handle
        sizes = tuple(size for _, size in frame.mesh)
        if self._is_certain(frame, label[0]):
            # Every device makes the call: put their values together.
            gather = DeviceGather(handle, sizes, callers_here(frame.devices, frame.mesh))
            return self.gathers.setdefault((label, gather.shape, type(handle)), gather)
        return EachDevice(handle, len(sizes))

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


def _part(record: Record, keys: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """Some keys of a record: their label, and their leaves with the steps."""
    leaves = [leaf for key in keys for leaf in record.leaves[key]] + list(record.steps.values())
    return label_of(record.mark.pick(keys), leaves), leaves


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
            _, leaves = _part(record, together)
            avals = which + [Aval(leaf.shape, leaf.dtype, sharding=sharding.split_of(leaf)) for leaf in leaves]
            values, steps = tuple(avals[: len(avals) - len(mark.axes)]), tuple(avals[len(avals) - len(mark.axes) :])
            places = (bool(use.lanes), use.mesh, use.spread)
            store = (
                BatchStore(options.batch, values, steps, packed, *places)
                if options.batch
                else RecordStore(values + steps, *places)
            )
            yield of_mark, label_of(mark.pick(together), avals), store
