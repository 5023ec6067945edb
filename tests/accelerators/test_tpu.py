"""What lox promises of programs that are compiled for a TPU. ``hatch run tpu:check``; skipped where libtpu is missing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import lox

pytest.importorskip("libtpu", reason="libtpu compiles for TPUs: hatch run tpu:check")

from tests.accelerators import programs, tpu
from tests.accelerators.programs import MATVEC, TRAINING, marked, scalars, training_step

PAIRS = programs.pairs()
# What a compiled program needs besides its data: up to 64 KB for each scalar that is folded, however long the loop.
SCRATCH = 5 * 2**20


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_spool_costs_what_the_program_written_by_hand_costs(pair):
    by_hand, with_lox = (tpu.compile_for(1, f, *pair.args) for f in (pair.by_hand, pair.with_lox))
    assert with_lox.cycles <= 1.1 * by_hand.cycles
    assert with_lox.peak <= 2.1 * by_hand.peak + SCRATCH
    assert with_lox.transfers == by_hand.transfers


def unmarked(fun):
    """The same program, with calls of lox.log that do nothing."""

    @functools.wraps(fun)
    def f(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lox, "log", lambda *args, **kwargs: None)
            return fun(*args)

    return f


UNTOUCHED = {
    "scan": (marked(scalars(8)), MATVEC),
    "gradient": (jax.grad(lambda x, w: marked(scalars(8))(x, w).sum()), MATVEC),
    "lanes": (programs.in_lanes(marked(scalars(8))), programs.LANES),
    "transformer": (training_step(True, False), TRAINING),
    "transformer, remat": (training_step(True, True), TRAINING),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_marks_that_nobody_looks_at_change_nothing(name):
    fun, args = UNTOUCHED[name]
    assert tpu.compile_for(1, fun, *args).text == tpu.compile_for(1, unmarked(fun), *args).text


@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}], ids=["rows", "mean"])
def test_a_data_parallel_step_has_no_collective_for_its_logs(options):
    split = [PartitionSpec(), PartitionSpec("d")]
    by_hand = tpu.compile_for(4, programs.training_step_by_hand(False), *TRAINING, specs=split)
    spooled = tpu.compile_for(4, lox.spool(training_step(True, False), **options), *TRAINING, specs=split)
    assert spooled.transfers == by_hand.transfers


def test_vectors_that_are_split_stay_split():
    def body(x, weights, log):
        y = jnp.tanh(weights @ x)
        if log:
            lox.log({"y": y, "z": 2 * y})
        return y, None if log else (y, 2 * y)

    def loop(log):
        return lambda x, weights: jax.lax.scan(lambda x, _: body(x, weights, log), x, None, length=100)

    args, specs = (np.zeros(64, np.float32), np.zeros((64, 64), np.float32)), [PartitionSpec("d"), PartitionSpec("d")]
    by_hand = tpu.compile_for(4, loop(False), *args, specs=specs)
    assert tpu.compile_for(4, lox.spool(loop(True)), *args, specs=specs).transfers == by_hand.transfers


@pytest.mark.parametrize("number", [1, 8, 64])
def test_a_tap_is_one_send_and_waits_for_nothing(number):
    tapped = lox.tap(marked(scalars(number)), lambda logs: None)
    assert tpu.compile_for(1, tapped, *MATVEC).transfers == {"send": 1}
