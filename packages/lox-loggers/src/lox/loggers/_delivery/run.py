"""What a backend sees (`Run`, `Writer`), what JAX sees (`LoggerState`), and how runs are named."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import numpy as np

import lox
from lox.loggers._delivery.config import json_value
from lox.loggers._delivery.names import fill_format
from lox.loggers._errors import LoggerStateError

IfExists = Literal["new", "error", "replace", "resume"]
OnError = Literal["raise", "warn"]
Processes = Literal["first", "all"]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run that a backend is asked to open.

    Args:
      name: unique among the runs of a logger, and safe as a path on every file system: its slashes are folders.
      key: the words of the PRNG key that `init` was given.
      process_index: the JAX process that writes the run.
      resume: whether the run exists and should be continued.
      config: the config that `init` got: mappings, lists, numbers, text, None and numpy arrays.
      lane: the number of the run among all lanes of its `init`.
      lane_index: its place along each axis of these lanes, starting with the outermost `vmap`.
    """

    name: str
    key: tuple[int, ...] = ()
    process_index: int = 0
    resume: bool = False
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    lane: int = 0
    lane_index: tuple[int, ...] = ()

    @property
    def hex_key(self) -> str:
        """The words of the key in hexadecimal digits."""
        return "".join(f"{word:08x}" for word in self.key)

    def format(self, text: str) -> str:
        """Fills in a format string as `name=` does: `run.format("lr={rate:.2g}/seed={lane}")`."""
        return fill_format("Run.format", "text", text, self)

    @property
    def plain_config(self) -> dict[str, Any]:
        """The config in JSON types: arrays are numbers, or lists of them."""
        config: dict[str, Any] = json_value(self.config)
        return config


class OpenRuns(tuple[Run, ...]):
    """The runs of a logger. A notebook shows them as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from lox.loggers._compare.html import show_open_runs

        return show_open_runs(self)


NameFormat = str | Callable[[Run], str]


@runtime_checkable
class Writer(Protocol):
    """Where the records of one run go. All calls come from one background thread, in order."""

    def write(self, logs: lox.logdict) -> None:
        """Takes records by column: numpy arrays whose axis 0 is the record."""

    def flush(self) -> None:
        """Returns when everything that was written would survive if the process were killed."""

    def close(self) -> None:
        """Flushes, and releases everything. It is called once, and nothing is written afterwards."""


class LaneWriter(Writer):
    """A base class for writers that share work between the lanes of a `vmap`, or that look at their records later.

    The writers of all lanes get the same logs object, one after the other.
    """

    @abc.abstractmethod
    def write_lane(self, logs: lox.logdict, lane: tuple[int, ...]) -> bool:
        """Takes the records of one lane. Return False to get them through `write` instead, as a table of their own.

        Args:
          logs: what all lanes recorded, as numpy. The axes of the lanes come first; after them, keys in `logs.stacked` have an
            axis of records. Counts may be arrays with an entry for each lane.
          lane: the index of this writer's lane along the first axes.
        """


class BatchWriter(Writer):
    """A base class for writers that encode each table at once, and pass all of them to a file or a service together.

    `end_batch` is called after the last `write` of records that were waiting together.
    """

    @abc.abstractmethod
    def end_batch(self) -> None:
        """Passes on what was written since the last call. If it fails, that counts as a failure of these writes."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """The handle of a run inside JAX code: a pytree of one int32, which can be carried, vmapped and donated."""

    run: jax.Array


def check_state(state: Any) -> None:
    if not isinstance(state, LoggerState):
        raise LoggerStateError(f"expected the state that logger.init(key) returns; got {type(state).__name__}")
    if state.run.ndim != 0:
        raise LoggerStateError(
            f"this state holds runs of shape {state.run.shape}. Use it inside jax.vmap, where each lane has one run"
        )


def words_of_key(key: Any) -> tuple[jax.Array, str | None]:
    """The 32-bit words of a PRNG key, and the kind of key if it is not the default one."""
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        if key.ndim != 0:
            raise LoggerStateError(
                f"init takes one key. For keys of shape {key.shape}, use jax.vmap(logger.init)(keys)"
            )
        impl = str(jax.random.key_impl(key))
        return jax.random.key_data(key), None if impl == "threefry2x32" else impl
    if dtype == np.uint32 and key.ndim == 1:
        return key, None
    if dtype == np.uint32 and key.ndim > 1:
        raise LoggerStateError(
            f"init takes one key. For raw keys of shape {key.shape}, use jax.vmap(logger.init)(keys)"
        )
    raise LoggerStateError(f"init takes a PRNG key, such as jax.random.key(0); got {key!r}")


def default_name(words: tuple[int, ...], impl: str | None) -> str:
    """The name for a key, different for different keys.

    Each 32-bit word has a fixed number of digits, so words cannot run into each other. The name has the kind of key only if
    it is not JAX's default.
    """
    name = "".join(f"{word:08x}" for word in words)
    return name if impl is None else f"{impl}-{name}"
