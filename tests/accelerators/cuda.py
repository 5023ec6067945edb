"""Compiling for an H100 on a machine without a GPU, and reading what the compiler made of the program.

JAX's CUDA plugin compiles for a description of the device. Nothing is run, and no kernel is tuned.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental import topologies

from tests.accelerators.compiled import Program, Target

DESCRIPTION = Path(__file__).with_name("h100.txtpb")
KERNEL = re.compile(r" (fusion|custom-call|copy|dynamic-update-slice|dynamic-slice|sort)\(")


@functools.cache
def devices() -> Any:
    """Four of one machine."""
    return topologies.get_topology_desc(
        platform="cuda", topology_name="h100", target_config=DESCRIPTION.read_text(), topology="1x1x4"
    ).devices


def options() -> dict[str, Any]:
    """Where NVIDIA's compiler is; and no kernel is timed, for which it would take a device."""
    nvcc = importlib.util.find_spec("nvidia.cuda_nvcc")
    assert nvcc is not None
    assert nvcc.submodule_search_locations
    return {"xla_gpu_cuda_data_dir": nvcc.submodule_search_locations[0], "xla_gpu_autotune_level": 0}


H100 = Target(devices, options)


def kernels(program: Program) -> int:
    """That one iteration of the longest loop starts; those of the whole program where it has no loop."""
    return max(sum(bool(KERNEL.search(line)) for line in body) for body in program.loop_bodies())


def kernels_of_a_step(program: Program) -> int:
    """The same for loops that hold no other loop: not what is started between chunks of iterations."""
    steps = [body for body in program.loop_bodies() if not any(" while(" in line for line in body)]
    return max(sum(bool(KERNEL.search(line)) for line in body) for body in steps)


def conditions_in_loops(program: Program) -> int:
    return sum(" conditional(" in line for body in program.loop_bodies() for line in body)


def host_calls(program: Program) -> list[int]:
    """For each call of the host, how many operands it sends."""
    found = re.findall(r" custom-call\(([^)]*)\), custom_call_target=\"xla_ffi_python_gpu_callback\"", program.text)
    return [operands.count("%") for operands in found]


@contextlib.contextmanager
def host_calls_that_go_nowhere() -> Iterator[None]:
    """JAX asks the device's client about host calls, and there is none; the compiler needs no callback behind them."""
    compile_and_load = compiler.backend_compile_and_load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlir.ModuleContext, "get_backend", lambda self, optional=False: None)
        patch.setattr(compiler, "backend_compile_and_load", lambda *args: compile_and_load(*args[:4], []))
        yield
