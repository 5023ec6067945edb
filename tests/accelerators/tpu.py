"""Compiling for a TPU on a machine that has none, and reading what the compiler says of the program.

``libtpu`` compiles ahead of time for a topology. Nothing is run: what is checked is the compiled program.
"""

from __future__ import annotations

import functools
import os
import re
from typing import Any

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask

from jax.experimental import topologies

from tests.accelerators.compiled import Program, Target

TOPOLOGY = "v5e:2x2"


@functools.cache
def devices() -> Any:
    return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices


TPU = Target(devices)


def cycles(program: Program) -> int:
    """Of one iteration of the most expensive loop, as XLA estimates them; of the whole program where it has no loop."""
    return max(
        sum(int(found) for line in body for found in re.findall(r'"estimated_cycles":"(\d+)"', line))
        for body in program.loop_bodies()
    )
