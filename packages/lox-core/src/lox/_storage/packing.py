"""How much travels packed as words, on which platform, and why; and what else depends on the platform.

A program is traced before it is certain where it will run. lox looks, in this order, at the mesh of the arguments, the mesh that
is set (``jax.set_mesh``), and the default device. If the guess is wrong, results are the same and only the cost differs.
Operands of host calls are packed where the program is lowered, and there it is certain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from lox._jax import sharding

# A leaf with more elements than this gains nothing from being packed, and the copy would cost.
MAX_PACKED_ELEMENTS = 64
# On accelerators each operand of a host call is a transfer, which takes longer than copying 64 KB on the device.
MAX_SENT_TOGETHER = 2**14

# More operations than any loop has.
UNLIMITED = 2**31


@dataclasses.dataclass(frozen=True)
class Packing:
    """The most elements that a leaf may have to be packed, in each place; 0 packs nothing.

    Attributes:
      rows: for what a loop returns in each iteration, and for the rings that it carries.
      folds: for what reducers fold: leaves of one dtype become one vector.
      host: for the operands of a host call.
      beside: whether a host call sends what is not part of the record (the run, which lanes are alive, the token that keeps calls
        in order) in operands of their own.
      fused: a loop body of scalar code returns up to this many leaves unpacked.
      batches: for ``tap(batch=)``, a loop of up to this many operations is cut into chunks where each fills its buffers; without
        a limit, wherever that can be done. Other loops ask in each iteration whether there is something to send.
      intervals: the same for ``tap(interval=)``, whose records then arrive later.
      mixed: whether narrow and wide leaves are packed together, in words as wide as the widest.
      numbered: whether host calls that are made in order are numbered, for the host to put them in order, so that none waits
        for the last one.
      turned: whether all rows are transposed into columns before they are unpacked, which copies them.
    """

    rows: int = MAX_PACKED_ELEMENTS
    folds: int = MAX_PACKED_ELEMENTS
    host: int = MAX_SENT_TOGETHER
    fused: int = 0
    batches: int = UNLIMITED
    intervals: int = UNLIMITED
    mixed: bool = False
    numbered: bool = False
    turned: bool = False
    beside: bool = False

    def where_values_may_be_split(self) -> Packing:
        """Packs only scalars: the compiler may have split larger values between devices, and packing would gather the parts."""
        few = {name: min(getattr(self, name), 1) for name in ("rows", "folds", "host")}
        return dataclasses.replace(self, **few)


NO_PACKING = Packing(0, 0, 0, batches=0, intervals=0)

_PACKING = {
    # XLA's CPU compiler makes a kernel for each output of a loop body: 8 unpacked scalars take four times as long. A body
    # of scalar code is one kernel, which writes a few outputs as cheaply as one. Unpacking is faster from columns. One more
    # operand of a host call costs less than packing it for each call. A condition takes 70 ns, and the last chunk of a loop,
    # which may be shorter, is compiled by itself: chunks are for small steps.
    "cpu": Packing(host=MAX_PACKED_ELEMENTS, fused=12, batches=100, intervals=0, mixed=True, turned=True, beside=True),
    # A fusion writes any number of outputs at no cost, and a row of more than 16 words is padded to 128: packed, 64
    # scalars take three times as long. Each operand of a host call is a transfer, and what the host returns, the core waits for.
    "tpu": Packing(rows=0, folds=0, batches=0, intervals=0, numbered=True),
}
# GPUs: each output is a kernel, even in scalar code. Narrow values in wide words take up memory. A condition in a loop makes
# the device wait for the host, whatever it decides.
_ELSEWHERE = Packing()


def packing_for(arrays: Iterable[Any]) -> Packing:
    """The packing for the platform that a program with these arguments, or types of arguments, will run on."""
    mesh = sharding.mesh_of(arrays)
    return packing_on(sharding.platform_of(mesh), sharding.device_count(mesh) > 1)


def packing_on(platform: str, may_be_split: bool) -> Packing:
    """For a program that is for this platform, where values may be split between devices or not."""
    packing = _PACKING.get(platform, _ELSEWHERE)
    return packing.where_values_may_be_split() if may_be_split else packing
