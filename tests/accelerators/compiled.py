"""Programs compiled for devices that are not there, and what can be read from them."""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TRANSFERS = ("send", "recv", "all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


class Program(NamedTuple):
    """What the compiler says of a program."""

    text: str  # the optimised program, without what only names its source
    peak: int  # bytes

    @property
    def transfers(self) -> dict[str, int]:
        found = collections.Counter(re.findall(r" ([a-z\-]+?)(?:-start)?\(", self.text))
        return {name: found[name] for name in TRANSFERS if found[name]}

    def loop_bodies(self) -> list[list[str]]:
        """The lines of the body of each loop; those of all computations where there is no loop."""
        computations = self._computations()
        bodies = set(re.findall(r"body=%?([\w.\-]+)", self.text)) or computations.keys()
        return [computations[body] for body in bodies]

    def _computations(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        name = ""
        for line in self.text.splitlines():
            begins = re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line)
            if begins and not line.startswith(" "):
                name = begins[1]
                found[name] = []
            elif name:
                found[name].append(line)
        return found


class Target(NamedTuple):
    """What is compiled for."""

    devices: Callable[[], Sequence[Any]]
    options: Callable[[], dict[str, Any]] = dict  # of the compiler

    def compile(self, fun: Callable[..., Any], *args: Any, number: int = 1, specs: Any = None) -> Program:
        """For so many devices; arguments are replicated unless ``specs`` says how they are split."""
        place = Mesh(np.array(self.devices()[:number]), ("d",))
        specs = [PartitionSpec()] * len(args) if specs is None else specs
        types = [
            jax.tree.map(functools.partial(_type, place, spec), arg) for arg, spec in zip(args, specs, strict=True)
        ]
        compiled = jax.jit(fun).lower(*types).compile(self.options())
        memory = compiled.memory_analysis()
        peak = memory.temp_size_in_bytes + memory.output_size_in_bytes + memory.argument_size_in_bytes
        return Program(_without_sources(compiled.as_text()), peak)


def _type(place: Mesh, spec: PartitionSpec, array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(place, spec))


def _without_sources(text: str) -> str:
    text = re.sub(r",? ?metadata=\{[^}]*\}", "", text)
    return re.sub(r"(?ms)^(FileNames|FunctionNames|FileLocations|StackFrames)\n.*?\n\n", "", text)
