"""Backends that fail, that are slow, and programs that stop in the middle."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lox
import lox.loggers
from tests.faults.plain import BACKENDS, make, numbers, rows_of
from tests.loggers.programs import finish, start


class Failing(lox.loggers.Logger):
    """Fails for the first run, in one of its methods; keeps what is written to the others."""

    def __init__(self, stage: str, error: BaseException, **options: Any) -> None:
        super().__init__(**options)
        self.stage, self.error = stage, error
        self.kept: dict[str, list[int]] = {}
        self.closed: set[str] = set()

    def open(self, run: lox.loggers.Run) -> Any:
        return FailingWriter(self, run.name)


class FailingWriter:
    def __init__(self, logger: Failing, name: str) -> None:
        self._logger, self._name = logger, name
        self._meet("open")

    def write(self, logs: lox.logdict) -> None:
        self._meet("write")
        self._logger.kept.setdefault(self._name, []).extend(logs["x"].tolist())

    def flush(self) -> None:
        self._meet("flush")

    def close(self) -> None:
        self._meet("close")
        self._logger.closed.add(self._name)

    def _meet(self, stage: str) -> None:
        if stage == self._logger.stage and self._name == "0" * 16:
            raise self._logger.error


ERRORS = [OSError("gone"), KeyError(), KeyboardInterrupt("not asked for"), SystemExit(3), MemoryError("gone")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["open", "write", "flush", "close"])
def test_what_a_backend_raises_is_raised_once_and_hurts_nobody_else(stage: str, error: BaseException) -> None:
    logger = Failing(stage, error)
    raised = []

    def attempt(call: Any) -> Any:
        try:
            return call()
        except BaseException as caught:
            raised.append(caught)
            return None

    bad = attempt(lambda: logger.init(jax.random.key(0)))
    good = logger.init(jax.random.key(1))
    for i in range(3):
        if bad is not None:
            attempt(lambda i=i: logger.log(bad, {"x": i}))
        attempt(lambda i=i: logger.log(good, {"x": i}))
        attempt(logger.flush)
    attempt(logger.close)
    assert raised
    assert all(caught is error for caught in raised)
    assert len(raised) <= (3 if stage in ("write", "flush") else 1) + (stage == "flush")
    missing = 3 - len(logger.kept[f"{1:016x}"])
    assert missing <= len(raised)  # a call that raises for another run may not have logged
    assert f"{1:016x}" in logger.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "lox:Failing"]


def test_a_slow_backend_behind_a_full_queue_gets_every_row_of_a_jitted_program() -> None:
    rows: list[int] = []

    class Slow(lox.loggers.Logger):
        def open(self, run: lox.loggers.Run) -> Any:
            return SlowWriter()

    class SlowWriter:
        def write(self, logs: lox.logdict) -> None:
            time.sleep(0.002)
            rows.extend(logs["x"].tolist())

        def flush(self) -> None: ...

        def close(self) -> None: ...

    def program(xs: Any) -> Any:
        def body(total: Any, x: Any) -> Any:
            lox.log({"x": x}, step=x)
            return total + x, None

        return jax.lax.scan(body, 0, xs)[0]

    with Slow(queue_size=1) as logger:
        state = logger.init(jax.random.key(0))
        assert int(jax.jit(logger.tap(program, state))(jnp.arange(300))) == 44850
    assert rows == list(range(300))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exception_in_training_comes_through_and_nothing_is_lost(backend: str, tmp_path: Path) -> None:
    def step(x: Any) -> Any:
        lox.log({"x": x}, step=x)
        return x

    with pytest.raises(ZeroDivisionError, match="my own mistake"):
        with make(backend, tmp_path) as logger:
            tapped = jax.jit(logger.tap(step, logger.init(jax.random.key(0))))
            for i in range(20):
                tapped(i)
            raise ZeroDivisionError("my own mistake")
    assert numbers(rows_of(backend, tmp_path, "0" * 16)["x"]) == [(i, float(i)) for i in range(20)]


def test_a_backend_that_fails_at_the_end_does_not_hide_the_mistake_of_the_training() -> None:
    with pytest.raises(BaseException) as caught:
        with Failing("close", OSError("gone")) as logger:
            logger.init(jax.random.key(0))
            raise ZeroDivisionError("my own mistake")
    chain = [caught.value]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    assert any(isinstance(error, ZeroDivisionError) for error in chain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_in_a_loop_of_jitted_steps_loses_nothing(backend: str, tmp_path: Path) -> None:
    process = start(
        """
        import gc
        from pathlib import Path
        from tests.faults.plain import make

        gc.callbacks.clear()  # an interrupt that arrives in JAX's own is ignored
        logger = make(sys.argv[1], Path(sys.argv[2]))
        state = logger.init(jax.random.key(0))

        def step(x):
            lox.log({"x": x}, step=x)
            return x + 1

        tapped = jax.jit(logger.tap(step, state))
        x = 0
        try:
            while True:
                x = int(tapped(x))
                if x == 200:
                    print("running", flush=True)
        except BaseException as error:  # JAX makes an error of its own of what is raised inside a callback
            print(x, type(error).__name__, flush=True)
            raise
        """,
        backend,
        tmp_path,
    )
    assert process.stdout.readline() == "running\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = finish(process)
    done, error = out.split()
    assert error in ("KeyboardInterrupt", "JaxRuntimeError"), err
    assert process.returncode == (-signal.SIGINT if error == "KeyboardInterrupt" else 1), err
    assert "KeyboardInterrupt" in err
    rows = numbers(rows_of(backend, tmp_path, "0" * 16)["x"])
    assert rows == [(i, float(i)) for i in range(len(rows))]
    assert len(rows) >= int(done)
