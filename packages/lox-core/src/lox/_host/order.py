"""Program order without waiting: host calls are numbered on the device, and the host puts them in order.

A **token** goes through a tapped program from one host call to the next. It has two words: which execution of the program
this is, and how many calls were made before. Where the next call waits for the last one, the host returns the token, and its
words mean nothing. On a TPU the core would wait each time (``lox._storage.packing``). There, the token is sent with the
records, the device counts, and a call that arrives too early is held here until it is its turn.

An execution asks the host for its number when it begins, which it waits for, and says when it ends
(``lox._host.executions``). Executions for one receiver are handed on one after the other.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._types import Array

Hand = Callable[[], Any]
Token = tuple[int, ...]  # as the host reads it: the number of the execution, and the calls before

NUM_WORDS, WORD = 2, np.uint32


def first_token() -> Array:
    """The token of an execution without a number: its calls are handed on as they arrive."""
    return jnp.zeros(NUM_WORDS, WORD)


def following(token: Array) -> Array:
    """The token after a call."""
    return token + np.asarray([0, 1], WORD)


class _Execution:
    """The calls of one execution, by number."""

    def __init__(self) -> None:
        self.ended = False
        self.awaited = True  # by those that began later
        self._next = 0
        self._held: list[tuple[int, int, Hand]] = []
        self._ties = itertools.count()

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def hold(self, number: int, hand_on: Hand) -> None:
        # Numbers have 32 bits. It is the one nearest to the next.
        number = self._next + (number - self._next + 2**31) % 2**32 - 2**31
        heapq.heappush(self._held, (number, next(self._ties), hand_on))

    def end(self) -> None:
        self.ended = True

    def due(self) -> Hand | None:
        """The call whose turn it is. Under vmap, both branches of a conditional begin with the same number."""
        if not self._held or self._held[0][0] > self._next:
            return None
        number, _, hand_on = heapq.heappop(self._held)
        self._next = max(self._next, number + 1)
        return hand_on


class Sequence:
    """Hands on the calls of executions for one receiver.

    On one device, an execution has sent all its calls when the next one begins, so those of the next wait for them. One that
    goes on for longer than ``patience`` seconds after that is on another device, and nobody waits for it.
    """

    def __init__(self, patience: float = 1.0) -> None:
        self._patience = patience
        self._executions: dict[int, _Execution] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def begin(self) -> np.ndarray:
        """The first token of a new execution."""
        number = next(_numbers) % 2**32
        with self._lock:
            self._executions[number] = _Execution()
        return np.asarray([number, 0], WORD)

    def arrive(self, token: Token, hand_on: Hand) -> None:
        number, place = token
        with self._lock:
            execution = self._executions.get(number)
            if execution is None:
                hand_on()
            else:
                execution.hold(place, hand_on)
                self._advance()

    def end(self, token: Token) -> None:
        """The last call of an execution."""
        execution = self._executions.get(token[0])
        if execution is not None:
            self.arrive(token, execution.end)

    @property
    def is_idle(self) -> bool:
        return not self._executions

    def _advance(self) -> None:
        errors = []
        for number, execution in list(self._executions.items()):
            while (hand_on := execution.due()) is not None:
                try:
                    hand_on()
                except BaseException as error:  # those that follow are not to be held for ever
                    errors.append(error)
            if execution.ended:
                del self._executions[number]
            elif execution.awaited:
                break
        self._watch()
        if errors:
            raise errors[0]

    def _watch(self) -> None:
        """Looks again later if calls are held because an earlier execution has not ended."""
        if self._timer is not None or not any(each.holds_any for each in list(self._executions.values())[1:]):
            return
        earlier = list(self._executions.values())[:-1]
        self._timer = threading.Timer(self._patience, self._give_up, [earlier])
        self._timer.daemon = True
        self._timer.start()

    def _give_up(self, executions: list[_Execution]) -> None:
        with self._lock:
            self._timer = None
            for execution in executions:
                execution.awaited = False
            self._advance()


_numbers = itertools.count(1)
_sequences: weakref.WeakValueDictionary[Any, Sequence] = weakref.WeakValueDictionary()


def sequence_for(receiver: Any) -> Sequence:
    """The sequence of a receiver. The programs that send to it keep it alive."""
    return _sequences.setdefault(receiver, Sequence())
