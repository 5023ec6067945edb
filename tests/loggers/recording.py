"""A backend that keeps the very calls it gets, and one that fails."""

import threading
import time

import jax
import jax.numpy as jnp

import lox
import lox.loggers


class Collecting(lox.loggers.Logger):
    """A backend that keeps the very calls it gets."""

    def __init__(self, *, slow=0.0, **options):
        super().__init__(**options)
        self.calls = []
        self.slow = slow
        self.gate = threading.Event()
        self.gate.set()

    def open(self, run):
        self.calls.append(("open", run))
        return CollectingWriter(self, run.name)


class CollectingWriter:
    def __init__(self, logger, name):
        self.logger, self.name = logger, name

    def write(self, logs):
        self.logger.gate.wait()
        time.sleep(self.logger.slow)
        self.logger.calls.append(("write", self.name, logs, threading.current_thread().name))

    def flush(self):
        self.logger.calls.append(("flush", self.name))

    def close(self):
        self.logger.calls.append(("close", self.name))


class Failing(Collecting):
    """Fails on a write that begins with 1, and on closing if told so."""

    fail_on_close = False

    def open(self, run):
        return FailingWriter(self, run.name)


class FailingWriter(CollectingWriter):
    def write(self, logs):
        super().write(logs)
        if int(logs["x"].flat[0]) == 1:
            raise OSError("no space left on device")

    def close(self):
        if self.logger.fail_on_close:
            raise OSError("cannot close")


def scan(xs):
    def body(total, x):
        total = total + x
        lox.log({"total": total}, step=x.astype(int))
        return total, None

    return jax.lax.scan(body, jnp.zeros(()), xs)[0]


def wait_until(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.005)
