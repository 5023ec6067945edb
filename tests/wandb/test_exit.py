"""How a process ends decides nothing: each of these ends without `close`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.wandb.offline import all_rows

SCRIPT = """
import os, signal, sys, time
import jax, jax.numpy as jnp
from lox.wandb import WandbLogger

logger = WandbLogger(project="p", mode="offline", path=sys.argv[1])
state = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))

@jax.jit
def train(state, begin):
    def step(carry, i):
        jax.vmap(lambda state, x: logger.log(state, {"x": x}, step=i))(state, jnp.arange(3) + i * 3)
        return carry, None
    return jax.lax.scan(step, 0, begin + jnp.arange(100))

for begin in range(0, 400, 100):
    train(state, begin)
print(*[run.id for run in logger.runs], flush=True)
"""

ENDINGS = {
    "falls off the end": "",
    "sys.exit": "sys.exit(0)",
    "an exception": "raise RuntimeError('training failed')",
    "logger deleted": "del logger, train",
    "wandb.run of the user": "import wandb; wandb.init(project='own', mode='offline', dir=sys.argv[1])",
    "killed after flush": "logger.flush(); os.kill(os.getpid(), signal.SIGKILL)",
}


def run_script(code, tmp_path):
    return subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "WANDB_SILENT": "true"},
    )


@pytest.mark.every(2)
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_lost(tmp_path, ending):
    done = run_script(SCRIPT + ENDINGS[ending], tmp_path)
    expected = {"an exception": 1, "killed after flush": -signal.SIGKILL}.get(ending, 0)
    assert done.returncode == expected, done.stderr
    ids = done.stdout.split()[:3]
    assert len(set(ids)) == 3
    for lane, run_id in enumerate(ids):
        assert all_rows(tmp_path, run_id) == [{"step": i, "x": lane + i * 3} for i in range(400)]


def test_a_killed_run_is_resumed_where_it_was(tmp_path):
    """Killed without any flush, a run keeps what wandb had written by then; resumed, it has each row once."""
    code = SCRIPT.replace("path=sys.argv[1])", 'path=sys.argv[1], if_exists="resume")')
    killed = run_script(code + "time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run_script(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == killed.stdout
    for lane, run_id in enumerate(done.stdout.split()):
        assert all_rows(tmp_path, run_id) == [{"step": i, "x": lane + i * 3} for i in range(400)]


def test_a_forked_child_neither_writes_nor_hangs(tmp_path):
    code = textwrap.dedent("""
        first = jax.tree.map(lambda x: x[0], state)
        jax.effects_barrier()
        pid = os.fork()
        if pid == 0:
            logger.log(first, {"x": -1})
            logger.flush()
            logger.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    """)
    done = run_script(SCRIPT + code, tmp_path)
    assert done.returncode == 0, done.stderr
    for lane, run_id in enumerate(done.stdout.split()[:3]):
        assert all_rows(tmp_path, run_id) == [{"step": i, "x": lane + i * 3} for i in range(400)]
