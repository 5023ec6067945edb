"""``spool`` on eight devices against the program that returns the same values by hand.

Devices are fixed when JAX starts, so that the measurement runs in a process of its own, with eight devices of the CPU.
On fewer cores than devices the times are those of devices that take turns: ratios hold, times do not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lox
from benchmarks.harness import Figure, in_turns

DEVICES, STEPS = 8, 50


def figures(quick: bool) -> Iterator[Figure]:
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(DEVICES), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", __name__, *(["--quick"] if quick else [])]
    lines = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    for line in lines.splitlines():
        yield Figure(**json.loads(line))


def _measure(quick: bool) -> Iterator[Figure]:
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.ones((DEVICES * 64, 256)), NamedSharding(mesh, P("d")))
    w = jax.device_put(jnp.full(256, 0.01), NamedSharding(mesh, P()))
    for case, program in (("jit, split data", _whole), ("shard_map, one record a device", _on_devices(mesh))):
        ours = jax.jit(lox.spool(lambda w, x, run=program: run(w, x, _log)))
        by_hand = jax.jit(lambda w, x, run=program: run(w, x, _return))
        thunks = {"spool": partial(ours, w, x), "values returned by hand": partial(by_hand, w, x)}
        samples = in_turns(thunks, seconds=2.0 if quick else 6.0)
        yield samples.figure(
            "spool", "values returned by hand", topic="devices", case=f"{case}, {DEVICES} devices", target=1.05
        )


# What a step does with the values it shows: it returns them, or logs them and returns nothing.


def _return(values: dict[str, Any]) -> dict[str, Any] | None:
    return values


def _log(values: dict[str, Any]) -> dict[str, Any] | None:
    lox.log(values)
    return None


def _loss(w: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w) - 1) ** 2)


def _whole(w: Any, x: Any, show: Callable[..., Any]) -> Any:
    def step(w: Any, _: Any) -> Any:
        loss, gradient = jax.value_and_grad(_loss)(w, x)
        return w - 0.1 * gradient, show({"loss": loss, "norm": jnp.linalg.norm(gradient)})

    return jax.lax.scan(step, w, None, length=STEPS)


def _on_devices(mesh: Any) -> Callable[..., Any]:
    def run(w: Any, x: Any, show: Callable[..., Any]) -> Any:
        def local(w: Any, x: Any) -> Any:
            def step(w: Any, _: Any) -> Any:
                own, gradient = jax.value_and_grad(_loss)(w, x)
                gradient = jax.lax.pmean(gradient, "d")
                shown = show({"own": own, "norm": jnp.linalg.norm(gradient)})
                return w - 0.1 * gradient, shown

            w, shown = jax.lax.scan(step, w, None, length=STEPS)
            return w, jax.tree.map(lambda rows: rows[:, None], shown)

        specs = {"in_specs": (P(), P("d")), "out_specs": (P(), P(None, "d")), "check_vma": False}
        return jax.shard_map(local, mesh=mesh, **specs)(w, x)

    return run


if __name__ == "__main__":
    for figure in _measure("--quick" in sys.argv):
        print(json.dumps(dataclasses.asdict(figure)))
