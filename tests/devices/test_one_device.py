"""On one device small values travel packed in one vector, which with several would gather what is split."""

import os
import subprocess
import sys
import textwrap

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
assert jax.device_count() == 1
import lox
from lox._storage.packing import packing_for
from lox._storage.words import Layout

assert Layout.of([jnp.zeros(3), jnp.zeros(())], packing_for(()).host).packed == (True, True)

def f(x):
    def body(c, i):
        c = jnp.tanh(c @ jnp.ones((3, 3)) + i)
        lox.log({"c": c, "sum": c.sum(), "flags": c > 0, "half": c.astype(jnp.bfloat16)}, step=i)
        return c, (c, c.sum())
    return jax.lax.scan(body, x, jnp.arange(5.0))[1]

x = jnp.arange(3.0) / 10
(c, total), logs = jax.jit(lox.spool(f))(x)
np.testing.assert_array_equal(logs["c"], c)
np.testing.assert_array_equal(logs["sum"], total)
np.testing.assert_array_equal(logs["flags"], c > 0)
np.testing.assert_array_equal(logs["half"], c.astype(jnp.bfloat16))
_, reduced = jax.jit(lox.spool(f, argnames=("c", "sum"), reduce=("mean", "last")))(x)
np.testing.assert_allclose(reduced["c"]["mean"], c.mean(0), rtol=1e-6)
np.testing.assert_array_equal(reduced["sum"]["last"], total[-1])
_, every = jax.jit(lox.spool(f, interval=2))(x)
np.testing.assert_array_equal(every["c"], c[::2])
for batch in (None, 2):
    got = []
    jax.jit(lox.tap(f, got.append, batch=batch))(x)
    jax.effects_barrier()
    rows = np.concatenate([r["c"] for r in got]) if batch else np.stack([r["c"] for r in got])
    np.testing.assert_array_equal(rows, c)
"""


def test_packed_vectors_are_what_was_logged():
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
