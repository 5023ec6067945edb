"""Marks in real programs: spooled, tapped, in batches, under `jit`, `vmap` and `grad`."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.wandb import WandbKeyError
from tests.wandb.offline import file_of, metrics, rows

SEEDS = 3


def train(key, rate, length=12):
    """Two marks for each step, one for every fourth, and one when all is over."""

    def update(weight, step):
        loss, gradient = jax.value_and_grad(lambda w: jnp.sum((w - 1.0) ** 2))(weight)
        lox.log({"train/loss": loss}, step=step, epoch=step // 4)
        weight = weight - rate * gradient
        lox.log({"train/weight": {"mean": weight.mean()}}, step=step, epoch=step // 4)
        lox.log({"eval/return": loss * 2}, where=step % 4 == 0, episode=step // 4)
        return weight, loss

    weight, losses = jax.lax.scan(update, jax.random.normal(key, (5,)), jnp.arange(length))
    lox.log({"final": weight.sum()})
    return losses


def expected(losses, means, final):
    stepped = [
        {"step": i, "epoch": i // 4, "train/loss": loss, "train/weight/mean": mean}
        for i, (loss, mean) in enumerate(zip(losses.tolist(), means.tolist(), strict=True))
    ]
    episodes = [{"episode": i // 4, "eval/return": losses[i].item() * 2} for i in range(0, len(losses), 4)]
    return stepped, episodes, [{"final": final.item()}]


@pytest.mark.parametrize("how", ["spool", "tap", "tap in batches"])
def test_sweep(make, how):
    logger = make()
    keys = jax.random.split(jax.random.key(0), SEEDS)
    rates = jnp.array([0.1, 0.2, 0.3])
    state = jax.vmap(logger.init)(keys, {"rate": rates})
    options = {"batch": 5} if how == "tap in batches" else {}
    transform = getattr(logger, how.split()[0])
    jax.jit(jax.vmap(lambda state, key, rate: transform(train, state, **options)(key, rate)))(state, keys, rates)
    runs = logger.runs
    logger.close()

    _, logs = jax.jit(jax.vmap(lox.spool(train)))(keys, rates)
    for lane, run in enumerate(runs):
        found = rows(file_of(run))
        losses, means = np.asarray(logs["train/loss"][lane]), np.asarray(logs["train/weight"]["mean"][lane])
        stepped, episodes, final = expected(losses, means, np.asarray(logs["final"][lane]))
        assert sorted((row for row in found if "step" in row), key=lambda row: row["step"]) == stepped
        assert [row for row in found if "episode" in row] == episodes
        assert [row for row in found if "final" in row] == final
        assert len(found) == len(stepped) + len(episodes) + len(final)
        declared = metrics(file_of(run))
        assert declared["train/loss"].step_metric == declared["train/weight/mean"].step_metric == "step"
        assert declared["eval/return"].step_metric == "episode"


@pytest.mark.parametrize("how", ["spool", "tap"])
def test_reserved_keys_are_refused_before_the_program_runs(make, how):
    logger = make()
    state = logger.init(jax.random.key(0))
    ran = []

    def program(x):
        jax.debug.callback(lambda: ran.append(True))
        lox.log({"_x": x})
        return x

    with pytest.raises(WandbKeyError, match="'_x' begins with an underscore"):
        jax.jit(getattr(logger, how)(program, state))(1.0)
    jax.effects_barrier()
    assert not ran


def test_the_program_does_not_wait_for_wandb(make):
    """While wandb takes its time over a row, the program runs on."""
    logger = make()
    state = logger.init(jax.random.key(0))
    (run,) = logger.runs
    begun, go_on = threading.Event(), threading.Event()
    (writer,) = logger._writers
    write = writer.write

    def slow(logs):
        begun.set()
        assert go_on.wait(60)
        write(logs)

    writer.write = slow
    program = jax.jit(logger.tap(lambda x: (lox.log({"x": x}, step=x), x + 1)[1], state))
    for step in range(20):
        assert int(program(step)) == step + 1
    assert begun.wait(60)
    assert not rows(file_of(run))
    go_on.set()
    logger.close()
    assert rows(file_of(run)) == [{"step": step, "x": step} for step in range(20)]


def test_beside_other_backends(make):
    """One traversal for several loggers; wandb gets its rows like the others."""
    wandb_logger, memory = make(), lox.loggers.create("memory")
    logger = lox.loggers.MultiLogger(wandb_logger, memory)
    keys = jax.random.split(jax.random.key(0), 2)
    states = jax.vmap(logger.init)(keys)
    jax.jit(jax.vmap(lambda state, key: logger.tap(train, state)(key, 0.1)))(states, keys)
    runs = wandb_logger.runs
    logger.close()
    assert len(runs) == 2
    for run in runs:
        assert [row["step"] for row in rows(file_of(run)) if "step" in row] == list(range(12))
