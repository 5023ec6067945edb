"""Where the records of a tap go: in which form, to whom, and how calls follow each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lox._host.chunk import UnlessEmpty
from lox._host.gather import AsRows, DeviceGather, EachDevice, callers_here
from lox._host.order import Sequence
from lox._host.streams import BatchStore, Line, Stream
from lox._host.targets import Form
from lox._interpret.collect import Frame
from lox._interpret.cuts import Label
from lox._interpret.plan import KeyPlan
from lox._marks.mark import Mark
from lox._tapping.kept import TOKEN, TapOptions
from lox._types import Array


class Routes:
    """From the places of a program to the host.

    Args:
      handle: who receives what the program sends.
      plans: of all keys.
      sequence: puts calls in order, if tokens count them.
    """

    def __init__(
        self, options: TapOptions, handle: Any, plans: Mapping[str, KeyPlan], sequence: Sequence | None
    ) -> None:
        self._options, self._handle, self._plans, self._sequence = options, handle, plans, sequence
        self._gathers: dict[Any, DeviceGather] = {}

    def form(self, mark: Mark, in_lanes: bool) -> Form:
        return Form(tuple(self._options.prefix + key for key in mark.keys), mark.trees, mark.axes, in_lanes)

    def line(self, frame: Frame) -> Line:
        operands = (place_in(frame.mesh), frame.env) if frame.mesh else frame.env
        # Batches keep the order of each mark only, unless calls are numbered.
        waits = not self._options.batch
        return Line(operands, frame.alive, self._options.ordered, self._sequence, waits)

    def stream(self, frame: Frame, label: Label, store: BatchStore, maybe_empty: bool = False) -> Stream:
        """Where a buffer goes."""
        handle = self._on_mesh(frame, label, self._handle)
        form, token = self.form(label[0], store.in_lanes), frame.state.get(TOKEN)
        return Stream(UnlessEmpty(handle) if maybe_empty else handle, form, self.line(frame), token)

    def handle(self, frame: Frame, label: Label) -> Any:
        """Who receives a single record."""
        alone = frame.mesh and self._options.batch
        return self._on_mesh(frame, label, AsRows(self._handle) if alone else self._handle)

    def _on_mesh(self, frame: Frame, label: Label, handle: Any) -> Any:
        """``handle``, behind what puts the values of the devices of a shard_map together."""
        if not frame.mesh:
            return handle
        sizes = tuple(size for _, size in frame.mesh)
        if self._is_certain(frame, label[0]):
            # Every device makes the call: put their values together.
            gather = DeviceGather(handle, sizes, callers_here(frame.devices, frame.mesh))
            return self._gathers.setdefault((label, gather.shape, type(handle)), gather)
        return EachDevice(handle, len(sizes))

    def _is_certain(self, frame: Frame, mark: Mark) -> bool:
        """Whether every device makes the same calls for a mark. With an interval they depend on all marks of its keys."""
        certain = frame.certain is not None and frame.certain.issuperset(mark.keys)
        return certain and (not self._options.interval or all(self._plans[key].usage.is_certain for key in mark.keys))


def place_in(mesh: tuple[tuple[str, int], ...]) -> Array:
    """The number of this device in the mesh."""
    place = jnp.int32(0)
    for axis, size in mesh:
        place = place * size + jax.lax.axis_index(axis)
    return place
