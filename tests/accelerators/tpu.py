"""Compiling for a TPU on a machine that has none, and reading what the compiler says of the program.

``libtpu`` compiles ahead of time for a topology. Nothing is run: what is checked is the compiled program.
"""

from __future__ import annotations

import collections
import functools
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TOPOLOGY = "v5e:2x2"
TRANSFERS = ("send", "recv", "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@functools.cache
def devices() -> Any:
    return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY).devices


def mesh(number: int = 1) -> Mesh:
    return Mesh(np.array(devices()[:number]), ("d",))


class Program(NamedTuple):
    """What the compiler says of a program."""

    cycles: int  # of one iteration of its most expensive loop, estimated; of the whole program where it has no loop
    peak: int  # bytes
    transfers: dict[str, int]
    text: str  # the optimised program, without what only names its source


def compile_for(number: int, fun: Callable[..., Any], *args: Any, specs: Any = None) -> Program:
    """``fun`` compiled for so many devices; arguments are replicated unless ``specs`` says how they are split."""
    place = mesh(number)
    specs = [PartitionSpec()] * len(args) if specs is None else specs
    types = [jax.tree.map(functools.partial(_type, place, spec), arg) for arg, spec in zip(args, specs, strict=True)]
    compiled = jax.jit(fun).lower(*types).compile()
    text, memory = compiled.as_text(), compiled.memory_analysis()
    peak = memory.temp_size_in_bytes + memory.output_size_in_bytes + memory.argument_size_in_bytes
    return Program(_cycles(text), peak, _transfers(text), _bare(text))


def _type(place: Mesh, spec: PartitionSpec, array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(place, spec))


def _computations(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        begins = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
        if begins and not line.startswith(" "):
            name = begins[1]
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def _cycles(text: str) -> int:
    computations = _computations(text)
    bodies = set(re.findall(r"body=%?([\w.\-]+)", text)) or computations.keys()
    costs = [
        sum(int(cycles) for line in computations[body] for cycles in re.findall(r'"estimated_cycles":"(\d+)"', line))
        for body in bodies
    ]
    return max(costs)


def _transfers(text: str) -> dict[str, int]:
    found = collections.Counter(re.findall(r" ([a-z\-]+?)(?:-start)?\(", text))
    return {name: found[name] for name in TRANSFERS if found[name]}


def _bare(text: str) -> str:
    without_sources = re.sub(r", metadata=\{[^}]*\}", "", text)
    return re.sub(r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n", "", without_sources)
