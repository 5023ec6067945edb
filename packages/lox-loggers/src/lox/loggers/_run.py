"""What a backend sees (`Run`, `Writer`), what JAX sees (`LoggerState`), and how runs are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import jax

import lox


@dataclasses.dataclass(frozen=True)
class Run:
    """One run that a backend is asked to open.

    name: unique among the runs of a logger, and safe as a file or folder name.
    key: the words of the PRNG key that the run is named after.
    process_index: the JAX process that writes the run.
    resume: the run exists, and is to be continued.
    """

    name: str
    key: tuple[int, ...] = ()
    process_index: int = 0
    resume: bool = False


@runtime_checkable
class Writer(Protocol):
    """Where the records of one run go. All calls come from one background thread, in order."""

    def write(self, logs: lox.logdict) -> None:
        """Takes records by column: numpy arrays, in each of which axis 0 is the record."""

    def flush(self) -> None:
        """Returns when all that was written would survive the death of the process."""

    def close(self) -> None:
        """Flushes and lets go of everything. Called once; nothing is written afterwards."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """The handle of a run inside JAX code: a pytree of one int32, free to be carried, vmapped, donated."""

    run: jax.Array


def run_name(words: tuple[int, ...], impl: str | None, process: int | None) -> str:
    """The name for a key, different for different keys.

    Each 32-bit word has a fixed number of digits, so words cannot run into each other; the kind of
    key is told only where it is not JAX's usual one, and the process only where each writes its own.
    """
    name = "".join(f"{word:08x}" for word in words)
    if impl is not None:
        name = f"{impl}-{name}"
    return name if process is None else f"{name}-p{process}"


def numbered(name: str) -> Iterator[str]:
    """`name`, `name-2`, `name-3`, ...: what a run is called when the names before are taken."""
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1
