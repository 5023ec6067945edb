"""The host side of a logger: its open runs, their writers, and their failures.

A `Sink` lives as long as its logger, or until everything is written, whichever is longer. It does not refer to the logger.
Everything that touches a writer runs on the sink's worker thread. No exception of a backend ends that thread: even
`SystemExit` goes to `Failures`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

import lox
from lox._host.delivery import Delivery
from lox._logdict.table import as_table
from lox.loggers._delivery import copies
from lox.loggers._delivery.at_exit import open_sinks
from lox.loggers._delivery.entries import Nowhere, OpenRun
from lox.loggers._delivery.failures import Failures, lost_records, nothing_was_written, records_phrase
from lox.loggers._delivery.ids import RunIds
from lox.loggers._delivery.locks import RunLock
from lox.loggers._delivery.merge import Joined, joined
from lox.loggers._delivery.names import folded, numbered
from lox.loggers._delivery.resume import WrittenSteps
from lox.loggers._delivery.run import OpenRuns, Run, Writer
from lox.loggers._delivery.tables import count_records, lane_of, nbytes, records_of
from lox.loggers._delivery.worker import Worker
from lox.loggers._errors import LoggerClosedError, LoggerStateError, RunExistsError

T = TypeVar("T")


STATES_DO_NOT_LAST = (
    "A state works only with the logger whose init returned it. After a restart, do not restore it from a checkpoint: call "
    "init with the same key, and with if_exists='resume'"
)


# How many forks lead from the first process to this one. Asking for the number of the process would be a system call.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Sink:
    def __init__(
        self,
        owner: str,
        *,
        on_error: str,
        queue_size: int,
        flush_interval: float | None,
        keys_apart: bool,
        close_timeout: float | None,
    ) -> None:
        self.owner = owner
        self._keys_apart = keys_apart
        self.failures = Failures(owner, on_error)
        self.closed = False
        self._closing = threading.RLock()  # reentrant: a signal handler may call `close` while its thread is closing
        self._forks = _forks
        self.ids = RunIds()
        self._runs: dict[int, OpenRun | Nowhere] = {}
        self._ids: dict[str, int] = {}  # by the name of the run
        self._not_opened: dict[int, BaseException] = {}
        self._locks: dict[str, RunLock] = {}  # by the name of the run
        self._opened: dict[int, float] = {}  # when each run was opened
        self._numbers: dict[str, int] = {}  # for each name, the number from which to look for a free one
        self._cut_short: set[str] = set()
        self.close_timeout = close_timeout
        self._at_hand: list[Joined] = []  # what is being written, in reverse order
        self._in_batch: dict[int, OpenRun] = {}  # the runs with a BatchWriter that the current batch was written to
        self._doing = ""  # the latest task of the backend, for error messages
        self._worker = Worker(f"lox:{owner}", queue_size, self._write_all, self._flush_all, flush_interval)
        open_sinks.add(self)

    @property
    def foreign(self) -> bool:
        """True in a forked child, whose copies of the queue, the locks and the files belong to the parent."""
        return self._forks != _forks

    @property
    def runs(self) -> tuple[Run, ...]:
        return OpenRuns(entry.run for entry in self._open())

    def find(self, name: str) -> int | None:
        """The id of the open run of that name."""
        run_id = self._ids.get(folded(name))
        entry = None if run_id is None else self._runs[run_id]
        return run_id if isinstance(entry, OpenRun) and entry.run.name == name else None

    def has(self, name: str) -> bool:
        """Whether this sink has opened a run of that name, or of a name that some file system treats as the same."""
        return folded(name) in self._ids

    def unused(self, name: str) -> Iterator[str]:
        """The name and its numbered variants, as far as they may be free. Numbers that are known to be taken are skipped."""
        for number, candidate in enumerate(numbered(name, self._numbers.get(name, 1)), self._numbers.get(name, 1)):
            self._numbers[name] = number
            if not self.has(candidate):
                yield candidate

    def seconds_open(self, run_ids: np.ndarray) -> np.ndarray:
        """For how long each of these runs has been open."""
        now = time.monotonic()
        seconds = [now - self._opened.get(run_id, now) for run_id in run_ids.reshape(-1).tolist()]
        return np.asarray(seconds).reshape(run_ids.shape)

    def ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Calls `question` on the worker thread and returns its answer, or `otherwise` if it fails."""
        answers: list[T] = [otherwise]

        def task() -> None:
            with contextlib.suppress(Exception):
                answers.append(question())

        if not self.foreign:
            with contextlib.suppress(LoggerClosedError):
                self._worker.run(task, self.close_timeout)
        return answers[-1]

    def add(self, run_id: int, open_run: Callable[[], tuple[Run, Writer, WrittenSteps | None]] | None) -> None:
        """Opens a run on the worker thread and waits for it. With None, the records of the run are not written."""
        self._runs[run_id] = Nowhere.OTHER_PROCESS
        if open_run is None or self.foreign:
            return
        self._runs[run_id] = Nowhere.FAILED

        def task() -> None:
            try:
                opened = self._runs[run_id] = OpenRun(*open_run())
                self._ids[folded(opened.run.name)] = run_id
                self._opened[run_id] = time.monotonic()
            except BaseException as error:
                self._not_opened[run_id] = error
                self._failed(error, "opening a run")

        self._worker.run(self.failures.awaited(task))

    def raise_if_not_opened(self, run_ids: Iterable[int]) -> None:
        """Raises what opening one of these runs raised, even if another thread's call has already raised it."""
        for run_id in run_ids:
            if run_id in self._not_opened:
                raise self._not_opened[run_id]

    def hold(self, name: str, lock: RunLock) -> None:
        """Keeps the lock of a run until the run is closed."""
        self._locks[name] = lock

    def deliver(self, delivery: Delivery) -> None:
        """Queues what one host call brought: for each lane, a run id and its logs."""
        if self.foreign:
            return
        # Values that are still on the device come from Python, not from a running program.
        from_program = not isinstance(delivery, copies.UnderWay)
        self._worker.submit(delivery, nbytes(delivery.logs), from_program)

    def deliver_results(self, results: copies.Results) -> None:
        """Queues what a program has returned. The caller waits for this, so it does nothing else."""
        if not self.foreign:
            self._worker.submit(results, results.returned.form.nbytes)

    def flush(self) -> None:
        """Returns when everything queued so far has been written and flushed."""
        if not (self.foreign or self.closed):
            with contextlib.suppress(LoggerClosedError):  # another thread is closing it, which flushes too
                self._worker.run(self.failures.awaited(self._flush_all))

    def close(self) -> None:
        """Writes everything, closes all writers and ends the thread. A second call does nothing."""
        if self.foreign:
            return
        # On the worker thread, do not wait for another thread that closes this sink: it waits for this one.
        if not self._closing.acquire(blocking=not self._worker.on_thread):
            return
        try:
            self._close()
        finally:
            self._closing.release()

    def _close(self) -> None:
        if self.closed:
            return
        done = True
        if not self._worker.stopping:  # not abandoned before
            done = self._worker.run(self.failures.awaited(self._close_all), self.close_timeout)
        self.closed = True
        self._worker.stop()
        open_sinks.discard(self)
        if not done or not self._worker.join(self.close_timeout):
            raise TimeoutError(self._stuck())

    def limit_patience(self) -> None:
        """Called before closing: a program that waits for room in the queue of a stuck backend now gives up after the timeout."""
        self._worker.limit_patience(self.close_timeout)

    def _stuck(self) -> str:
        waiting = [*(block.delivery for block in list(self._at_hand)), *map(copies.opened, self._worker.unhandled())]
        left = records_phrase(sum(map(records_of, waiting)))
        doing = self._doing or "busy"
        return (
            f"{self.owner} made no progress for {self.close_timeout:g} seconds while {doing}; {left} not written. "
            "Pass a larger close_timeout= to the logger to wait longer"
        )

    def abandon(self) -> None:
        """Called when the logger is deleted without being closed: the thread writes what is queued. This may run during garbage
        collection, so it does not wait. Interpreter exit does."""
        if self.foreign or self.closed:
            return
        for lock in list(self._locks.values()):
            lock.end()
        if self._worker.stop(last=self._close_all):
            return
        self._close_all()  # there is no thread: no run was ever opened, or the interpreter is exiting

    def _write_all(self, items: list[Delivery | copies.Results]) -> None:
        under_way = list(map(copies.opened, items))
        for each in under_way:
            copies.begin(each)
        deliveries = [delivery for each in under_way if (delivery := self._read(each)) is not None]
        for delivery in deliveries:
            self._tell_dropped(delivery.logs)
        try:
            blocks = list(joined(deliveries, keys_apart=self._keys_apart))
        except BaseException as error:  # write them one by one instead
            self.failures.keep(error, "joining records")
            blocks = [Joined(delivery, [delivery]) for delivery in deliveries]
        # A handler of Python's logging that hears of a failure may itself log here. Its records go on top of what is left.
        self._at_hand += blocks[::-1]
        for block in blocks:
            self._worker.made_progress()
            try:
                self._write_lanes(block)
            except BaseException as error:  # nothing may end the thread, because others wait for it
                self._failed(error, "writing", block.delivery.logs)
            self._at_hand.pop()
        self._end_batch()

    def _end_batch(self) -> None:
        written, self._in_batch = self._in_batch, {}
        for entry in written.values():
            self._worker.made_progress()
            try:
                if entry.batch_writer is not None:
                    entry.batch_writer.end_batch()
            except BaseException as error:
                self._failed(error, f"writing to run {entry.run.name!r}")

    def _read(self, delivery: Delivery) -> Delivery | None:
        """The delivery on the host; None if the program that computes it has failed."""
        if not isinstance(delivery, copies.UnderWay):
            return delivery
        try:
            with self._worker.waiting_for_a_program():
                return copies.finish(delivery, self._worker.made_progress)
        except BaseException as error:
            self._failed(error, "reading records from the device", delivery.logs)
            return None

    def _tell_dropped(self, logs: lox.logdict) -> None:
        """Warns once for each key that had more records than `capacity=` kept."""
        for key, capacity in logs._bounds.items():
            if capacity is None or key in self._cut_short:
                continue
            most = int(np.max(logs.counts[key], initial=0))
            if most > capacity:
                self._cut_short.add(key)
                self.failures.tell(
                    f"{self.owner}: {key!r} had {most} records, but capacity={capacity} kept only the last {capacity}"
                )

    def _write_lanes(self, block: Joined) -> None:
        delivery = block.delivery
        ids = np.asarray(delivery.operands)
        if not delivery.lanes:
            if delivery.alive:
                self._write(int(ids), delivery.logs, [member.logs for member in block.members])
            return
        alive = np.argwhere(delivery.alive).tolist()
        for run_id, lane in zip(ids[delivery.alive].tolist(), map(tuple, alive), strict=True):
            if not self._write_lane(run_id, delivery.logs, lane):
                parts = (lane_of(member.logs, lane) for member in block.members)
                self._write(run_id, lane_of(delivery.logs, lane), parts)

    def _write_lane(self, run_id: int, logs: lox.logdict, lane: tuple[int, ...]) -> bool:
        """Offers the logs of all lanes to a `LaneWriter`. Returns False if the lane still has to be written as a table."""
        entry = self._runs.get(run_id)
        if not isinstance(entry, OpenRun) or entry.lane_writer is None:
            return False
        entry.dirty = True
        self._doing = f"writing to run {entry.run.name!r}"
        self._worker.made_progress()
        try:
            return entry.lane_writer.write_lane(logs, lane)
        except BaseException as error:
            if nothing_was_written(error):
                return False  # writing it as a table finds the record that is at fault
            self._failed(error, f"writing to run {entry.run.name!r}", lane_of(logs, lane))
            return True

    def _write(self, run_id: int, logs: lox.logdict, parts: Iterable[lox.logdict] = ()) -> None:
        """Writes records to a run.

        Args:
          parts: the same records, delivery by delivery.
        """
        if run_id not in self._runs:
            error = LoggerStateError(f"run {run_id} does not belong to this logger. {STATES_DO_NOT_LAST}")
            self.failures.keep(error, "writing")
            return
        entry = self._runs[run_id]
        if not isinstance(entry, OpenRun):
            self._write_nowhere(entry, logs)
            return
        try:
            table = as_table(logs)
            if entry.written is not None:
                table = entry.written.unwritten(table)
            if table:
                entry.dirty = True
                self._doing = f"writing to run {entry.run.name!r}"
                if entry.batch_writer is not None:
                    self._in_batch[run_id] = entry
                entry.writer.write(table)
        except BaseException as error:
            if nothing_was_written(error) and len(alone := list(parts)) > 1:
                # One of the records cannot be stored, but the others must not be lost with it.
                for part in alone:
                    self._write(run_id, part)
                return
            self._failed(error, f"writing to run {entry.run.name!r}", logs)

    def _write_nowhere(self, why: Nowhere, logs: lox.logdict) -> None:
        if why is Nowhere.FAILED:  # reported when it happened
            self.failures.lost += count_records(logs)
        elif why is not Nowhere.OTHER_PROCESS:
            self._failed(LoggerClosedError(why.value), "writing", logs)

    def _flush_all(self) -> bool:
        """Flushes all runs. Returns False if some rows still have to be flushed."""
        for entry in self._open():
            if entry.dirty:
                self._doing = f"flushing run {entry.run.name!r}"
                self._worker.made_progress()
                try:
                    entry.writer.flush()
                    # It stays dirty after a failure: the writer may have kept its rows, so it is flushed again.
                    entry.dirty = False
                except BaseException as error:
                    self._failed(error, f"flushing run {entry.run.name!r}")
        return not any(entry.dirty for entry in self._open())

    def _close_all(self) -> None:
        for entry in self._open():
            self._close_run(entry)
        self._runs = dict.fromkeys(self._runs, Nowhere.CLOSED)
        if self._worker.stopping:  # abandoned: nobody else does this
            open_sinks.discard(self)

    def _close_run(self, entry: OpenRun) -> None:
        self._doing = f"closing run {entry.run.name!r}"
        self._worker.made_progress()
        try:
            entry.writer.close()
        except BaseException as error:
            self._failed(error, f"closing run {entry.run.name!r}")
        if (lock := self._locks.pop(entry.run.name, None)) is not None:
            lock.release()

    def _open(self) -> list[OpenRun]:
        return [entry for entry in list(self._runs.values()) if isinstance(entry, OpenRun)]

    def _failed(self, error: BaseException, where: str, logs: lox.logdict | None = None) -> None:
        if isinstance(error, RunExistsError):
            self.failures.keep(error, where)  # the user asked for this error with if_exists="error"
            return
        # A writer that keeps rows knows how many were really lost.
        lost = lost_records(error)
        if lost is None:
            lost = 0 if logs is None else count_records(logs)
        self.failures.add(error, where, lost)
