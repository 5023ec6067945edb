"""Logs that the device has not computed yet, on their way to the background thread.

A call from Python must not wait for the device. So lox copies such values on the device (so that nobody can donate or delete
them), starts the transfer to the host, and lets the background thread read them when they arrive. Results of a jitted function
need no copy: each is an array of its own, and nobody but the logger has those that are logs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox._host.delivery import Delivery
from lox.loggers._delivery.tables import check_whole, is_key, map_leaves, to_numpy

_LONGEST_NAP = 0.02  # seconds between two checks of the device, at most


def start(logs: lox.logdict) -> lox.logdict:
    """The logs as numpy, except values that the device has not computed yet: these are copies on the device."""
    waiting = [leaf for leaf in jax.tree_util.tree_leaves(logs) if _is_waited_for(leaf)]
    if not waiting:
        return map_leaves(logs, to_numpy)
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


def _copy(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Copies arrays on their own devices, with one dispatch for all arrays on the same devices."""
    local = [array if array.is_fully_addressable else array.addressable_data(0) for array in arrays]
    together: dict[Any, list[int]] = {}
    for i, array in enumerate(local):
        together.setdefault(frozenset(array.sharding.device_set), []).append(i)
    copies: dict[int, jax.Array] = {}
    for places in together.values():
        copies.update(zip(places, _copy_together([local[i] for i in places]), strict=True))
    for array in copies.values():
        array.copy_to_host_async()
    return [copies[i] for i in range(len(local))]


@jax.jit
def _copy_together(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


class UnderWay(Delivery):
    """A delivery of logs that are partly still on the device."""

    __slots__ = ()


def delivery_of(run: Any, logs: lox.logdict) -> Delivery:
    """A delivery of the logs that `start` returned."""
    on_device = any(isinstance(leaf, jax.Array) for leaf in jax.tree_util.tree_leaves(logs))
    return (UnderWay if on_device else Delivery)((), np.asarray(True), np.asarray(run), logs)


def delivery_as_it_is(run: np.ndarray, logs: lox.logdict) -> UnderWay:
    """A delivery of logs that nobody else has, such as results of a compiled program. The background thread does the rest."""
    return UnderWay((), _ALIVE, run, logs)


_ALIVE = np.asarray(True)


def must_be_read_now(logs: lox.logdict) -> bool:
    """Whether logs hold anything that is no array, or PRNG keys."""
    return any(map(_must_be_read_now, logs.values()))


def _must_be_read_now(value: Any) -> bool:
    if isinstance(value, jax.Array):
        return is_key(value)
    return any(not isinstance(leaf, jax.Array) or is_key(leaf) for leaf in jax.tree_util.tree_leaves(value))


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
