"""Other people's libraries, where they install: jax-tap, jax-tqdm, and oryx in an environment of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs
from benchmarks.harness import Figure, Samples
from benchmarks.topics.tapping import ignore, until_delivered

FEW, MANY, EVERY = 500, 10_000, 100


def figures(quick: bool) -> Iterator[Figure]:
    if quick:
        return
    if importlib.util.find_spec("jaxtap"):
        yield _jax_tap()
    if importlib.util.find_spec("jax_tqdm"):
        yield _jax_tqdm()
    yield from _oryx()


def _jax_tap() -> Figure:
    import jaxtap

    step, x = programs.matvec(8)

    def select(carry: Any) -> Any:
        return {f"k{i}": carry[0][7 * i % programs.SIZE] for i in range(8)}

    watched = jaxtap.verbose(programs.plain(step, FEW), on_step=ignore, select=select)
    samples = until_delivered({"tap": lox.tap(programs.marked(step, FEW), ignore), "jax-tap": watched}, x, seconds=4)
    return samples.figure("tap", "jax-tap", topic="peers", case=f"matvec, 8 scalars, T={FEW}")


def _jax_tqdm() -> Figure:
    """A progress bar that moves every hundred steps, against a tap of eight scalars every hundred steps."""
    import jax_tqdm

    step, x = programs.matvec(8)
    with open(os.devnull, "w") as nowhere:
        bar = jax_tqdm.scan_tqdm(MANY, print_rate=EVERY, tqdm_type="std", file=nowhere)
        body = bar(lambda x, i: (step(x)[0], None))
        samples = until_delivered(
            {
                f"tap(interval={EVERY})": lox.tap(programs.marked(step, MANY), ignore, interval=EVERY),
                "jax-tqdm": lambda x: jax.lax.scan(body, x, jnp.arange(MANY))[0],
            },
            x,
            seconds=4,
        )
    return samples.figure(f"tap(interval={EVERY})", "jax-tqdm", topic="peers", case=f"matvec, T={MANY}, every {EVERY}")


def _oryx() -> Iterator[Figure]:
    """oryx needs an older JAX than lox, so each is compared with scan outputs under its own JAX."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        return
    script = Path(__file__).parents[1] / "oryx_peer.py"
    needs = ["--with", "oryx==0.2.9", "--with", "jax==0.4.38"]
    command = [uv, "run", "--quiet", "--no-project", "--python", "3.11", *needs, "python", str(script)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    except (OSError, subprocess.SubprocessError):
        return  # no network, or no such Python: the row is left out
    for case, times in json.loads(done.stdout).items():
        samples = Samples(times)
        yield samples.figure("harvest", "scan outputs", topic="oryx", case=case, note="oryx 0.2.9, JAX 0.4.38")
