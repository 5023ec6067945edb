"""Putting together what the devices of a shard_map deliver, each in a host call of its own."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from lox._host import Delivery


class DeviceGather:
    """Waits for the n-th delivery of every device of this host, and hands them on as one.

    Used only where every device makes the same number of records, so that the n-th ones belong together. The values get
    the mesh axes in front, behind the lane axes of a vmap. With several processes, a host sees its own devices: the
    mesh axes then have the sizes of its part of the mesh.
    """

    def __init__(self, handle: Any, sizes: tuple[int, ...]) -> None:
        self._handle = handle
        self._sizes = sizes
        self._waiting: dict[int, deque[Delivery]] = {}
        self._lock = threading.Lock()

    def __call__(self, delivery: Delivery) -> None:
        place, operands = delivery.operands
        with self._lock:
            self._waiting.setdefault(int(np.ravel(place)[0]), deque()).append(delivery._replace(operands=operands))
            # Devices that are not of this process never call.
            if len(self._waiting) < self._local_devices() or not all(self._waiting.values()):
                return
            together = [self._waiting[place].popleft() for place in sorted(self._waiting)]
        self._handle(self._join(together))

    def _local_devices(self) -> int:
        total = int(np.prod(self._sizes))
        processes = jax.process_count()
        return total if processes == 1 else max(total // processes, 1)

    def _join(self, deliveries: list[Delivery]) -> Delivery:
        first = deliveries[0]
        num_lanes = len(first.lanes)
        shape = self._sizes if len(deliveries) == int(np.prod(self._sizes)) else (len(deliveries),)

        def stack(*leaves: np.ndarray) -> np.ndarray:
            joined = np.stack(leaves, axis=num_lanes)
            return joined.reshape(joined.shape[:num_lanes] + shape + joined.shape[num_lanes + 1 :])

        logs = jax.tree.map(stack, *(delivery.logs for delivery in deliveries))
        return first._replace(logs=logs)
