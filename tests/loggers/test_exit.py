"""Handlers, signals and backends that are stuck: nothing hangs, and every logger is closed."""

import logging
import signal
import threading
import time
import warnings

import jax
import pytest

import lox.loggers
from tests.loggers.programs import finish, start
from tests.loggers.recording import wait_until


class Writer:
    def __init__(self, logger):
        self.logger = logger

    def write(self, logs):
        self.logger.on_write(logs)

    def flush(self):
        self.logger.on_flush()

    def close(self):
        self.logger.on_close()


class Backend(lox.loggers.Logger):
    """Does what a test says."""

    def __init__(self, write=lambda logs: None, flush=lambda: None, close=lambda: None, **options):
        self.on_write, self.on_flush, self.on_close = write, flush, close
        super().__init__(**options)

    def open(self, run):
        return Writer(self)


@pytest.fixture
def handler():
    added = []

    def add(emit):
        one = logging.Handler()
        one.emit = emit
        logging.getLogger().addHandler(one)
        added.append(one)

    yield add
    for one in added:
        logging.getLogger().removeHandler(one)


def test_a_handler_of_logging_may_log_through_the_logger_that_fails(handler):
    rows = []

    def write(logs):
        if "bad" in logs:
            raise OSError("disk")
        rows.extend(logs)

    logger = Backend(write)
    state = logger.init(jax.random.key(0))
    handler(lambda record: logger.log(state, {"message": record.getMessage()}))
    logger.log(state, {"bad": 1.0}, step=0)
    wait_until(lambda: rows)
    with pytest.raises(OSError, match="disk"):
        logger.flush()
    logger.close()
    assert rows == ["message"]


def test_what_waits_behind_a_failure_is_written_though_a_handler_logs_meanwhile(handler, capfd):
    rows, go_on = [], threading.Event()

    def write(logs):
        go_on.wait(60)
        if "bad" in logs:
            raise OSError("disk")
        rows.extend(logs)

    logger = Backend(write)
    state = logger.init(jax.random.key(0))
    handler(lambda record: logger.log(state, {"message": record.getMessage()}))
    keys = [f"k{i}" for i in range(5)]
    for key in ("first", "bad", *keys):  # all but the first are taken from the queue together, and none can be joined
        logger.log(state, {key: 1.0}, step=0)
        wait_until(lambda: logger._sink._doing)
    go_on.set()
    with pytest.raises(OSError, match="disk"):
        logger.close()
    assert rows == ["first", "message", *keys]
    assert "Traceback" not in capfd.readouterr().err


def test_a_handler_of_warnings_may_log_through_the_logger_that_fails():
    rows = []

    def write(logs):
        if "bad" in logs:
            raise OSError("disk")
        rows.extend(logs)

    with Backend(write, on_error="warn") as logger:
        state = logger.init(jax.random.key(0))
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *args: logger.log(state, {"warning": str(message)})
            logger.log(state, {"bad": 1.0}, step=0)
            logger.flush()
            assert rows == ["warning"]
            warnings.showwarning = lambda *args: None
            logger.close()


def test_no_lock_is_held_while_a_handler_runs(handler):
    """Another thread can log meanwhile, and a child that is forked at that moment too."""
    inside, go_on = threading.Event(), threading.Event()

    def emit(record):
        inside.set()
        go_on.wait(60)

    def fail(logs):
        raise OSError("disk")

    logger = Backend(fail)
    state = logger.init(jax.random.key(0))
    handler(emit)
    logger.log(state, {"x": 1.0})
    assert inside.wait(60)
    try:
        with pytest.raises(OSError, match="disk"):
            logger.log(state, {"x": 1.0})
        assert logger._sink.failures._lock.acquire(timeout=60)
        logger._sink.failures._lock.release()
    finally:
        go_on.set()
    with pytest.raises(OSError, match="disk"):
        logger.close()


@pytest.mark.parametrize("where", ["write", "flush", "close"])
def test_a_backend_that_is_stuck_ends_close_with_an_error_that_names_it(where):
    go_on = threading.Event()
    logger = Backend(**{where: lambda *args: go_on.wait(60) and None}, close_timeout=0.2)
    state = logger.init(jax.random.key(0))
    for step in range(3):
        logger.log(state, {"x": 1.0}, step=step)
        if step == 0 and where == "write":
            wait_until(lambda: logger._sink._doing)
    records = {"write": "3 records", "flush": "0 records", "close": "0 records"}[where]
    if where == "flush":
        wait_until(lambda: logger._sink._doing.startswith("flushing"))
        records = "0 records"
    told = {"write": "writing to run", "flush": "flushing run", "close": "closing run"}[where]
    try:
        with pytest.raises(
            TimeoutError, match=rf"Backend made no progress for 0.2 seconds while {told} '0+'; {records}"
        ):
            logger.close()
    finally:
        go_on.set()
    logger.close()
    with pytest.raises(lox.loggers.LoggerClosedError):
        logger.log(state, {"x": 1.0})


def test_a_backend_that_is_slow_but_gets_on_is_waited_for():
    rows = []

    def write(logs):
        time.sleep(0.05)
        rows.extend(logs["x"].tolist())

    logger = Backend(write, close_timeout=2.0)
    state = logger.init(jax.random.key(0))
    for step in range(60):
        logger.log(state, {"x": step, f"k{step}": 0}, step=step)  # no two can be joined
    logger.close()
    assert rows == list(range(60))


def test_a_program_that_waits_for_a_stuck_backend_is_let_go_when_the_logger_is_closed():
    go_on = threading.Event()
    logger = Backend(lambda logs: go_on.wait(60) and None, close_timeout=0.2, queue_size=1)
    state = logger.init(jax.random.key(0))
    ended = []

    def log():
        with pytest.raises(lox.loggers.LoggerClosedError):
            for step in range(10):
                logger.log(state, {"x": step}, step=step)
        ended.append(True)

    thread = threading.Thread(target=log)
    thread.start()
    wait_until(lambda: logger._sink._worker._urgent)
    try:
        with pytest.raises(TimeoutError):
            logger.close()
        thread.join(60)
        assert ended
    finally:
        go_on.set()


@pytest.mark.parametrize("value", [0, -1, "1", float("nan")])
def test_close_timeout_is_checked(value):
    with pytest.raises(lox.loggers.LoggerOptionError, match="close_timeout="):
        Backend(close_timeout=value)
    with Backend() as logger, pytest.raises(lox.loggers.LoggerOptionError, match="Backend: timeout="):
        logger.close(timeout=value)


@pytest.mark.parametrize("several", [False, True])
def test_close_can_be_told_how_long_to_wait(several):
    go_on = threading.Event()
    stuck = Backend(lambda logs: go_on.wait(60) and None, close_timeout=None)
    logger = lox.loggers.MultiLogger(stuck, lox.loggers.MemoryLogger()) if several else stuck
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    try:
        with pytest.raises(
            TimeoutError, match=r"Backend made no progress for 0.2 seconds while writing to run '0+'; 1 record"
        ):
            logger.close(timeout=0.2)
    finally:
        go_on.set()


def test_a_backend_may_close_its_logger_while_it_is_closed():
    """The thread that writes does not wait for the one that waits for it."""
    closed = []

    def close():
        logger.close()
        closed.append(True)

    logger = Backend(close=close, close_timeout=None)
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    logger.close()
    assert closed == [True]


def test_close_in_a_signal_handler_during_close():
    closed = []
    inside = threading.Event()

    def close():
        inside.set()
        time.sleep(0.3)
        closed.append(True)

    logger = Backend(close=close)
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
    seen = []

    def handle(*_):
        logger.close()
        seen.append(len(closed))

    before = signal.signal(signal.SIGUSR1, handle)
    main = threading.main_thread().ident
    sender = threading.Thread(target=lambda: inside.wait(60) and signal.pthread_kill(main, signal.SIGUSR1))
    sender.start()
    try:
        logger.close()
        sender.join()
        wait_until(lambda: seen)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (closed, seen) == ([True], [1])


def test_signal_handlers_may_flush_at_any_moment():
    """Also while their thread holds the lock of the queue."""
    rows, flushed = [], []
    with Backend(lambda logs: rows.extend(logs["x"].tolist()), queue_size=4) as logger:
        state = logger.init(jax.random.key(0))

        def handle(*_):
            logger.flush()
            flushed.append(len(rows))

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for step in range(3000):
                logger.log(state, {"x": step}, step=step)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert rows == list(range(3000))
    assert flushed


AT_EXIT = """
import signal, sys, threading, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
class Writer:
    def write(self, logs): pass
    def flush(self): pass
    def close(self):
        print("closing", flush=True)
        time.sleep(0.5)
        print("closed", flush=True)
class Backend(lox.loggers.Logger):
    def open(self, run): return Writer()
loggers = [Backend() for _ in range(3)]
for logger in loggers:
    logger.log(logger.init(jax.random.key(0)), {"x": 1.0})
print("ready", flush=True)
"""


def test_signals_at_exit_keep_no_logger_from_being_closed():
    process = start(AT_EXIT)
    for line in iter(process.stdout.readline, "closing\n"):
        assert line == "ready\n"
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    out, _ = finish(process)
    assert ("closing\n" + out).count("closed\n") == 3


STUCK_AT_EXIT = """
import time
class Writer:
    def write(self, logs): time.sleep(3600)
    def flush(self): pass
    def close(self): pass
class Stuck(lox.loggers.Logger):
    def open(self, run): return Writer()
stuck = Stuck(close_timeout=1.0)
fine = lox.loggers.create("jsonl", path=sys.argv[1])
for logger in (stuck, fine):
    state = logger.init(jax.random.key(0))
    for step in range(2):
        logger.log(state, {"x": 1.0}, step=step)
"""


def test_a_backend_that_is_stuck_at_exit_is_named_and_the_others_are_closed(tmp_path):
    process = start(STUCK_AT_EXIT, tmp_path)
    _, err = finish(process)
    assert process.returncode == 0
    assert "LoggerWarning: Stuck made no progress for 1 seconds while writing" in err
    assert "2 records not written" in err
    assert len((tmp_path / "0000000000000000.jsonl").read_text().splitlines()) == 2


def test_the_thread_whose_run_cannot_be_opened_is_told():
    """Not only another one that happens to call the logger first."""
    opening, told = threading.Event(), threading.Event()

    class Refusing(Backend):
        def open(self, run):
            if run.key[-1] == 1:
                opening.set()
                raise OSError("no such disk")
            return super().open(run)

    logger = Refusing()
    failed = []

    def go():
        try:
            logger.init(jax.random.key(1))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=go)
    # Whoever asks first takes what is pending: here nobody else is left to be told.
    take = logger._sink.failures.take
    logger._sink.failures.take = lambda: (take(), told.set(), None)[-1]
    thread.start()
    thread.join(60)
    assert opening.is_set()
    assert told.is_set()
    assert [str(error) for error in failed] == ["no such disk"]
    logger.close()
