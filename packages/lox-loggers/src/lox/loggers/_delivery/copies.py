"""Logs that the device has not computed yet, on their way to the background thread.

A call from Python must not wait for the device. So lox copies such values on the device (so that nobody can donate or delete
them), starts the transfer to the host, and lets the background thread read them when they arrive. Results of a jitted function
need no copy: each is an array of its own, and nobody but the logger has those that are logs. Without jit, the same array can be
a log and an argument or a result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox._host.delivery import Delivery
from lox._interpret.returned import Returned
from lox.loggers._delivery.tables import check_whole, is_key, map_leaves, map_record, to_numpy

_LONGEST_NAP = 0.02  # seconds between two checks of the device, at most
_ALIVE = np.asarray(True)


def start(run: Any, logs: lox.logdict) -> Delivery:
    """A delivery of the logs as numpy, except values that the device has not computed yet: these are copies on the device."""
    waiting = _not_computed((list(logs.values()), logs.steps, logs.counts))
    return _delivery(run, map_leaves(logs, _converter(waiting)), waiting)


def start_record(run: Any, data: Mapping[str, Any], steps: Mapping[str, Any]) -> Delivery:
    """The same for one record."""
    waiting = _not_computed((list(data.values()), list(steps.values())))
    return _delivery(run, map_record(data, steps, _converter(waiting)), waiting)


def _delivery(run: Any, logs: lox.logdict, waiting: dict[int, jax.Array]) -> Delivery:
    kind = UnderWay if waiting else Delivery
    return kind((), _ALIVE, np.asarray(run), logs)


def _not_computed(tree: Any) -> dict[int, jax.Array]:
    """The arrays that reading would have to wait for, by their ids."""
    try:
        leaves = jax.tree_util.tree_leaves(tree)
    except ValueError:  # not a pytree: the conversion reports that
        return {}
    return {id(leaf): leaf for leaf in leaves if isinstance(leaf, jax.Array) and not _is_ready(leaf)}


def _is_ready(array: jax.Array) -> bool:
    words: Any = jax.random.key_data(array) if is_key(array) else array  # jax.Array does not declare this method
    return bool(words.is_ready())


def _converter(waiting: dict[int, jax.Array]) -> Callable[[str, Any], Any]:
    """Converts leaves to numpy, and those that are waited for to copies on the device."""
    if not waiting:
        return to_numpy
    copied = dict(zip(waiting, _copy(list(waiting.values())), strict=True))
    several_processes = jax.process_count() > 1

    def convert(name: str, leaf: Any) -> Any:
        if id(leaf) not in copied:
            return to_numpy(name, leaf)
        if several_processes:
            check_whole(name, leaf)
        return copied[id(leaf)]

    return convert


def own(returned: Returned) -> Returned:
    """The same logs in arrays that nobody else can donate or delete."""
    return Returned(returned.form, _copy(returned.leaves))


def _copy(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Copies arrays on their own devices. The background thread starts the transfers."""
    if jax.process_count() > 1:  # what other processes have parts of cannot be copied here alone
        return _copy_apart([array if array.is_fully_addressable else array.addressable_data(0) for array in arrays])
    try:
        return _copy_together(arrays)
    except ValueError:  # they are on different devices
        return _copy_apart(arrays)


def _copy_apart(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The same, with one dispatch for all arrays of the same sharding: even the order of their devices has to be the same."""
    together: dict[Any, list[int]] = {}
    for i, array in enumerate(arrays):
        together.setdefault(array.sharding, []).append(i)
    copies: dict[int, jax.Array] = {}
    for places in together.values():
        copies.update(zip(places, _copy_together([arrays[i] for i in places]), strict=True))
    return [copies[i] for i in range(len(arrays))]


@jax.jit
def _copy_together(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


class UnderWay(Delivery):
    """A delivery of logs that are partly still on the device."""

    __slots__ = ()


class Results(NamedTuple):
    """What a program has returned for a run. Nobody else has these arrays, so the background thread does the rest."""

    run: np.ndarray
    returned: Returned

    def delivery(self) -> UnderWay:
        return UnderWay((), _ALIVE, self.run, self.returned.logs())


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
    return Delivery(*delivery._replace(logs=map_leaves(logs, _read)))


def _read(name: str, leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    return to_numpy(name, leaf) if is_key(leaf) else np.asarray(leaf)
