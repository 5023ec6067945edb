"""A disk that takes nothing for a while: what was logged meanwhile is written when it is over, in order."""

from __future__ import annotations

import contextlib
import errno
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import lox.loggers
from lox.loggers import _files
from tests.faults.plain import BACKENDS, make, numbers, rows_of

NAME = "0" * 16


class Disk:
    """Fails to open files below a folder while it is told to."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails_with: int | None = None
        real = os.open

        def open_or_fail(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if self.fails_with is not None and writes and str(path).startswith(str(folder)):
                raise OSError(self.fails_with, os.strerror(self.fails_with), str(path))
            return real(path, flags, *args, **kwargs)

        monkeypatch.setattr(os, "open", open_or_fail)

    @contextlib.contextmanager
    def failing(self, code: int = errno.EIO) -> Iterator[None]:
        self.fails_with = code
        try:
            yield
        finally:
            self.fails_with = None


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def log(logger: lox.loggers.Logger, state: Any, start: int, stop: int) -> None:
    for step in range(start, stop):
        with contextlib.suppress(OSError):
            logger.log(state, {"x": float(step)} | ({"late": float(step)} if step >= 15 else {}), step=step)


def found(backend: str, folder: Path) -> dict[str, list[tuple[int, float]]]:
    return {key: numbers(rows) for key, rows in rows_of(backend, folder, NAME).items()}


def expected(stop: int) -> dict[str, list[tuple[int, float]]]:
    return {"x": [(i, float(i)) for i in range(stop)], "late": [(i, float(i)) for i in range(15, stop)]}


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.ENOSPC], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_that_passes_costs_no_record(backend: str, code: int, tmp_path: Path, disk: Disk) -> None:
    """A key that appears meanwhile included."""
    logger = make(backend, tmp_path)
    state = logger.init(jax.random.key(0))
    log(logger, state, 0, 10)
    logger.flush()
    with disk.failing(code):
        log(logger, state, 10, 30)
        with pytest.raises(OSError, match=NAME) as caught:
            logger.flush()
        assert caught.value.errno == code
        assert "lost" not in "".join(caught.value.__notes__)
    log(logger, state, 30, 40)
    logger.close()
    assert found(backend, tmp_path) == expected(40)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_that_lasts_is_told_once_and_the_records_are_counted(backend: str, tmp_path: Path, disk: Disk) -> None:
    logger = make(backend, tmp_path, on_error="warn")
    state = logger.init(jax.random.key(0))
    log(logger, state, 0, 10)
    logger.flush()
    with warnings.catch_warnings(record=True, action="always") as caught, disk.failing():
        log(logger, state, 10, 30)
        logger.flush()
        log(logger, state, 30, 40)
        logger.close()
    told = [str(warning.message) for warning in caught]
    assert len(told) == 2, told
    assert "Input/output error" in told[0]
    assert "30 records were lost" in told[1]
    assert found(backend, tmp_path) == {"x": [(i, float(i)) for i in range(10)]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_kept_is_bounded_and_what_comes_on_top_is_counted(
    backend: str, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_files, "MAX_KEPT_BYTES", 1)
    logger = make(backend, tmp_path, on_error="warn")
    state = logger.init(jax.random.key(0))
    with warnings.catch_warnings(record=True, action="always") as caught:
        with disk.failing():
            for step in range(5):  # one by one: of the first, all is kept, of the others nothing
                logger.log(state, {"x": float(step)}, step=step)
                logger.flush()
        log(logger, state, 5, 7)
        logger.close()
    assert "4 records were lost" in str(caught[-1].message)
    assert found(backend, tmp_path)["x"] == [(0, 0.0), (5, 5.0), (6, 6.0)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_lanes_of_a_vmap_lose_nothing_either(backend: str, tmp_path: Path, disk: Disk) -> None:
    logger = make(backend, tmp_path)
    states = jax.vmap(logger.init)(jax.vmap(jax.random.key)(jax.numpy.arange(2)))
    lanes = jax.jit(jax.vmap(lambda state, i: logger.log(state, {"x": i * 1.0}, step=i), in_axes=(0, None)))
    for step in range(6):
        with disk.failing() if step in (2, 3) else contextlib.nullcontext(), contextlib.suppress(OSError):
            lanes(states, step)
            logger.flush()
    logger.close()
    for name in (NAME, f"{1:016x}"):
        assert numbers(rows_of(backend, tmp_path, name)["x"]) == [(i, float(i)) for i in range(6)]


def test_half_a_piece_that_cannot_be_cut_off_at_once_is_cut_off_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _files.GrowingFile(tmp_path / "file")
    _files.create(file.path)
    file.append(b"whole\n")
    real = os.write

    def write_half(descriptor: int, data: bytes) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, data[:3])

    def fail(*args: Any) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_half)
        patched.setattr(os, "ftruncate", fail)
        with pytest.raises(OSError, match="full"):
            file.append(b"broken\n")
    assert file.path.read_bytes() == b"whole\nbro"
    file.append(b"second\n")
    assert file.path.read_bytes() == b"whole\nsecond\n"
