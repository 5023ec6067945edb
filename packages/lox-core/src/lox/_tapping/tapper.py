"""Runs a program and sends its records to the host."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._host import executions, order
from lox._host.chunk import send_held
from lox._host.streams import BatchStore, Waiting, send_records
from lox._host.tokens import first_token, on_track
from lox._interpret import program
from lox._interpret.collect import Collector, Frame
from lox._interpret.pacing import Pace, marks_in
from lox._interpret.plan import plan_key
from lox._interpret.rules.shard_map import on_each_device
from lox._interpret.survey import Survey
from lox._jax import sharding
from lox._marks.mark import Record
from lox._storage.packing import packing_for
from lox._storage.stores import select
from lox._tapping.kept import FIRST_TOKEN, TOKEN, Kept, TapOptions, for_each_device, label_of_part, leaves_of
from lox._tapping.routes import Routes, place_in
from lox._types import Array


class Tapper(Collector):
    """Sends records to the host: at once, or through counters and buffers that are carried as stores."""

    tracks_lanes = True

    def __init__(self, survey: Survey, options: TapOptions, handle: Any, traced: program.Traced) -> None:
        super().__init__(survey, keep=True, packing=packing_for(traced.inputs()))
        usages = survey(traced.jaxpr).usages
        self.interval = options.interval
        # Shapes and step axes are checked as for spool, so that both accept the same programs.
        plans = {key: plan_key(key, usage, None) for key, usage in usages.items()}
        self.kept = Kept(survey, traced.jaxpr, options, self.packing)
        uses = [use for usage in usages.values() for use in usage.uses]
        calls = survey.calls(traced.jaxpr) + self.kept.num_rests + bool(options.batch)
        # A single call, in a loop or not, needs no chain. Buffers are also sent when the program ends.
        self.chained = calls > 1 and not options.ordered and len({use.mesh for use in uses}) == 1
        self.in_chain = uses[0] if self.chained else None
        self.tracks = survey.tracks(traced.jaxpr)
        # The shard_maps in which the calls of the chain are made.
        places = (around for (mark, _), around in marks_in(traced.jaxpr) if survey.selected(mark))
        self.around = next(places, ()) if self.chained else ()
        # Tokens count calls if all devices that make them can say where they begin.
        counts = self.chained and bool(self.around) == bool(uses[0].mesh)
        self.sequence = order.sequence_for(handle) if counts else None
        self.routes = Routes(options, handle, plans, self.sequence)

    # --- state ---------------------------------------------------------------------------------------------------

    def init(self) -> dict[int, Any]:
        state = self.kept.init()
        if self.in_chain is not None:
            token = for_each_device(first_token(self.tracks), self.in_chain)
            state[TOKEN] = sharding.vary_over(token, sharding.manual_axes_here())
        return state

    def begin(self, frame: Frame) -> None:
        """The program begins."""
        if self.sequence is not None:
            begin = functools.partial(_begin_here, self.sequence)
            self._on_devices(frame, self.around, frozenset([TOKEN]), begin)
            frame.state[FIRST_TOKEN] = frame.state[TOKEN]

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        del folds  # a tap updates its state at the mark
        usages = self.survey(jaxpr).usages
        numbers = self.kept.used_by(usages)
        return frozenset(numbers | {TOKEN}) if self.chained and usages else frozenset(numbers)

    # --- records -------------------------------------------------------------------------------------------------

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        self.survey.calls(jaxpr)
        return super().run(jaxpr, args, frame)

    @contextlib.contextmanager
    def in_branch(self, frame: Frame, jaxprs: Sequence[Any], i: int) -> Iterator[None]:
        """Branches that run side by side count their calls on tracks of their own. There may be too few, because nobody knew of
        the branches in a derivative rule: then the host hands on what arrives a second time at once."""
        offset = sum(map(self.survey.tracks, jaxprs[:i]))
        there_are_enough = offset + self.survey.tracks(jaxprs[i]) <= self.tracks
        if not (offset and there_are_enough and TOKEN in frame.state):
            yield
            return
        frame.state[TOKEN] = on_track(frame.state[TOKEN], offset)
        yield
        frame.state[TOKEN] = on_track(frame.state[TOKEN], -offset)

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        frame.goes_on = self.survey.waits(eqn)
        super()._mark(eqn, invals, frame)

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        in_lanes = record.where is not None and jnp.ndim(record.where) > 0
        where = jnp.any(record.where) if in_lanes else record.where
        clock = self.kept.clocks.get(keys[0])
        time: Any = None if clock is None else frame.state.get(clock)
        for together, due in self._due(frame, keys, where):
            leaves = leaves_of(record, together)
            leaves = [record.where, *leaves] if in_lanes else leaves
            label = label_of_part(record.mark, together, leaves)
            number, store = self.kept.stores.get(label, (None, None))
            if store is not None and number in frame.later:
                frame.state[number] = store.add(frame.state[number], leaves, due, time)
            elif isinstance(store, BatchStore) and number in frame.state and not frame.mesh:
                state = store.add(frame.state[number], leaves, due)
                frame.state[number], token = store.send_if_full(state, self.routes.stream(frame, label, store))
                self._go_on(frame, token)
            else:
                frame.waiting.append(
                    Waiting(self.routes.handle(frame, label), self.routes.form(label[0], in_lanes), leaves, due)
                )
        if clock is not None and clock in frame.later:
            frame.state[clock] = time + 1
        if frame.waiting and not frame.goes_on:
            self._send(frame)

    def _send(self, frame: Frame) -> None:
        self._go_on(frame, send_records(self.routes.line(frame), frame.waiting, frame.state.get(TOKEN), frame.asks))
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
            number = self.kept.counters.get(key)
            groups.setdefault(number if number in frame.state else None, []).append(key)
        decided = []
        for number, together in groups.items():
            if number is None:
                decided.append((tuple(together), where))
                continue
            seen = frame.state[number]
            due = seen == 0
            following = jnp.where(seen + 1 == self.interval, 0, seen + 1)
            frame.state[number] = sharding.vary_like(select(where, following, seen), seen)
            decided.append((tuple(together), due if where is None else due & where))
        return decided

    # --- chunks of loops ------------------------------------------------------------------------------------------

    def pace(self, eqn: Any, later: frozenset[int]) -> Pace:
        return self.kept.pace(eqn, later)

    def before_chunks(self, frame: Frame, pace: Pace) -> None:
        """What is left in buffers comes first: the records of a mark are in order."""
        for label, number, store in self.kept.buffers():
            if number in pace.stores:
                stream = self.routes.stream(frame, label, store, maybe_empty=True)
                self._go_on(frame, store.send(frame.state[number], stream, is_full=False))
                frame.state[number] = store.emptied(frame.state[number])

    def after_chunk(self, frame: Frame, pace: Pace, iterations: int, before: dict[int, Any]) -> None:
        full = pace.full if iterations == pace.size else frozenset[int]()
        for call in pace.calls:
            self._send_kept(frame, call.stores, call.around, full)
        stores = dict(self.kept.stores.values())
        frame.state.update({n: stores[n].emptied(frame.state[n], before[n]) for n in pace.stores})
        frame.state.update({number: before[number] for number in pace.clocks})

    def _send_kept(self, frame: Frame, numbers: tuple[int, ...], around: tuple[Any, ...], full: frozenset[int]) -> None:
        """Send what stores have from where it was recorded: inside the shard_maps around the marks."""

        def send(frame: Frame) -> None:
            held: list[Waiting] = []
            for label, (number, store) in self.kept.stores.items():
                if number not in numbers:
                    continue
                if isinstance(store, BatchStore):
                    stream = self.routes.stream(frame, label, store, maybe_empty=number not in full)
                    self._go_on(frame, store.send(frame.state[number], stream, is_full=number in full))
                else:
                    form = self.routes.form(label[0], store.in_lanes)
                    held.append(Waiting(self.routes.handle(frame, label), form, frame.state[number], None))
            if held:
                self._go_on(frame, send_held(self.routes.line(frame), held, frame.state.get(TOKEN)))

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

    def flush(self, frame: Frame) -> None:
        """The program ends."""
        for label, number, store in self.kept.buffers():
            self._go_on(frame, store.flush(frame.state[number], self.routes.stream(frame, label, store)))
        if self.sequence is not None:
            end = functools.partial(_end_here, self.sequence)
            self._on_devices(frame, self.around, frozenset([FIRST_TOKEN, TOKEN]), end)


def _begin_here(sequence: order.Sequence, frame: Frame) -> None:
    sizes = jax.sharding.get_abstract_mesh().shape
    place = place_in(tuple((axis, sizes[axis]) for axis in sharding.manual_axes_here()))
    token = executions.begin(sequence, frame.state[TOKEN], place)
    frame.state[TOKEN] = sharding.vary_like(token, frame.state[TOKEN])


def _end_here(sequence: order.Sequence, frame: Frame) -> None:
    executions.end(sequence, frame.state[FIRST_TOKEN], frame.state[TOKEN])
