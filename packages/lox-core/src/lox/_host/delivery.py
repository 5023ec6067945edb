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
from lox._host.primitive import deliver
from lox._jax import compat
from lox._logdict import logdict
from lox._storage.packing import packing_for
from lox._storage.words import Layout, is_key
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
    arrays, layout = pack_leaves(leaves)
    deliver(_Whole(receiver.handle, tree, layout), arrays, alive=alive, masked=masked, ordered=ordered)


def call(fun: Callable[..., np.ndarray], operands: Any, result: jax.ShapeDtypeStruct) -> Array:
    """One host call that returns an array: ``fun(lanes, operands) -> array of shape lanes + result.shape``."""
    leaves, tree = jax.tree.flatten(operands)
    arrays, layout = pack_leaves(leaves)
    (out,) = deliver(_Answer(fun, tree, layout), arrays, results=(compat.ShapedArray(result.shape, result.dtype),))
    return out


def pack_leaves(leaves: Sequence[Any], num_constant: int = 0) -> tuple[list[Array], Layout]:
    """Pack the operands of a host call. The first ``num_constant`` leaves are the same in every call and stay unpacked: packing
    would copy them each time."""
    arrays = [leaf if isinstance(leaf, jax.Array) else _as_jax_takes_it(leaf) for leaf in leaves]
    # Outside a trace, packing gains nothing, and numpy arrays need not go to the device and back.
    apart = {id(array) for array in arrays[:num_constant]}
    limit = packing_for(arrays).host if compat.tracing_now() else 0
    layout = Layout.of(arrays, limit, apart)
    return [host_form(array) for array in layout.pack(arrays)], layout


def host_form(array: Array) -> Array:
    """PRNG keys reach the host as their words."""
    return jax.random.key_data(array) if is_key(array.dtype) else array


def _as_jax_takes_it(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype == object:
        raise LogTypeError(f"lox: cannot send a value of type {type(leaf).__name__} to the host")
    # 64-bit values are 32-bit ones unless x64 mode is on.
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def lane_splitter(
    lanes: tuple[int, ...], has_alive: bool
) -> Callable[[Sequence[np.ndarray]], tuple[np.ndarray, list[np.ndarray]]]:
    """A function that splits the delivered arrays: which lanes are alive, and the other arrays for all lanes."""
    everyone = np.ones(lanes, bool)
    everyone.setflags(write=False)

    def spread(array: np.ndarray) -> np.ndarray:
        # Arrays that do not vary over a lane axis have size 1 there: repeat them, without a copy.
        shape = array.shape
        return array if shape[: len(lanes)] == lanes else np.broadcast_to(array, lanes + shape[len(lanes) :])

    def split(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        for_all = list(map(spread, arrays))
        return (for_all[0], for_all[1:]) if has_alive else (everyone, for_all)

    return split


@dataclasses.dataclass(frozen=True)
class _Whole:
    """Rebuilds a pytree and hands it on."""

    handle: Callable[[Delivery], None]
    tree: Any
    layout: Layout

    def prepare(self, lanes: tuple[int, ...], has_alive: bool) -> Callable[..., tuple[()]]:
        split = lane_splitter(lanes, has_alive)

        def run(*arrays: np.ndarray) -> tuple[()]:
            alive, rest = split(arrays)
            operands, logs = self.tree.unflatten(self.layout.unpack_numpy(rest))
            self.handle(Delivery(lanes, alive, operands, logs))
            return ()

        return run


@dataclasses.dataclass(frozen=True)
class _Answer:
    fun: Callable[..., np.ndarray]
    tree: Any
    layout: Layout

    def prepare(self, lanes: tuple[int, ...], has_alive: bool) -> Callable[..., tuple[np.ndarray]]:
        split = lane_splitter(lanes, has_alive)

        def run(*arrays: np.ndarray) -> tuple[np.ndarray]:
            _, rest = split(arrays)
            return (self.fun(lanes, self.tree.unflatten(self.layout.unpack_numpy(rest))),)

        return run
