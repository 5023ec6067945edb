"""`Logger`: what every backend inherits. Everything about logging that needs JAX is here.

A backend opens runs and writes records in plain Python (`open`, and the `Writer` it returns). It can rely on this: one
background thread makes all calls, one at a time; the records of a run come in order, by column, as numpy; `flush` and `close`
are called when due.

The user can rely on this: a state is a pytree of arrays, and works in `jit`, `scan`, `cond`, `vmap` and `grad`. All lanes of
a `vmap` are one host call, and the records of lane i go to run i. Nothing is dropped: when the queue is full, the program
waits. What a backend raises is raised again, unchanged, by the next call from Python: a spooled or tapped function, `init`,
`log`, `flush` or `close`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Self, TypeVar

import jax
import numpy as np

import lox
from lox._host.delivery import Delivery, Receiver, call, send
from lox._interpret.returned import Returned, ReturnedForm
from lox._jax import compat, jitted
from lox._spool import spool_returned
from lox.loggers._delivery import at_exit, copies, pending, reserved, tables
from lox.loggers._delivery.config import ConfigTemplate
from lox.loggers._delivery.locks import RunLock
from lox.loggers._delivery.names import folded
from lox.loggers._delivery.naming import Naming
from lox.loggers._delivery.opening import Siblings, first_name, is_free, open_run, tell_others
from lox.loggers._delivery.options import check_options, check_seconds
from lox.loggers._delivery.resume import Steps
from lox.loggers._delivery.run import (
    IfExists,
    LoggerState,
    NameFormat,
    OnError,
    Processes,
    Run,
    Writer,
    check_state,
    default_name,
    words_of_key,
)
from lox.loggers._delivery.sink import Sink
from lox.loggers._errors import LoggerClosedError, LoggerOptionError, LoggerStateError

P = ParamSpec("P")
R = TypeVar("R")


class Logger(abc.ABC):
    """The base of every backend.

    Args:
      if_exists: what `init` does if the run already exists. `"new"` keeps it and gives the new run a numbered name; `"error"`
        raises; `"replace"` deletes it; `"resume"` continues it, and skips records whose step the run already has.
      on_error: `"raise"` raises the backend's exception at the next call; `"warn"` warns once and continues, and `close`
        reports how many records were lost.
      processes: with several JAX processes, `"first"` lets only process 0 write; with `"all"` each process writes its own
        runs, with its index in their names.
      queue_size: how many deliveries may wait to be written before the program has to wait.
      close_timeout: for how many seconds `close`, and the end of the program, wait for a backend that makes no progress. The
        error names the backend and the number of records left. None waits forever.
      name: the names of runs: a format string over the config of the run, `lane`, `key` and `process`, such as
        `"lr={rate:.2g}/seed={lane}"`, or a function of the `Run`. Slashes are folders if the backend has folders. Without it,
        runs are named after their keys.
      time: True adds the step axis `time` to each record: the seconds from the opening of its run until it reached the host.

    A backend of your own is a class with `open`:

    >>> class Printer(lox.loggers.Logger):
    ...     def open(self, run):
    ...         return PrinterWriter()
    >>> class PrinterWriter:
    ...     def write(self, logs):
    ...         print(logs)
    ...     def flush(self): pass
    ...     def close(self): pass
    >>> with Printer() as logger:
    ...     state = logger.init(jax.random.key(0))
    ...     y = logger.spool(lambda x: lox.log({"x": x}), state)(jnp.arange(3.0))
    {'x': [[0., 1., 2.]]}
    """

    flush_interval: float | None = 1.0
    """Rows are flushed at most this many seconds after they were written; None to flush only when the user asks."""

    keys_apart: bool = False
    """Set it to True if order matters only within a key. `write` then gets more records at once."""

    def __init__(
        self,
        *,
        if_exists: IfExists = "new",
        on_error: OnError = "raise",
        processes: Processes = "first",
        queue_size: int = 1024,
        close_timeout: float | None = 60.0,
        name: NameFormat | None = None,
        time: bool = False,
    ) -> None:
        owner = type(self).__name__
        check_options(owner, if_exists, on_error, processes, queue_size, close_timeout, time)
        self.__naming = Naming(owner, name, processes)
        self.__time = time
        self.if_exists = if_exists
        self.on_error = on_error
        self.processes = processes
        self.__sink = Sink(
            owner,
            on_error=on_error,
            queue_size=queue_size,
            flush_interval=self.flush_interval,
            keys_apart=self.keys_apart,
            close_timeout=close_timeout,
        )
        weakref.finalize(self, self.__sink.abandon).atexit = False  # at exit, see at_exit.py

    def __getattr__(self, name: str) -> Any:
        if name == "_Logger__sink":  # only __init__ sets it
            raise LoggerOptionError(f"{type(self).__name__}.__init__ must call super().__init__(**options)")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # A backend may use almost any attribute name: ours are mangled, and the few that our subclasses share are refused.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith("lox."):
            reserved.check_class(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        reserved.check_attribute(self, name, value)
        super().__setattr__(name, value)

    # What a backend writes. `open` is required.

    @abc.abstractmethod
    def open(self, run: Run) -> Writer:
        """Starts `run`, or continues it if `run.resume`."""

    def exists(self, name: str) -> bool:
        """Whether an earlier logger has left a run of that name."""
        return False

    def remove(self, name: str) -> None:
        """Deletes the run of that name, for `if_exists="replace"`."""
        if type(self).exists is not Logger.exists:
            raise LoggerOptionError(
                f"{type(self).__name__} cannot replace a run, because it does not define remove(name)"
            )

    def existing(self) -> Iterable[str]:
        """The names of all existing runs. With `if_exists="replace"`, `close` lists those that were not replaced."""
        return ()

    def lock(self, name: str) -> RunLock | None:
        """Takes the lock of a run, before anything else is done with the run. It is released after the run is closed. Return None
        if the backend needs no lock."""
        return None

    def limit_close(self, timeout: float) -> None:
        """Sets for how many seconds `close` waits for this backend without progress; `close(timeout=)` calls it. A backend with a
        limit of its own, such as for an upload, overrides it and passes a larger one to `super()`."""
        self.__sink.close_timeout = timeout

    def written(self, name: str) -> Steps:
        """For `if_exists="resume"`: the steps that the run has, for each key and axis, as `{"loss": {"step": array}}`.
        Records with these steps are not written again."""
        return {}

    # What a user calls.

    def init(self, key: jax.Array, config: Mapping[str, Any] | None = None) -> LoggerState:
        """Opens a run. Its name comes from the logger's option `name=`, or else from the key.

        `jax.vmap(logger.init)(keys)` opens a run for each key. Lanes that would have the same name are numbered.

        Args:
          key: a PRNG key.
          config: the settings of the run, such as its hyperparameters: numbers, text, None, arrays, and lists, dataclasses and
            mappings of these. Arrays may be traced: in `jax.vmap(logger.init)(keys, {"lr": rates})` each run gets its own rate.
            A dict with text cannot pass through `jax.vmap` or `jax.jit`; use `lox.loggers.Config(lr=rates, env="CartPole")`.
        """
        self.__ready()
        words, impl = words_of_key(key)
        template = ConfigTemplate(type(self).__name__, config)
        self.__naming.check(self._all_formats(), template, words)
        # Looked up here, because the host call must not call JAX.
        host = functools.partial(self._open_lanes, impl, jax.process_index(), template)
        opened = call(host, (words, template.arrays), jax.ShapeDtypeStruct((), np.int32))
        pending.raise_failures(self._sinks())
        if self.on_error == "raise" and not compat.tracing_now():
            self.__sink.raise_if_not_opened(np.ravel(opened).tolist())
        return LoggerState(run=opened)

    def spool(self, fun: Callable[P, R], state: LoggerState, **options: Any) -> Callable[P, R]:
        """The function `fun`, with its records delivered once, when it returns. `options` are those of `lox.spool`."""
        check_state(state)
        spooled, handed_on = lox.spool(fun, **options), spool_returned(fun, **options)
        is_compiled = jitted.jit_options(fun) is not None
        destinations = functools.cache(
            lambda: self._destinations(np.asarray(state.run)) if self.__writes_alone() else None
        )
        sinks, listeners = self._sinks(), self._listeners()
        checked: ReturnedForm | None = None

        @functools.wraps(fun)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            nonlocal checked
            if listeners or pending.is_anything_wrong(sinks):
                self.__ready()
            if compat.tracing_now():
                out, logs = spooled(*args, **kwargs)
                self.__send(state, logs)
            elif (places := destinations()) is None:
                out, logs = spooled(*args, **kwargs)
                self.__send(state, tables.with_all_parts(logs))
            else:
                out, returned = handed_on(*args, **kwargs)
                if returned.form is not checked:
                    logs = returned.logs()
                    self.check_names(logs, logs.steps)
                    checked = returned.form
                if not is_compiled:
                    returned = copies.own(returned)
                for logger, run in places:
                    logger._queue_results(run, returned)
            return out

        return wrapper

    def tap(self, fun: Callable[P, R], state: LoggerState, **options: Any) -> Callable[P, R]:
        """The function `fun`, with its records delivered while it runs. `options` are those of `lox.tap`."""
        check_state(state)
        tapped = lox.tap(fun, Receiver(self._receive, state.run, self.check_names), **options)

        @functools.wraps(fun)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            self.__ready()
            return tapped(*args, **kwargs)

        return wrapper

    def log(self, state: LoggerState, logs: Mapping[str, Any], *, prefix: str = "", **steps: Any) -> None:
        """Delivers a logdict, or a plain dict as one record, with `steps` as in `lox.log`; `prefix` is put before each key."""
        check_state(state)
        self.__check_open()
        self.__tell_listeners()
        if isinstance(logs, lox.logdict):
            if steps:
                raise LoggerOptionError(f"a logdict has its own steps: remove {', '.join(steps)} from this call")
            self.__send(state, logs.prefix(prefix) if prefix else logs)
        elif isinstance(logs, Mapping):
            tables.check_record(logs, steps)
            record = {prefix + key: value for key, value in logs.items()} if prefix else logs
            if compat.tracing_now():
                tables.check_traced(record)
                self.__send(state, tables.one_record(record, steps))
            else:
                self.check_names(record, steps)
                self._receive(copies.start_record(state.run, record, steps))
        else:
            raise LoggerStateError(f"log takes a logdict or a dict of values; got {type(logs).__name__}")
        # After the record is queued: an earlier failure must not lose it.
        pending.raise_failures(self._sinks())

    def check_names(self, keys: Iterable[str], axes: Iterable[str]) -> None:  # noqa: B027 (most take any name)
        """Override this to raise an error for keys or step axes that the backend does not take. For a compiled program, it is
        called before the program runs."""

    def formats(self) -> Mapping[str, NameFormat | None]:
        """The options of a backend that are filled in for each run, as `name=` is: `{option: format}`. Before `init` opens a run,
        it checks that the config has what they need. `lox.loggers.backend.fill_format` fills them in."""
        return {}

    @staticmethod
    def close_first_at_exit() -> None:
        """For `open`: if a library does something at interpreter exit, call this after the library has started. Open loggers
        are then closed before it."""
        at_exit.close_first_at_exit()

    def flush(self) -> None:
        """Returns when every record logged so far is written and flushed."""
        self.__settle(Sink.flush)

    def close(self, timeout: float | None = None) -> None:
        """Flushes, closes all runs and ends the background thread. A second call does nothing.

        Raises a TimeoutError after `timeout` seconds without progress of the backend; by default, after `close_timeout`.
        """
        if timeout is not None:
            check_seconds(type(self).__name__, "timeout", timeout)
            self.limit_close(timeout)
        for sink in self._sinks():
            sink.limit_patience()
        self._tell_others()
        try:
            self.__settle(Sink.close)
        finally:
            for sink in self._sinks():
                sink.failures.tell_lost()

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that are open."""
        return self.__sink.runs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # From JAX to the sink. Some of our own subclasses override these: see reserved.py.

    @property
    def _sink(self) -> Sink:
        return self.__sink

    def _sinks(self) -> list[Sink]:
        return [self.__sink]

    def _writes_here(self) -> bool:
        """Whether this process writes anything."""
        return self.processes == "all" or jax.process_index() == 0

    def _listeners(self) -> list[Callable[[], object]]:
        """What is called for each call from Python: `init`, `log`, and calls of a spooled or tapped function."""
        return []

    def _tell_others(self) -> None:
        """Reports earlier runs that were not replaced."""
        if self.if_exists == "replace":
            tell_others(self, self.__sink)

    def _all_formats(self) -> dict[str, NameFormat | None]:
        return {**self.formats(), "name": self.__naming.given}

    @property
    def _own_axes(self) -> frozenset[str]:
        """The step axes that `Logger` adds. They are ignored when records are compared."""
        return frozenset({"time"} if self.__time else ())

    def _can_open(self, run: Run, siblings: Siblings) -> bool:
        """Whether `_open_one` would use exactly this name."""
        name = self.__naming.here(run)
        return name is None or self.__sink.ask(functools.partial(is_free, self, self.__sink, name, siblings), True)

    def _open_one(self, run: Run, siblings: Siblings) -> int:
        """Opens a run and returns its id. A failure is kept for the user, and records for the id are dropped."""
        name = self.__naming.here(run)
        if name is None:
            run_id = self.__sink.ids.of(run.name)
            self.__sink.add(run_id, None)
            return run_id
        if self.if_exists == "resume":
            name = first_name(name, self.__sink, siblings)
            if (same := self.__sink.find(name)) is not None:
                siblings.of(self.__sink).add(folded(name))
                return same  # already open in this logger: use it
        named = dataclasses.replace(run, name=name)
        run_id = self.__sink.ids.of(run.name)
        self.__sink.add(run_id, functools.partial(open_run, self, self.__sink, named, siblings))
        return run_id

    def _receive(self, delivery: Delivery) -> None:
        """The host's end of every delivery."""
        if self.__time:
            delivery = delivery._replace(logs=tables.with_time(delivery, self.__sink.seconds_open))
        try:
            self.__sink.deliver(delivery)
        except LoggerClosedError as error:  # raised to the user, not into the running program
            self.__sink.failures.keep(error, "delivering")

    def _destinations(self, run: np.ndarray) -> list[tuple[Logger, np.ndarray]]:
        """The loggers that write the records of a run, each with its own id of the run."""
        return [(self, run)]

    def _queue_results(self, run: np.ndarray, returned: Returned) -> None:
        """Queues what a program has returned for a run."""
        results = copies.Results(run, returned)
        if self.__time:
            self._receive(results.delivery())
            return
        try:
            self.__sink.deliver_results(results)
        except LoggerClosedError as error:
            self.__sink.failures.keep(error, "delivering")

    def _open_lanes(
        self, impl: str | None, process_index: int, config: ConfigTemplate, lanes: tuple[int, ...], operands: Any
    ) -> np.ndarray:
        words, arrays = operands
        ids = np.empty(lanes, np.int32)
        siblings = Siblings()
        for number, lane in enumerate(np.ndindex(lanes)):
            key = tuple(words[lane].tolist())
            filled = config.fill(arrays, lane)
            run = Run(default_name(key, impl), key, process_index, config=filled, lane=number, lane_index=lane)
            ids[lane] = self._open_one(self.__naming.named(run, self.__sink.failures), siblings)
        return ids

    def __send(self, state: LoggerState, logs: lox.logdict) -> None:
        self.check_names(logs, logs.steps)
        if compat.tracing_now():
            send(Receiver(self._receive, state.run), logs)
        elif self._writes_here():
            # Without a host call, so 64-bit values and text stay as they are.
            self._receive(copies.start(state.run, logs))

    def __writes_alone(self) -> bool:
        return jax.process_count() == 1 and self._writes_here()

    # Helpers.

    def __settle(self, finish: Callable[[Sink], None]) -> None:
        if not self.__sink.foreign:
            pending.settle(self._sinks(), finish)

    def __ready(self) -> None:
        pending.raise_failures(self._sinks())
        self.__check_open()
        self.__tell_listeners()

    def __tell_listeners(self) -> None:
        for listener in self._listeners():
            listener()

    def __check_open(self) -> None:
        if self.__sink.closed:
            raise LoggerClosedError(f"this {type(self).__name__} is closed. Create a new one")
