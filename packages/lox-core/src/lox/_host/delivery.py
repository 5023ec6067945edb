"""What a call to the host brings, and who receives it.

A call brings a ``Delivery`` to a ``Receiver``. Host functions get numpy arrays, never JAX arrays, and must not call JAX:
that can deadlock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from lox._errors import LogTypeError
from lox._host.parcel import Parcel
from lox._host.primitive import deliver
from lox._jax import compat
from lox._logdict import logdict
from lox._types import Alive, Array


class Delivery(NamedTuple):
    """What one host call brings."""

    lanes: tuple[int, ...]  # sizes of the vmap axes, outermost first
    alive: np.ndarray  # which lanes the call is for, of shape `lanes`
    operands: Any  # the receiver's operands, lane axes leading
    logs: logdict  # lane axes leading

    def split(self) -> Iterator[tuple[Any, logdict]]:
        """``(operands, logs)`` of each lane that is alive, in lane order."""
        if not self.lanes:
            if self.alive:
                yield self.operands, self.logs
            return
        leaves, tree = jax.tree.flatten((self.operands, self.logs))
        for lane in zip(*np.nonzero(self.alive), strict=True):
            yield tree.unflatten([leaf[lane] for leaf in leaves])


@dataclasses.dataclass(frozen=True)
class Receiver:
    """Where deliveries go: ``handle(delivery)`` on the host, with ``operands`` sent along each time.

    ``check(keys, axes)``, if given, is called while a tapped program is traced: names that a receiver cannot take are
    refused before anything runs.
    """

    handle: Callable[[Delivery], None]
    operands: Any = ()
    check: Callable[[Iterable[str], Iterable[str]], None] | None = None

    def __post_init__(self) -> None:
        if not callable(self.handle):
            raise LogTypeError(f"lox: a callback must be callable, got {type(self.handle).__name__}")


def send(
    receiver: Receiver, logs: logdict, *, alive: Alive = True, masked: bool = False, ordered: bool = False
) -> None:
    """Deliver ``logs`` in one host call.

    Args:
      alive: lanes for which it is False are left out.
      masked: ``alive`` can be False even without lanes (a ``where=``); otherwise only control flow decides, and
        without lanes the call is made whenever the program reaches it.
    """
    leaves, tree = jax.tree.flatten((receiver.operands, logs))
    deliver(_Whole(receiver.handle, tree), as_arrays(leaves), alive=alive, masked=masked, ordered=ordered)


def call(fun: Callable[..., np.ndarray], operands: Any, result: jax.ShapeDtypeStruct) -> Array:
    """One host call that returns an array: ``fun(lanes, operands) -> array of shape lanes + result.shape``."""
    leaves, tree = jax.tree.flatten(operands)
    expected = compat.ShapedArray(result.shape, result.dtype)
    (out,) = deliver(_Answer(fun, tree), as_arrays(leaves), results=(expected,))
    return out


def as_arrays(leaves: Iterable[Any]) -> list[Any]:
    """What a host call can send. Outside a trace, numpy arrays need not go to the device and back."""
    return [leaf if isinstance(leaf, jax.Array) else _as_jax_takes_it(leaf) for leaf in leaves]


def _as_jax_takes_it(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype == object:
        raise LogTypeError(f"lox: cannot send a value of type {type(leaf).__name__} to the host")
    # 64-bit values are 32-bit ones unless x64 mode is on.
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


@dataclasses.dataclass(frozen=True)
class WholeTarget:
    """A target that is one delivery."""

    def parts(self, number: int) -> list[tuple[Any, Sequence[int]]]:
        return [(self, range(number))]


@dataclasses.dataclass(frozen=True)
class _Whole(WholeTarget):
    """Rebuilds a pytree and hands it on."""

    handle: Callable[[Delivery], None]
    tree: Any

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[()]]:
        take_apart = parcel.opener()

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, leaves = take_apart(arrays)
            operands, logs = self.tree.unflatten(leaves)
            self.handle(Delivery(parcel.lanes, alive, operands, logs))
            return ()

        return run


@dataclasses.dataclass(frozen=True)
class _Answer(WholeTarget):
    fun: Callable[..., np.ndarray]
    tree: Any

    def prepare(self, parcel: Parcel) -> Callable[..., tuple[np.ndarray]]:
        take_apart = parcel.opener()

        def run(*arrays: np.ndarray) -> tuple[np.ndarray]:
            return (self.fun(parcel.lanes, self.tree.unflatten(take_apart(arrays).leaves)),)

        return run
