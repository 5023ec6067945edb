"""A background thread behind a bounded queue. Items are handled in the order in which they were submitted.

`submit` waits while the queue is full and never drops anything. Handlers and tasks catch their own failures. The thread
starts with the first entry and is a daemon, so the owner of a worker closes it before the interpreter exits (see `at_exit`).
At interpreter exit, when no new thread can start, everything is handled at once.

The thread takes everything that waits, and then rests for a multiple of the time it has worked. So a single delivery is
handled at once, and many in a row are handled together. This leaves the processor to the program that logs. A caller that
waits for the thread ends its rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from lox.loggers._errors import LoggerClosedError

T = TypeVar("T")
Task = Callable[[], Any]

# The most bytes in a queue, whatever the number of entries: a few deliveries of large arrays must not use up the memory
# that training needs.
MAX_BYTES = 256 * 1024 * 1024

# The thread uses about 0.3 % of a core and delays no item by more than half a second.
_REST = 300
_MAX_REST = 0.5  # seconds
_MAX_WAIT = 30.0  # seconds between two attempts after a failure, at most


class _Entry(NamedTuple):
    item: Any
    nbytes: int = 0
    task: Task | None = None
    """A task that a caller waits for; the entry then has no item."""
    from_program: bool = False
    """Whether a running program waits until the item is queued."""


class Worker:
    def __init__(
        self,
        name: str,
        size: int,
        handle: Callable[[list[Any]], None],
        idle: Callable[[], bool],
        idle_after: float | None,
    ) -> None:
        """
        Args:
          size: how many items may wait.
          handle: takes a list of consecutive items.
          idle: runs `idle_after` seconds after items were handled; never if None. If it returns False, it runs again after twice
            the time.
        """
        self._name = name
        self._size = size
        self._handle = handle
        self._idle = idle
        self._idle_after = idle_after
        self._max_rest = _MAX_REST if idle_after is None else min(_MAX_REST, idle_after)
        self._lock = threading.RLock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._finished = threading.Condition(self._lock)
        self._entries: deque[_Entry] = deque()
        self._waiting = 0  # entries accepted and not handled
        self._bytes = 0  # the size of those entries
        self._resting = False
        self._urgent = 0  # tasks in the queue, and threads that wait for room in it
        self._stopping = False
        self._patience: float | None = None  # for how many seconds without progress a caller waits for room
        self._progress = 0
        self._waits_for_program = False
        self._working_on: list[_Entry] = []
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # of that thread

    @property
    def on_thread(self) -> bool:
        """Whether the caller is the background thread itself."""
        return threading.get_ident() == self._ident

    def submit(self, item: Any, nbytes: int = 0, from_program: bool = False) -> None:
        """Queues an item. Waits while the queue is full, except in cases where that would be a deadlock."""
        entry = _Entry(item, nbytes, None, from_program)
        if self._ident != threading.get_ident():
            with self._lock:
                # The usual case in one step: a training loop waits for this.
                is_room = self._waiting < self._size and self._bytes + nbytes <= MAX_BYTES
                if is_room and self._thread is not None and not self._stopping:
                    self._entries.append(entry)
                    self._waiting += 1
                    self._bytes += nbytes
                    if not self._resting or not self._may_rest():
                        self._not_empty.notify()
                    return
        # Only this thread empties the queue, so waiting for room would never end.
        if self.on_thread or not self._queue(entry):
            self._handle([item])

    def run(self, task: Task, patience: float | None = None) -> bool:
        """Queues a task and returns when it, and everything before it, has run.

        Args:
          patience: give up, and return False, after this many seconds without progress.
        """
        done = False

        def marked() -> None:
            nonlocal done
            try:
                task()
            finally:
                with self._lock:
                    done = True
                    self._finished.notify_all()

        if self.on_thread or not self._queue(_Entry(None, task=marked)):
            task()
            return True
        # A condition, not an event: it releases the lock even if a signal handler waits here while its own thread was about to
        # queue something.
        with self._lock:
            waiting = _Patience(self, patience)
            while not done and waiting.goes_on:
                self._finished.wait(waiting.seconds())
            return done

    @contextlib.contextmanager
    def waiting_for_a_program(self) -> Iterator[None]:
        """While the thread waits for a program, that program's items always find room: otherwise both would wait forever."""
        with self._lock:
            self._waits_for_program = True
            self._not_full.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._waits_for_program = False

    def made_progress(self) -> None:
        """Restarts the timeout of every caller that waits."""
        self._progress += 1

    def limit_patience(self, seconds: float | None) -> None:
        """From now on, waiting for room in the queue ends after this many seconds without progress."""
        with self._lock:
            self._patience = seconds
            self._not_full.notify_all()

    def unhandled(self) -> list[Any]:
        """The items whose handling has not begun."""
        with self._lock:
            return [entry.item for entry in (*self._working_on, *self._entries) if entry.task is None]

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self, last: Task | None = None) -> bool:
        """Accepts nothing after `last`. The thread ends when the queue is empty. Does not wait.

        Returns False if there is no thread that could run `last`.
        """
        with self._lock:
            if last is not None and self._thread is not None and not self._stopping:
                self._append(_Entry(None, task=last))
            self._stopping = True
            self._not_empty.notify_all()
            self._not_full.notify_all()
            return self._thread is not None

    def join(self, patience: float | None = None) -> bool:
        """Waits for the thread to end. Returns False if it has not ended after `patience` seconds without progress."""
        if self._thread is None or self.on_thread:
            return True
        waiting = _Patience(self, patience)
        while self._thread.is_alive() and waiting.goes_on:
            self._thread.join(waiting.seconds())
        return not self._thread.is_alive()

    def _queue(self, entry: _Entry) -> bool:
        """Queues an entry. Returns False if no thread can be started."""
        with self._lock:
            if entry.task is None:  # a task needs no room, because its caller waits for it anyway
                self._wait_for_room(entry)
            if self._stopping:
                raise LoggerClosedError("the logger is closed, so nothing more can be logged to it")
            if not self._started():
                return False
            self._append(entry)
            if not self._resting or not self._may_rest():
                self._not_empty.notify()
            return True

    def _append(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._waiting += 1
        self._bytes += entry.nbytes
        self._urgent += entry.task is not None

    def _full(self, entry: _Entry) -> bool:
        if entry.from_program and self._waits_for_program:
            return False
        # An entry that is larger than the limit is accepted when the queue is empty.
        return self._waiting >= self._size or (self._waiting > 0 and self._bytes + entry.nbytes > MAX_BYTES)

    def _wait_for_room(self, entry: _Entry) -> None:
        waiting: _Patience | None = None
        while not self._stopping and self._full(entry):
            if waiting is None or waiting.limit != self._patience:
                waiting = _Patience(self, self._patience)
            if not waiting.goes_on:
                raise LoggerClosedError("the logger is being closed, and its backend takes no more records")
            self._urgent += 1
            try:
                self._not_empty.notify()
                self._not_full.wait(waiting.seconds())
            finally:
                self._urgent -= 1

    def _may_rest(self) -> bool:
        half_full = 2 * len(self._entries) >= self._size or 2 * self._bytes >= MAX_BYTES
        return not (self._urgent or half_full or self._stopping)

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12+: no new threads at interpreter exit
                return False
            self._thread, self._ident = thread, thread.ident
        return True

    def _loop(self) -> None:
        due: float | None = None  # when to flush what was written
        wait = 0.0
        rested = time.monotonic()
        while True:
            entries = self._take(due, rested)
            if entries is None:
                return
            worked = self._work(entries)
            now = time.monotonic()
            if entries and due is None and self._idle_after is not None:
                due, wait = now + self._idle_after, self._idle_after
            if due is not None and now >= due:
                spent, done = _processor_time(self._idle)
                worked += spent
                wait = min(2 * wait, _MAX_WAIT)
                due = None if done else time.monotonic() + wait
            rested = time.monotonic() + min(self._max_rest, _REST * worked)

    def _take(self, due: float | None, rested: float) -> list[_Entry] | None:
        """The entries that wait; an empty list if `due` has come; None if the worker should end."""
        with self._lock:
            self._rest(rested if due is None else min(due, rested))
            while not self._entries and not self._stopping:
                left = None if due is None else due - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._not_empty.wait(left)
            if not self._entries and self._stopping:
                return None
            # Half a queue at a time, so that there is room for new entries while these are written, and the two threads seldom
            # wait for each other.
            taken = [self._entries.popleft() for _ in range(min(len(self._entries), max(1, self._size // 2)))]
            self._urgent -= sum(entry.task is not None for entry in taken)
            self._working_on = list(taken)
            return taken

    def _rest(self, until: float) -> None:
        self._resting = True
        while self._may_rest() and (left := until - time.monotonic()) > 0:
            self._not_empty.wait(left)
        self._resting = False

    def _work(self, entries: list[_Entry]) -> float:
        """Returns the processor time that the items took. Tasks do not count, because a caller waits for them."""
        worked = 0.0
        for has_task, members in itertools.groupby(entries, lambda entry: entry.task is not None):
            group = list(members)
            self._working_on = self._working_on[len(group) :]
            if has_task:
                for entry in group:
                    _guarded(entry.task)  # type: ignore[arg-type]
                    self.made_progress()
            else:
                worked += _processor_time(functools.partial(self._handle, [entry.item for entry in group]))[0]
        self.made_progress()
        with self._lock:
            self._waiting -= len(entries)
            self._bytes -= sum(entry.nbytes for entry in entries)
            self._not_full.notify_all()
        return worked


class _Patience:
    """How long a caller waits for a worker: forever, or as long as the worker makes progress."""

    def __init__(self, worker: Worker, limit: float | None) -> None:
        self._worker = worker
        self.limit = limit
        self._seen = worker._progress
        self._until = time.monotonic() + (limit or 0.0)

    @property
    def goes_on(self) -> bool:
        if self.limit is None:
            return True
        if self._seen != self._worker._progress:
            self._seen, self._until = self._worker._progress, time.monotonic() + self.limit
        return time.monotonic() < self._until

    def seconds(self) -> float | None:
        """How many seconds to wait before checking again; None if there is no limit."""
        return None if self.limit is None else max(0.0, self._until - time.monotonic())


def _processor_time(task: Callable[[], T]) -> tuple[float, T | None]:
    began = time.thread_time()
    result = _guarded(task)
    return time.thread_time() - began, result


def _guarded(task: Callable[[], T]) -> T | None:
    """Tasks catch their own failures. If one does not, the failure is printed and the thread goes on: others wait for it."""
    try:
        return task()
    except BaseException:
        traceback.print_exc()
        return None
