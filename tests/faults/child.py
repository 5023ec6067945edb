"""The process that is killed: `python -m tests.faults.child` reads one JSON line for each life it is to live.

Importing JAX takes longer than all the rest of a round, so this process imports it once, and forks a child for each
line. That is safe because no backend of JAX runs, and no thread, before the fork: each child starts its own.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
import lox.loggers
from tests.faults.records import SEEDS, record

CHUNK = 40
LONGEST_LIFE = 300  # seconds: nobody shall write for ever, should the process that kills it be gone


class Life:
    """What one child is asked to do."""

    def __init__(self, *, folder: str, acknowledged: str, backend: str, mode: str, **spec: Any) -> None:
        self.size: int = spec["size"]
        self.late: bool = spec["late"]
        self.starts: list[int] = spec["starts"]  # for each seed, the step from which on it logs
        self.rows: int = spec["rows"]  # up to this step, and then it closes the logger and ends
        self._random = random.Random(spec["seed"])
        self._acknowledged = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._mode = mode
        place = {"logdir" if backend == "tensorboard" else "path": folder}
        self.logger = lox.loggers.create(backend, if_exists="resume", **place)

    def live(self) -> None:
        getattr(self, self._mode)()
        self.logger.close()

    def log(self) -> None:
        """Records from Python, one by one."""
        self._log(0)

    def threads(self) -> None:
        """The same from several threads, each with a run of its own."""
        threads = [threading.Thread(target=self._log, args=(seed,)) for seed in range(SEEDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def tap(self) -> None:
        state = self.logger.init(jax.random.key(0))
        self._compiled(jax.jit(self.logger.tap(self._scan, state)), self.starts[0])

    def spool(self) -> None:
        state = self.logger.init(jax.random.key(0))
        self._compiled(jax.jit(self.logger.spool(self._scan, state)), self.starts[0])

    def vmap(self) -> None:
        """Several runs in one program."""
        states = jax.vmap(self.logger.init)(jax.vmap(jax.random.key)(jnp.arange(SEEDS)))
        lanes = jax.jit(jax.vmap(lambda state, start: self.logger.tap(self._scan, state)(start)))
        self._compiled(lambda starts: lanes(states, starts), self.starts)

    def _log(self, seed: int) -> None:
        state = self.logger.init(jax.random.key(seed))
        done = self.starts[seed]
        while done < self.rows:
            until = min(self.rows, done + self._random.choice((1, 3, 30, 200)))
            for step in range(done, until):
                self.logger.log(state, record(step, self.size, self.late), step=step)
            done = until
            self._flush({seed: done})

    def _compiled(self, fun: Callable[[Any], Any], start: Any) -> None:
        done = np.asarray(start, np.int32)
        while done.min() < self.rows:
            fun(done)
            done = done + np.int32(CHUNK)
            self._flush(dict(enumerate(np.atleast_1d(done).tolist())))

    def _scan(self, start: Any) -> Any:
        def body(total: Any, step: Any) -> Any:
            value = step.astype(jnp.float32)
            lox.log({"x": value, "v": jnp.full(self.size, value), "n": {"a": step}}, step=step)
            return total + value, None

        return jax.lax.scan(body, jnp.float32(0), start + jnp.arange(CHUNK))[0]

    def _flush(self, rows: dict[int, int]) -> None:
        self.logger.flush()
        for seed, done in rows.items():  # a line of this length is written whole, or not at all
            os.write(self._acknowledged, f"{seed} {done}\n".encode())


def die_at_operation(number: int, folder: str) -> None:
    """kill -9 right before a file in the folder is made, opened, renamed, cut or removed for the n-th time."""
    counted = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.truncate"):
            return
        path = arguments[0]
        inside = isinstance(path, int) or os.fsdecode(path).startswith(folder)
        if inside and next(counted) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def die_at_byte(number: int) -> None:
    """The kernel writes a file up to this size, and then ends the process in the middle of its write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))


def live(spec: dict[str, Any]) -> None:
    if (operation := spec.pop("operation", None)) is not None:
        die_at_operation(operation, spec["folder"])
    byte = spec.pop("byte", None)
    life = Life(**spec)
    if byte is not None:
        die_at_byte(byte)
    life.live()


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.alarm(LONGEST_LIFE)
            try:
                live(json.loads(line))
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    serve()
