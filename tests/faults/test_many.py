"""Much of everything: threads, runs, keys, bytes and rows."""

from __future__ import annotations

import itertools
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from tests.faults.plain import BACKENDS, make, numbers, place_of, rows_of

NAME = "0" * 16


def scan(xs: Any) -> Any:
    def body(total: Any, x: Any) -> Any:
        lox.log({"x": x}, step=x)
        return total + x, None

    return jax.lax.scan(body, jnp.int32(0), xs)[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_8_threads_log_at_once(backend: str, tmp_path: Path) -> None:
    """To runs of their own and to one that they share, while one of them flushes."""
    with make(backend, tmp_path, queue_size=8) as logger:
        shared = logger.init(jax.random.key(100))

        def work(number: int) -> None:
            own = logger.init(jax.random.key(number))
            for i in range(100):
                logger.log(own, {"x": i}, step=i)
                logger.log(shared, {f"thread{number}": i}, step=i)
                if number == 0 and i % 10 == 0:
                    logger.flush()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    expected = [(i, float(i)) for i in range(100)]
    for number in range(8):
        assert numbers(rows_of(backend, tmp_path, f"{number:016x}")["x"]) == expected
    together = rows_of(backend, tmp_path, f"{100:016x}")
    assert {key: numbers(rows) for key, rows in together.items()} == {f"thread{i}": expected for i in range(8)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_1000_vmapped_runs(backend: str, tmp_path: Path) -> None:
    with make(backend, tmp_path) as logger:
        keys = jax.vmap(jax.random.key)(jnp.arange(1000))
        states = jax.vmap(logger.init)(keys)
        program = jax.vmap(lambda state, lane: logger.tap(scan, state)(lane * 10 + jnp.arange(3)))
        jax.jit(program)(states, jnp.arange(1000))
    for lane in range(1000):
        expected = [(lane * 10 + i, float(lane * 10 + i)) for i in range(3)]
        assert numbers(rows_of(backend, tmp_path, f"{lane:016x}")["x"]) == expected


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of lox `work` runs, in this thread and in those that it starts."""
    lines = itertools.count()

    def count_line(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            next(lines)
        return count_line

    def count(frame: Any, event: str, argument: Any) -> Any:
        return count_line if frame.f_globals.get("__name__", "").startswith("lox.") else None

    before = sys.gettrace()
    threading.settrace(count)
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]
    return next(lines)


@pytest.mark.parametrize("how", ["different keys", "one key", "one key, again and again"])
@pytest.mark.parametrize("backend", ["memory", *BACKENDS])
def test_twice_as_many_runs_take_twice_as_much(backend: str, how: str, tmp_path: Path) -> None:
    def lines(number: int) -> int:
        keys = jax.random.split(jax.random.key(0), number)
        if how != "different keys":
            keys = jnp.broadcast_to(keys[:1], keys.shape)
        logger = make(backend, tmp_path / str(number)) if backend != "memory" else lox.loggers.MemoryLogger()

        def open_and_close() -> None:
            with logger:
                if how == "one key, again and again":
                    for key in keys:
                        logger.init(key)
                else:
                    jax.vmap(logger.init)(keys)

        return lines_run(open_and_close)

    lines(1)  # imports, and what JAX compiles
    few, many, most = lines(10), lines(20), lines(40)
    assert most - many <= 2.05 * (many - few)


@pytest.mark.parametrize("backend", BACKENDS)
def test_10_000_keys(backend: str, tmp_path: Path) -> None:
    keys = [f"layer{i // 100}/weight{i % 100}" for i in range(10_000)]
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for step in range(2):
            logger.log(state, {key: i + step for i, key in enumerate(keys)}, step=step)
    found = rows_of(backend, tmp_path, NAME)
    assert set(found) == set(keys)
    for i, key in enumerate(keys):
        assert numbers(found[key]) == [(0, float(i)), (1, float(i + 1))]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_new_key_in_every_record(backend: str, tmp_path: Path) -> None:
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(300):
            logger.log(state, {f"key{i}": i}, step=i)
    found = rows_of(backend, tmp_path, NAME)
    assert {key: numbers(rows) for key, rows in found.items()} == {f"key{i}": [(i, float(i))] for i in range(300)}


def test_records_of_100_megabytes_are_saved(tmp_path: Path) -> None:
    """More of them than the queue may hold at a time."""
    record = np.arange(25_000_000, dtype=np.float32)
    assert record.nbytes == 100_000_000
    with lox.loggers.SaveLogger(tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(4):
            logger.log(state, {"x": record[::-1] if i % 2 else record}, step=i)
    rows = np.load(tmp_path / NAME / "x.npy", mmap_mode="r")
    assert rows.shape == (4, len(record))
    for i in range(4):
        assert np.array_equal(rows[i], record[::-1] if i % 2 else record)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_records_of_1_megabyte_elsewhere(backend: str, tmp_path: Path) -> None:
    """As text, each number is a piece of Python: more of it would only take longer. TensorBoard has a histogram."""
    record = np.arange(250_000, dtype=np.float32)
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(2):
            logger.log(state, {"x": record, "after": i}, step=i)
    found = rows_of(backend, tmp_path, NAME)
    assert numbers(found["after"]) == [(0, 0.0), (1, 1.0)]
    if backend != "tensorboard":
        first, second = (np.fromstring(str(value).strip("[]"), sep=",") for _, value in found["x"])
        assert np.array_equal(first, record)
        assert np.array_equal(second, record)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_million_rows(backend: str, tmp_path: Path) -> None:
    with make(backend, tmp_path) as logger:
        state = logger.init(jax.random.key(0))
        jax.jit(logger.spool(scan, state))(jnp.arange(1_000_000))
    place = place_of(backend, tmp_path, NAME)
    if backend == "save":
        assert np.array_equal(np.load(place / "x.npy"), np.arange(1_000_000))
        assert np.array_equal(np.load(place / "x@step.npy"), np.arange(1_000_000))
    elif backend == "tensorboard":
        # TensorBoard's reader takes minutes for so many. Besides the rows, a file has a record of its version, and one
        # that tells that the run was closed.
        (file,) = place.iterdir()
        assert count_records(file.read_bytes()) == 1_000_000 + 2
    else:
        header, line = (["step,x"], "{0},{0}") if backend == "csv" else ([], '{{"step": {0}, "x": {0}}}')
        assert place.read_text().splitlines() == [*header, *map(line.format, range(1_000_000))]


def count_records(data: bytes) -> int:
    """Each is its length in 8 bytes, a checksum of 4, the record, and a checksum of 4."""
    count = at = 0
    while at < len(data):
        at += 16 + struct.unpack_from("<Q", data, at)[0]
        count += 1
    assert at == len(data)
    return count
