"""A background thread behind a bounded queue: tasks run one at a time, in the order they came.

`submit` waits while the queue is full and never drops. Tasks handle their own failures. The thread
starts with the first task and is a daemon: whoever owns a worker closes it before the interpreter
ends (see `_sink`). Where no thread can be started any more, at interpreter exit, tasks run at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from lox.loggers._errors import LoggerClosedError

Task = Callable[[], None]

# A queue holds this many bytes of values at most, whatever the number of its entries: a few
# deliveries of large arrays must not eat the memory that the training needs.
MAX_BYTES = 256 * 1024 * 1024


class Worker:
    def __init__(self, name: str, size: int, idle: Task, idle_after: float | None) -> None:
        self._name = name
        self._size = size
        self._idle = idle
        self._idle_after = idle_after
        self._lock = threading.RLock()
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._tasks: deque[tuple[Task, int]] = deque()
        self._waiting = 0  # tasks accepted and not finished
        self._bytes = 0  # what those hold
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def on_thread(self) -> bool:
        """Whether the caller already is the background thread."""
        return threading.current_thread() is self._thread

    def submit(self, task: Task, nbytes: int = 0) -> None:
        """Queues a task; waits while the queue is full."""
        if self.on_thread:
            task()  # waiting for room in a queue that only this thread empties would never end
            return
        with self._lock:
            while not self._stopping and self._full(nbytes):
                self._not_full.wait()
            if self._stopping:
                raise LoggerClosedError("the logger is closed: nothing more can be logged to it")
            if self._started():
                self._tasks.append((task, nbytes))
                self._waiting += 1
                self._bytes += nbytes
                self._not_empty.notify()
                return
        task()

    def run(self, task: Task) -> None:
        """Queues a task and returns when it, and so everything before it, has run."""
        if self.on_thread:
            task()
            return
        done = threading.Event()

        def marked() -> None:
            try:
                task()
            finally:
                done.set()

        self.submit(marked)
        done.wait()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def stop(self, last: Task | None = None) -> bool:
        """Takes no more tasks after `last`; the thread ends when the queue is empty. Does not wait.

        False if there is no thread, and so nobody to run `last`.
        """
        with self._lock:
            if last is not None and self._thread is not None and not self._stopping:
                self._tasks.append((last, 0))
                self._waiting += 1
            self._stopping = True
            self._not_empty.notify_all()
            self._not_full.notify_all()
            return self._thread is not None

    def join(self) -> None:
        """Waits for the thread to end."""
        if self._thread is not None and not self.on_thread:
            self._thread.join()

    def _full(self, nbytes: int) -> bool:
        # An entry larger than the whole budget passes when it is alone.
        return self._waiting >= self._size or (self._waiting > 0 and self._bytes + nbytes > MAX_BYTES)

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python 3.12+: no new threads at interpreter exit
                return False
            self._thread = thread
        return True

    def _loop(self) -> None:
        due: float | None = None  # when written rows are to be flushed unasked
        while True:
            tasks = self._take(due)
            if tasks is None:
                return
            for task, _ in tasks:
                task()
            with self._lock:
                self._waiting -= len(tasks)
                self._bytes -= sum(nbytes for _, nbytes in tasks)
                self._not_full.notify_all()
            now = time.monotonic()
            if tasks and due is None and self._idle_after is not None:
                due = now + self._idle_after
            if due is not None and now >= due:
                self._idle()
                due = None

    def _take(self, due: float | None) -> list[tuple[Task, int]] | None:
        """What waits; nothing when `due` has come; None when the worker is to end."""
        with self._lock:
            while not self._tasks and not self._stopping:
                left = None if due is None else due - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._not_empty.wait(left)
            if not self._tasks and self._stopping:
                return None
            # Half a queue at a time: enough that the two threads seldom wait for each other, and
            # there is room for the other half while this one is written.
            return [self._tasks.popleft() for _ in range(min(len(self._tasks), max(1, self._size // 2)))]
