"""How much travels packed as words, on which platform, and why.

A program is traced before it is certain where it will run. lox looks, in this order, at the mesh of the arguments, the mesh that
is set (``jax.set_mesh``), and the default device. If the guess is wrong, results are the same and only the cost differs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from lox._jax import sharding

# A leaf with more elements than this gains nothing from being packed, and the copy would cost.
MAX_PACKED_ELEMENTS = 64


@dataclasses.dataclass(frozen=True)
class Packing:
    """The most elements that a leaf may have to be packed, in each place; 0 packs nothing.

    Attributes:
      rows: for what a loop returns in each iteration, and for the rings that it carries.
      folds: for what reducers fold: leaves of one dtype become one vector.
      host: for the operands of a host call.
      fused: a loop body of scalar code returns up to this many leaves unpacked.
      turned: whether all rows are transposed into columns before they are unpacked, which copies them.
    """

    rows: int = MAX_PACKED_ELEMENTS
    folds: int = MAX_PACKED_ELEMENTS
    host: int = MAX_PACKED_ELEMENTS
    fused: int = 0
    turned: bool = False

    def where_values_may_be_split(self) -> Packing:
        """Packs only scalars: the compiler may have split larger values between devices, and packing would gather the parts."""
        few = {name: min(getattr(self, name), 1) for name in ("rows", "folds", "host")}
        return dataclasses.replace(self, **few)


NO_PACKING = Packing(0, 0, 0)

_PACKING = {
    # XLA's CPU compiler makes a kernel for each output of a loop body: 8 unpacked scalars take four times as long. A body
    # of scalar code is one kernel, which writes a few outputs as cheaply as one. Unpacking is faster from columns.
    "cpu": Packing(fused=12, turned=True),
    # A fusion writes any number of outputs at no cost, and a row of more than 16 words is padded to 128: packed, 64
    # scalars take three times as long.
    "tpu": Packing(rows=0, folds=0),
}
# GPUs: each output is a kernel, even in scalar code.
_ELSEWHERE = Packing()


def packing_for(arrays: Iterable[Any]) -> Packing:
    """The packing for the platform that a program with these arguments, or types of arguments, will run on."""
    mesh = sharding.mesh_of(arrays)
    platform = sharding.platform_of(mesh)
    packing = _PACKING.get(platform, _ELSEWHERE)
    return packing.where_values_may_be_split() if sharding.device_count(mesh) > 1 else packing
