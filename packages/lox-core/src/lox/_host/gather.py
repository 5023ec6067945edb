"""Putting together what the devices of a shard_map deliver, each in a host call of its own."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lox._host.delivery import Delivery
from lox._logdict import logdict


class DeviceGather:
    """Waits for the n-th delivery of every device of this host, and hands them on as one.

    Used only where every device makes the same number of records, so the n-th ones belong together. The mesh axes lead the
    values, after the lane axes of a vmap. With several processes, a host sees only its own devices: the mesh axes then have
    the sizes of its part of the mesh.

    Args:
      sizes: the sizes of the mesh axes.
      callers: how many devices call from this host.
    """

    def __init__(self, handle: Any, sizes: tuple[int, ...], callers: int) -> None:
        self.shape = sizes, callers
        self._handle = handle
        self._waiting: dict[int, deque[Delivery]] = {}
        self._lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        place, operands = delivery.operands
        with self._lock:
            self._waiting.setdefault(int(np.ravel(place)[0]), deque()).append(delivery._replace(operands=operands))
            if len(self._waiting) < self.shape[1] or not all(self._waiting.values()):
                return
            places = sorted(self._waiting)
            together = [self._waiting[place].popleft() for place in places]
            # Hand it on before joining the next one, so that records stay in order.
            self._handle(_join(together, _shape_of(places, self.shape[0])))


def _shape_of(places: list[int], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the part of a mesh that these places form; one axis if they are not a block."""
    if len(places) == math.prod(sizes):
        return sizes
    shape = tuple(len(set(along.tolist())) for along in np.unravel_index(places, sizes))
    return shape if math.prod(shape) == len(places) else (len(places),)


def _join(deliveries: list[Delivery], shape: tuple[int, ...]) -> Delivery:
    first = deliveries[0]
    # After the lanes and, of a stack of records, their axis.
    place = len(first.lanes) + bool(first.logs.stacked)

    def stack(*leaves: np.ndarray) -> np.ndarray:
        joined = np.stack(leaves, axis=place)
        return joined.reshape(joined.shape[:place] + shape + joined.shape[place + 1 :])

    if not first.logs.stacked:
        return first._replace(logs=jax.tree.map(stack, *(delivery.logs for delivery in deliveries)))
    parts = [(dict(delivery.logs), delivery.logs.steps) for delivery in deliveries]
    values, steps = jax.tree.map(stack, *parts)
    logs = first.logs
    return first._replace(logs=logdict._make(values, steps, logs.counts, logs.stacked, logs._bounds))


@dataclasses.dataclass(frozen=True)
class EachDevice:
    """Hands on what each device delivers, by itself. In a shard_map, the number of the device comes with every delivery.

    Attributes:
      num_axes: how many mesh axes lead the values. Here they have size 1.
    """

    handle: Callable[[Delivery], None]
    num_axes: int

    def __call__(self, delivery: Delivery) -> None:
        _, operands = delivery.operands
        self.handle(_join([delivery._replace(operands=operands)], (1,) * self.num_axes))


@dataclasses.dataclass(frozen=True)
class AsRows:
    """Hands on single records as stacks of one. In a shard_map there is no buffer that ``batch=`` could fill."""

    handle: Callable[[Delivery], None]

    def __call__(self, delivery: Delivery) -> None:
        axis, logs = len(delivery.lanes), delivery.logs
        rows = jax.tree.map(lambda leaf: np.expand_dims(leaf, axis), logs)
        self.handle(delivery._replace(logs=logdict(dict(rows), rows.steps, logs.counts, stacked=logs.keys())))


def callers_here(devices: Any, axes: tuple[tuple[str, int], ...]) -> int:
    """How many devices of this process make host calls in a shard_map over ``axes``.

    Args:
      devices: the mesh with its devices, or None if only its axes are known while tracing.
    """
    total = math.prod(size for _, size in axes)
    if jax.process_count() == 1:
        return total
    if devices is None:
        # JAX only makes such a mesh if the devices are spread evenly over the processes.
        return max(total // jax.process_count(), 1)
    manual = {axis for axis, _ in axes}
    # Along axes that are left to the compiler, the first device calls for all of them.
    return sum(
        device.process_index == jax.process_index()
        and all(index == 0 for axis, index in zip(devices.axis_names, place, strict=True) if axis not in manual)
        for place, device in np.ndenumerate(devices.devices)
    )
