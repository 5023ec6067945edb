"""Reading many runs costs about what reading their bytes costs."""

import contextlib
import io
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers._cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """100 runs of 20 keys."""
    path = tmp_path_factory.mktemp("runs")

    def train(scale):
        def step(carry, i):
            lox.log({f"metric{number}": scale * number + i for number in range(20)}, step=i)
            return carry, None

        return jax.lax.scan(step, 0, jnp.arange(200))[0]

    with lox.loggers.SaveLogger(path) as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 100))
        jax.jit(jax.vmap(lambda state, scale: logger.spool(train, state)(scale)))(states, jnp.arange(100.0))
    return path


def cost(function):
    """The least processor time of five calls."""
    costs = []
    for _ in range(5):
        start = time.process_time()
        function()
        costs.append(time.process_time() - start)
    return min(costs)


def read_bytes(path):
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".npy"):
                np.load(os.path.join(folder, name))


def show(path):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["show", str(path)]) == 0


def test_show_takes_at_most_half_again_the_time_of_reading_with_numpy(runs):
    """Of 20 * 100 files of values and as many of steps."""
    assert cost(lambda: show(runs)) <= 1.5 * cost(lambda: read_bytes(runs))


def test_keys_that_are_not_wanted_are_not_read(runs):
    whole = cost(lambda: lox.loggers.load(runs))
    assert cost(lambda: lox.loggers.load(runs, keys="metric7")) < 0.6 * whole
