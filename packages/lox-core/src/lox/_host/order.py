"""Program order without waiting: the host hands on calls by the counts in their tokens (``lox._host.tokens``).

An execution of a program says when it begins and when it ends (``lox._host.executions``). A call that arrives too early is held
until it is its turn. For each receiver, the executions on a device are handed on one after the other, in the order in which
they began.
"""

from __future__ import annotations

import atexit
import collections
import enum
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._host.tokens import Token

Hand = Callable[[], Any]


class Kind(enum.Enum):
    BEGIN = enum.auto()
    CALL = enum.auto()
    END = enum.auto()
    LEAVE = enum.auto()  # it ends, but does not know after how many calls


class Event(NamedTuple):
    """What an execution says: that it begins, a call, or that it ends."""

    kind: Kind
    token: Token
    hand_on: Hand = lambda: None


class _Execution:
    """The calls of one execution, each by its track and its number on that track."""

    def __init__(self, token: Token) -> None:
        self.number = token.execution
        self.awaited = True  # by those that began later
        self._done = [0] * len(token.counts)  # so many calls of each track were handed on
        self._held: dict[tuple[int, int], Event] = {}
        self._end: list[int] | None = None  # so many calls of each track there are
        self.has_left = False

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    @property
    def has_ended(self) -> bool:
        return self.has_left or self._end is not None

    @property
    def is_over(self) -> bool:
        return self._end is not None and all(map(int.__ge__, self._done, self._end))

    def leave(self) -> None:
        """Nobody waits for it any longer. Its calls are still handed on in order."""
        self.has_left, self.awaited = True, False

    def lacks(self, event: Event) -> bool:
        """Whether this can be the execution that says so. Without random numbers, several have the same."""
        if event.token.execution != self.number or len(event.token.counts) != len(self._done):
            return False
        if event.kind is not Kind.CALL:
            return self._end is None
        track = event.token.track
        if track >= len(self._done):
            return False
        number = self._counts(event.token)[track]
        in_time = self._end is None or number < self._end[track]
        return number >= self._done[track] and in_time and (track, number) not in self._held

    def take(self, event: Event) -> list[Event]:
        """Returns calls that were taken before, and turn out to be of a later execution."""
        counts = self._counts(event.token)
        if event.kind is Kind.CALL:
            self._held[event.token.track, counts[event.token.track]] = event
            return []
        if event.kind is Kind.LEAVE:
            self.leave()
            return []
        self._end = counts
        later = [place for place in self._held if place[1] >= counts[place[0]]]
        gone = [(track, n) for track, end in enumerate(counts) for n in range(end, self._done[track])]
        return [self._held.pop(place) for place in later] + [_already_handed_on(event.token, *place) for place in gone]

    def _counts(self, token: Token) -> list[int]:
        """How many calls came before. Words have 32 bits: it is the number nearest to what was handed on."""
        return [
            done + (count - done + 2**31) % 2**32 - 2**31 for count, done in zip(token.counts, self._done, strict=True)
        ]

    def due(self) -> Iterator[Hand]:
        """The calls whose turn it is. A call comes after all that its token counts."""
        track = 0
        while track < len(self._done):
            place = track, self._done[track]
            if place in self._held and all(map(int.__le__, self._counts(self._held[place].token), self._done)):
                self._done[track] += 1
                yield self._held.pop(place).hand_on
                track = 0
            else:
                track += 1

    def remaining(self) -> Iterator[Hand]:
        """All that is held, whether or not calls before it are missing."""
        for _, event in sorted(self._held.items(), key=lambda item: (self._counts(item[1].token), item[0])):
            yield event.hand_on
        self._held.clear()


def _already_handed_on(token: Token, track: int, number: int) -> Event:
    counts = tuple(number % 2**32 if i == track else 0 for i in range(len(token.counts)))
    return Event(Kind.CALL, token._replace(track=track, counts=counts))


# A device remembers the numbers of so many executions that are over.
_REMEMBERED = 1000


class _Device:
    """The executions on one device of a mesh, in the order in which they began."""

    def __init__(self) -> None:
        self.executions: list[_Execution] = []
        self.early: list[Event] = []  # of executions whose beginning has not arrived
        self._again: list[Event] = []
        self._over: collections.deque[int] = collections.deque(maxlen=_REMEMBERED)

    @property
    def is_idle(self) -> bool:
        return not self.early and all(each.has_left and not each.holds_any for each in self.executions)

    @property
    def keeps_back(self) -> bool:
        """Whether something waits for what may never come."""
        late = self.executions[1:] + [execution for execution in self.executions[:1] if execution.has_ended]
        return bool(self.early) or any(execution.holds_any or execution.has_left for execution in late)

    def receive(self, event: Event) -> None:
        events = [event]
        if event.kind is Kind.BEGIN:
            self.executions.append(_Execution(event.token))
            events, self.early = self.early, []
        while events:
            first = events.pop(0)
            # Among those with the same number, one that nobody waits for was probably aborted.
            by_turn = sorted(self.executions, key=lambda one: not one.awaited)
            execution = next((one for one in by_turn if one.lacks(first)), None)
            if execution is not None:
                events += execution.take(first)
            elif self._is_known(first.token.execution):
                self._again.append(first)
            else:
                self.early.append(first)

    def _is_known(self, number: int) -> bool:
        """Whether an execution has begun. A call that it no longer lacks was made twice: by a function that is linearized once
        and called again, or by branches that run side by side without a track for each."""
        return bool(number) and (number in self._over or any(one.number == number for one in self.executions))

    def _remove(self, execution: _Execution) -> None:
        self.executions.remove(execution)
        self._over.append(execution.number)

    def leave_all(self) -> None:
        for execution in self.executions:
            execution.leave()

    def due(self) -> Iterator[Hand]:
        for execution in list(self.executions):
            yield from execution.due()
            if execution.is_over:
                self._remove(execution)
            elif execution.awaited:
                break
        again, self._again = self._again, []
        yield from [event.hand_on for event in again]

    def give_up(self, executions: Iterable[_Execution], early: Iterable[Event]) -> Iterator[Hand]:
        """Nobody waits any longer for these executions, nor do these events wait for a beginning."""
        for execution in executions:
            execution.awaited = False
            if execution.has_ended and execution in self.executions:
                yield from execution.due()
                yield from execution.remaining()
                self._remove(execution)
        for event in early:
            if event in self.early:
                self.early.remove(event)
                yield event.hand_on

    def everything(self) -> Iterator[Hand]:
        yield from self.due()
        for execution in self.executions:
            yield from execution.remaining()
        yield from [event.hand_on for event in self.early]
        self.executions, self.early = [], []


class Sequence:
    """Hands on the calls of executions for one receiver.

    On one device, an execution has sent all its calls when the next one begins, so those of the next wait for them. One that
    goes on for longer than ``patience`` seconds after that is on another device, and nobody waits for it. Nor does anybody
    wait longer than that for calls of an execution that has ended.
    """

    def __init__(self, patience: float = 1.0) -> None:
        self._patience = patience
        self._devices: dict[int, _Device] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._arriving: list[Event] = []  # while a callback runs
        self._errors: list[BaseException] = []  # that nobody has heard of

    def receive(self, event: Event) -> None:
        self._arriving.append(event)
        with self._lock:
            self._arriving.remove(event)
            device = self._devices.setdefault(event.token.device, _Device())
            device.receive(event)
            errors = _hand_on(device.due())
            if errors:
                # JAX aborts the program. It will not say that it ends.
                device.leave_all()
            errors, self._errors = self._errors + errors, []
            self._watch()
        _raise_first(errors)

    def receive_call(self, words: np.ndarray, hand_on: Hand) -> None:
        """A call, with the words of its token."""
        self.receive(Event(Kind.CALL, Token.of(words), hand_on))

    def in_turn(self, num_words: int, run: Callable[..., Any]) -> Callable[..., tuple[()]]:
        """A host function that returns nothing, run when it is its turn. Its first array begins, in each lane, with the words of
        the call's token."""

        def arrive(*arrays: np.ndarray) -> tuple[()]:
            words = arrays[0].reshape(-1, arrays[0].shape[-1])[0, :num_words]
            self.receive_call(words, functools.partial(run, *arrays))
            return ()

        return arrive

    def flush(self) -> None:
        """Hand on all that is held: nothing more will come."""
        with self._lock:
            errors = [error for device in self._devices.values() for error in _hand_on(device.everything())]
            errors, self._errors = self._errors + errors, []
        _raise_first(errors)

    @property
    def is_idle(self) -> bool:
        return all(device.is_idle for device in self._devices.values())

    def _watch(self) -> None:
        """Looks again later if calls are kept back."""
        if self._timer is not None or not any(device.keeps_back for device in self._devices.values()):
            return
        now = {
            number: (
                [each for each in device.executions if each.has_ended or each is not device.executions[-1]],
                device.early[:],
            )
            for number, device in self._devices.items()
        }
        self._timer = threading.Timer(self._patience, self._give_up, [now])
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self, then: dict[int, tuple[list[_Execution], list[Event]]]) -> None:
        with self._lock:
            self._timer = None
            if not self._arriving:  # otherwise a callback took long, and what is waited for may be there already
                for number, (executions, early) in then.items():
                    device = self._devices[number]
                    self._errors += _hand_on(device.give_up(executions, early)) + _hand_on(device.due())
            self._watch()


def _hand_on(calls: Iterator[Hand]) -> list[BaseException]:
    errors = []
    for hand_on in calls:
        try:
            hand_on()
        except BaseException as error:  # those that follow are not to be held for ever
            errors.append(error)
    return errors


def _raise_first(errors: list[BaseException]) -> None:
    if errors:
        raise errors[0]


_sequences: weakref.WeakValueDictionary[Any, Sequence] = weakref.WeakValueDictionary()


def sequence_for(receiver: Any) -> Sequence:
    """The sequence of a receiver. It is a parameter of the programs that send to it, which keep it alive."""
    return _sequences.setdefault(receiver, Sequence())


@atexit.register
def _flush() -> None:
    sequences = list(_sequences.values())
    if sequences:
        try:
            jax.effects_barrier()
        finally:
            for sequence in sequences:
                sequence.flush()
