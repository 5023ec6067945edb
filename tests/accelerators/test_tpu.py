"""What lox promises of programs that are compiled for a TPU. ``hatch run tpu:check``; skipped where libtpu is missing."""

import pytest

import lox

pytest.importorskip("libtpu", reason="libtpu compiles for TPUs: hatch run tpu:check")

from tests.accelerators import programs
from tests.accelerators.programs import MATVEC, marked, scalars
from tests.accelerators.tpu import TPU, cycles

PAIRS = programs.pairs()
# What a compiled program needs besides its data, however long the loop.
SCRATCH = 2**18


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_spool_costs_what_the_program_written_by_hand_costs(pair):
    by_hand, with_lox = (TPU.compile(f, *pair.args) for f in (pair.by_hand, pair.with_lox))
    assert cycles(with_lox) <= 1.1 * cycles(by_hand)
    assert with_lox.peak <= 2.1 * by_hand.peak + SCRATCH
    assert with_lox.transfers == by_hand.transfers


@pytest.mark.parametrize("number", [1, 8, 64])
def test_a_tap_is_one_send_and_waits_for_nothing(number):
    tapped = lox.tap(marked(scalars(number)), lambda logs: None)
    assert TPU.compile(tapped, *MATVEC).transfers == {"send": 1}


def test_several_marks_of_an_iteration_are_one_send():
    tapped = lox.tap(programs.marked_apart(scalars(8)), lambda logs: None)
    assert TPU.compile(tapped, *MATVEC).transfers == {"send": 1}


@pytest.mark.parametrize("lanes", [0, 64])
def test_the_run_of_a_record_is_sent_with_it(lanes):
    tapped, args = programs.with_run_ids(programs.marked_apart(scalars(8)), lanes)
    assert TPU.compile(tapped, *args).transfers == {"send": 1}
