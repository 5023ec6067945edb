"""A second process finds its programs in JAX's persistent compilation cache, whatever its runs are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax

# JAX keeps no program with a host call before that: it looked for host callbacks, and refused.
KEEPS_HOST_CALLS = jax.__version_info__ >= (0, 11)
WITHOUT_HOST_CALLS = ("spool", "spool of jit", "logger.spool")

SCRIPT = """
import json, sys
import jax, jax.monitoring, jax.numpy as jnp
import lox, lox.loggers

seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event.rsplit("/", 1)[-1]))

def step(x):
    def body(x, i):
        x = jnp.sin(x) + i
        lox.log({"x": x, "i": i}, step=i)
        return x, None
    return jax.lax.scan(body, x, jnp.arange(4))[0]

received = []
logger = lox.loggers.MemoryLogger(name=sys.argv[1])
run = logger.init(jax.random.key(7))

def records_so_far():
    (logs,) = logger.logs.values()
    return logs["i"].tolist() if "i" in logs else []

x = jnp.float32(1)
tapped = lambda x: lox.tap(step, received.append)(x)
forms = {
    "spool": lambda: jax.jit(lox.spool(step))(x)[1],
    "spool of jit": lambda: lox.spool(jax.jit(step))(x)[1],
    "tap": lambda: jax.jit(tapped)(x),
    "tap of jit": lambda: lox.tap(jax.jit(step), received.append)(x),
    "logger.spool": lambda: logger.spool(jax.jit(step), run)(x),
    "logger.spool in jit": lambda: jax.jit(lambda run, x: logger.spool(step, run)(x))(run, x),
    "logger.tap": lambda: logger.tap(jax.jit(step), run)(x),
    "logger.tap in jit": lambda: jax.jit(lambda run, x: logger.tap(step, run)(x))(run, x),
}
found = {}
for name, form in forms.items():
    del seen[:], received[:]
    before = records_so_far()
    out = jax.block_until_ready(form())
    jax.effects_barrier()
    if name.startswith("spool"):
        records = out["i"].tolist()
    elif "logger" in name:
        records = records_so_far()[len(before):]
    else:
        records = [int(logs["i"]) for logs in received]
    found[name] = {"hits": seen.count("cache_hits"), "misses": seen.count("cache_misses"), "records": records}
assert list(logger.logs) == [sys.argv[1]]
print(json.dumps(found))
"""


def run(cache: Path, names: str) -> dict[str, dict[str, object]]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", SCRIPT, names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_finds_its_programs_and_delivers_its_own_records(tmp_path):
    first, second = run(tmp_path, "first"), run(tmp_path, "second")
    for found in (first, second):
        assert all(form["records"] == [0, 1, 2, 3] for form in found.values()), found
    kept = tuple(second) if KEEPS_HOST_CALLS else WITHOUT_HOST_CALLS
    assert all(first[name]["misses"] for name in kept)
    assert {name: second[name]["misses"] for name in kept} == dict.fromkeys(kept, 0)
    assert all(second[name]["hits"] for name in kept)
