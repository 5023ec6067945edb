"""What the process does that is killed."""

from __future__ import annotations

import atexit
import contextlib
import errno
import itertools
import json
import os
import random
import resource
import signal
import sys
import threading
import time
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


class Disk:
    """Now and then takes nothing for a while."""

    def __init__(self, folder: str, draw: random.Random) -> None:
        self.is_well = False
        self._left = 0
        real = os.open

        def open_or_fail(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & os.O_WRONLY and not self.is_well and os.fsdecode(path).startswith(folder):
                if not self._left and draw.random() < 0.1:
                    self._left = draw.choice((1, 3, 20))
                if self._left:
                    self._left -= 1
                    code = draw.choice((errno.EIO, errno.EMFILE, errno.ENOSPC))
                    raise OSError(code, os.strerror(code), os.fsdecode(path))
            return real(path, flags, *args, **kwargs)

        self._open = open_or_fail

    def fail(self) -> None:
        os.open = self._open


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
        self._states = f"{acknowledged}.states.npy"
        self.disk = Disk(folder, self._random) if spec["kind"] == "passing" else None
        place = {"logdir" if backend == "tensorboard" else "path": folder}
        self.logger = lox.loggers.create(backend, if_exists="resume", **place)

    def live(self) -> None:
        try:
            getattr(self, self._mode)()
            if self.disk is not None:
                self.disk.is_well = True
        except BaseException:
            with contextlib.suppress(Exception):
                self.logger.close()  # so that its runs are free
            raise
        self.logger.close()
        self._acknowledge(dict.fromkeys(range(len(self.starts)), self.rows))

    def live_until_signals(self) -> None:
        """Ends as an interpreter does, while signals arrive whose handler ends it again."""
        getattr(self, self._mode)()
        left = [3]

        def handle(number: int, frame: Any) -> None:
            left[0] -= 1
            if left[0] <= 0:
                signal.setitimer(signal.ITIMER_PROF, 0)
            if frame.f_code.co_filename != __file__:  # what is tested, not the test itself
                sys.exit(143)

        signal.signal(signal.SIGPROF, handle)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 10 ** self._random.uniform(-3, -2))
        atexit._run_exitfuncs()
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._acknowledge(dict.fromkeys(range(len(self.starts)), self.rows))

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
        state = self._init(jax.random.key(0))
        self._compiled(jax.jit(self.logger.tap(self._scan, state)), self.starts[0])

    def spool(self) -> None:
        state = self._init(jax.random.key(0))
        self._compiled(jax.jit(self.logger.spool(self._scan, state)), self.starts[0])

    def vmap(self) -> None:
        """Several runs in one program."""
        states = self._init(jax.vmap(jax.random.key)(jnp.arange(SEEDS)))
        lanes = jax.jit(jax.vmap(lambda state, start: self.logger.tap(self._scan, state)(start)))
        self._compiled(lambda starts: lanes(states, starts), self.starts)

    def restored(self) -> None:
        """Runs that are opened in any order, and the states of the first process."""
        order = self._random.sample(range(SEEDS), SEEDS)
        states = [self._init(jax.random.key(seed)) for seed in order]
        runs = [int(states[order.index(seed)].run) for seed in range(SEEDS)]
        if os.path.exists(self._states):
            runs = np.load(self._states).tolist()
        np.save(self._states, runs)
        for seed, run in enumerate(runs):
            state = lox.loggers.LoggerState(run=jnp.int32(run))
            self._log_to(state, seed, self.starts[seed], self.rows + 10 * seed)

    def _init(self, key: Any) -> Any:
        """Opens a run, or one for each key. When the disk fails, it is tried again."""
        init = jax.vmap(self.logger.init) if key.ndim else self.logger.init
        while True:
            try:
                return init(key)
            except OSError:
                if self.disk is None:
                    raise

    def _log(self, seed: int) -> None:
        state = self._init(jax.random.key(seed))
        self._log_to(state, seed, self.starts[seed], self.rows)

    def _log_to(self, state: Any, seed: int, done: int, rows: int) -> None:
        while done < rows:
            until = min(rows, done + self._random.choice((1, 3, 30, 200)))
            for step in range(done, until):
                with self._tolerant():
                    self.logger.log(state, record(step, self.size, self.late), step=step)
            done = until
            self._flush({seed: done})

    def _tolerant(self) -> contextlib.AbstractContextManager[None]:
        """The program goes on when the disk fails."""
        return contextlib.nullcontext() if self.disk is None else contextlib.suppress(OSError)

    def _compiled(self, fun: Callable[[Any], Any], start: Any) -> None:
        done = np.asarray(start, np.int32)
        while done.min() < self.rows:
            with self._tolerant():
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
        with self._tolerant():
            self.logger.flush()
            self._acknowledge(rows)

    def _acknowledge(self, rows: dict[int, int]) -> None:
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
    kind = spec["kind"]
    if kind == "rival":
        live_with_a_rival(spec)
        return
    life = Life(**spec)
    if life.disk is not None:
        life.disk.fail()
    if kind == "signals":
        life.live_until_signals()
        return
    if byte is not None:
        die_at_byte(byte)
    life.live()


def live_with_a_rival(spec: dict[str, Any]) -> None:
    """Two processes want the same run. Each tries until it has it, and then finds what the other has written."""
    rival = os.fork()
    draw = random.Random(spec["seed"] + (rival == 0))
    while True:
        try:
            Life(**spec).live()
            break
        except lox.loggers.RunExistsError:
            time.sleep(draw.uniform(0.001, 0.02))
    if rival == 0:
        os._exit(0)
    status = os.waitpid(rival, 0)[1]
    assert status == 0, f"the rival ended with status {status}"


def main() -> None:
    """Lives as `sys.argv` says. Nothing runs at the end that could mend what a fault has left."""
    signal.alarm(LONGEST_LIFE)
    try:
        live(json.loads(sys.argv[1]))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
