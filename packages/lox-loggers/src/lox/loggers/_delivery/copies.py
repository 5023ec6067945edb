"""Logs that the device has not computed yet, on their way to the background thread.

A call from Python must not wait for the device. So lox copies such values on the device (so that nobody can donate or delete
them), starts the transfer to the host, and lets the background thread read them when they arrive. Results of a jitted function
need no copy: each is an array of its own, and nobody but the logger has those that are logs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox._host.delivery import Delivery
from lox._interpret.returned import Returned
from lox.loggers._delivery.tables import check_whole, is_key, map_leaves, to_numpy

_LONGEST_NAP = 0.02  # seconds between two checks of the device, at most


def start(run: Any, logs: lox.logdict) -> Delivery:
    """A delivery of the logs as numpy, except values that the device has not computed yet: these are copies on the device."""
    leaves, tree = jax.tree_util.tree_flatten(logs)
    waiting = [leaf for leaf in leaves if _is_waited_for(leaf)]
    kind = UnderWay if waiting else Delivery
    return kind((), np.asarray(True), np.asarray(run), _with_copies(logs, waiting, len(leaves), tree))


def _with_copies(logs: lox.logdict, waiting: list[jax.Array], number: int, tree: Any) -> lox.logdict:
    if not waiting:
        return map_leaves(logs, to_numpy)
    if len(waiting) == number and jax.process_count() == 1:
        copied: lox.logdict = tree.unflatten(_copy(waiting))
        return copied
    own = dict(zip(map(id, waiting), _copy(waiting), strict=True))

    def convert(name: str, leaf: Any) -> Any:
        if id(leaf) not in own:
            return to_numpy(name, leaf)
        check_whole(name, leaf)
        return own[id(leaf)]

    return map_leaves(logs, convert)


def _is_waited_for(leaf: Any) -> bool:
    # Reading PRNG keys takes a computation, so these few are read at once.
    return isinstance(leaf, jax.Array) and not is_key(leaf) and not _is_ready(leaf)


def _is_ready(array: Any) -> bool:  # arrays have this method, but jax.Array does not declare it
    return bool(array.is_ready())


def _copy(arrays: list[jax.Array]) -> list[jax.Array]:
    """Copies arrays on their own devices. The background thread starts the transfers."""
    if jax.process_count() > 1:  # what other processes have parts of cannot be copied here alone
        return _copy_apart([array if array.is_fully_addressable else array.addressable_data(0) for array in arrays])
    try:
        return _copy_together(arrays)
    except ValueError:  # they are on different devices
        return _copy_apart(arrays)


def _copy_apart(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The same, with one dispatch for all arrays on the same devices."""
    together: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        together.setdefault(frozenset(array.sharding.device_set), []).append(i)
    copies: dict[int, jax.Array] = {}
    for places in together.values():
        copies.update(zip(places, _copy_together([arrays[i] for i in places]), strict=True))
    return [copies[i] for i in range(len(arrays))]


@jax.jit
def _copy_together(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


class UnderWay(Delivery):
    """A delivery of logs that are partly still on the device."""

    __slots__ = ()


class Results(NamedTuple):
    """What a compiled program has returned for a run. Nobody else has these arrays, so the background thread does the rest."""

    run: np.ndarray
    returned: Returned

    def delivery(self) -> UnderWay:
        return UnderWay((), _ALIVE, self.run, self.returned.logs())


_ALIVE = np.asarray(True)


def opened(item: Delivery | Results) -> Delivery:
    """What waits in the queue, as a delivery."""
    return item.delivery() if isinstance(item, Results) else item


def begin(delivery: Delivery) -> None:
    """Starts the transfers of a delivery, so that those of several overlap."""
    if isinstance(delivery, UnderWay):
        for leaf in jax.tree_util.tree_leaves(delivery.logs):
            if isinstance(leaf, jax.Array):
                with contextlib.suppress(Exception):  # of a program that has failed: told when it is read
                    leaf.copy_to_host_async()


def finish(delivery: UnderWay, still_waiting: Callable[[], object]) -> Delivery:
    """The same delivery as numpy. Waits for the device, and calls `still_waiting` from time to time."""
    logs = delivery.logs
    nap = 0.0005
    for leaf in jax.tree_util.tree_leaves(logs):
        while isinstance(leaf, jax.Array) and not _is_ready(leaf):
            still_waiting()
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
    logs = map_leaves(logs, lambda name, leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf)
    return Delivery(*delivery._replace(logs=logs))
