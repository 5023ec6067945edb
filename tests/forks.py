"""Processes for tests. They have JAX and lox imported when they start.

Importing these takes longer than most of what a test does in a process of its own. So one process, the server, imports them
once, and what a test starts is a fork of it. That is safe because the server has no thread and no backend of JAX. A fork is a
process like any other: it can be killed, and it ends by the exit of its own interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
_PID = struct.Struct("i")
_END = struct.Struct("id")  # the exit status, negative for a signal, and the processor time


class Server:
    """The process that forks. Everything that it has forked ends with it."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {"JAX_PLATFORMS": "cpu", **(environment or {})}
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, program: str, *arguments: object, stderr: IO[Any] | None = None) -> Fork:
        """A process that runs a program, as `python -c` does. Its output is in pipes, or in the file given as `stderr`."""
        request = {
            "program": program,
            "arguments": list(map(str, arguments)),
            "folder": os.getcwd(),
            "environment": {**os.environ, **self._environment},
        }
        return Fork(self._fork, request, stderr)

    def _fork(self, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [b"!"], descriptors)

    def close(self) -> None:
        self._control.close()
        self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Fork:
    """A forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, fork: Callable[[list[int]], None], request: Any, errors: IO[Any] | None) -> None:
        self.returncode: int | None = None
        self.processor_time = 0.0
        self._told, theirs = socket.socketpair()
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe() if errors is None else (None, os.dup(errors.fileno()))
        with theirs:
            fork([theirs.fileno(), read_in, write_out, write_err])
        for descriptor in (read_in, write_out, write_err):
            os.close(descriptor)
        self.stdin = os.fdopen(write_in, "w")
        self.stdout = os.fdopen(read_out)
        self.stderr = os.fdopen(read_err) if read_err is not None else None
        self._told.sendall(json.dumps(request).encode() + b"\n")
        (self.pid,) = _PID.unpack(self._hear(_PID.size))
        self._readers: list[_Reader] = []

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(["fork"], timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that is left of its output, when it has ended."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
            self._readers = [_Reader(stream) for stream in (self.stdout, self.stderr) if stream is not None]
        for reader in self._readers:
            reader.join(None if until is None else max(0.0, until - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(["fork"], timeout or 0.0)
        self.wait(None if until is None else max(1.0, until - time.monotonic()))
        texts = [reader.text for reader in self._readers]
        return texts[0], "".join(texts[1:])

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode, self.processor_time = _END.unpack(self._hear(_END.size))
            self._told.close()
        return self.returncode

    def _hear(self, size: int) -> bytes:
        message = self._told.recv(size, socket.MSG_WAITALL)
        assert len(message) == size, "the server of forks is gone"
        return message


class _Reader(threading.Thread):
    def __init__(self, stream: IO[str]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self.text = ""
        self.start()

    def run(self) -> None:
        with self._stream:
            self.text = self._stream.read()


# The rest runs in the server.


def preload() -> None:
    """Imports what the forks need. Nothing here may start a thread or a backend of JAX."""
    import lox.loggers

    for name in ("console", "csv", "jsonl", "memory", "progress", "save", "tensorboard"):
        with contextlib.suppress(lox.LoxError):
            lox.loggers.get(name)
    for module in _imported_late():
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # forks neither look at these objects again nor copy their pages


def _imported_late() -> list[str]:
    """What the first programs make JAX and lox import. A fork finds out."""
    found, told = os.pipe()
    if _fork() == 0:
        before = set(sys.modules)
        _log_something()
        os.write(told, json.dumps([name for name in sys.modules if name not in before]).encode())
        os._exit(0)
    os.close(told)
    with os.fdopen(found) as lines:
        modules: list[str] = json.loads(lines.read())
    os.wait()
    return modules


def _log_something() -> None:
    import jax

    import lox.loggers

    with lox.loggers.MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        jax.jit(logger.tap(lambda x: lox.log({"x": x}), state))(1.0)


def _fork() -> int:
    with warnings.catch_warnings(action="ignore"):  # JAX warns of every fork, whether it runs or not
        return os.fork()


def serve(control: socket.socket) -> socket.socket | None:
    """Forks for each message. Returns in each fork, with the socket that has its request; at the end, returns None."""
    running: dict[int, socket.socket] = {}
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _tell_ended(running)
        if control not in ready:
            continue
        message, descriptors, *_ = socket.recv_fds(control, 1, 4)
        if not message:
            break
        told = socket.socket(fileno=descriptors[0])
        child = _fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(descriptors[1:]):
                os.dup2(descriptor, number)
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            for other in (control, woken, waker, *running.values()):
                other.close()
            return told
        running[child] = told
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        told.sendall(_PID.pack(child))
    for child in running:
        os.kill(child, signal.SIGKILL)
    return None


def _tell_ended(running: dict[int, socket.socket]) -> None:
    for child in list(running):
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            with running.pop(child) as told, contextlib.suppress(OSError):  # unless nobody wants to know
                told.sendall(_END.pack(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime))


def become(told: socket.socket) -> None:
    """Runs the program that was asked for, as `python -c` does."""
    with told, told.makefile() as lines:
        request = json.loads(lines.readline())
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(request["program"], "<string>", "exec"), vars(module))


if __name__ == "__main__":
    preload()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        told = serve(control)
    if told is not None:
        become(told)
