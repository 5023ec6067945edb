"""What lox promises of programs that are compiled for a TPU. ``hatch run tpu:check``; skipped where libtpu is missing."""

import jax
import pytest
from jax.sharding import PartitionSpec

import lox
import lox.loggers

pytest.importorskip("libtpu", reason="libtpu compiles for TPUs: hatch run tpu:check")

from tests.accelerators import programs
from tests.accelerators.programs import MATVEC, marked, scalars
from tests.accelerators.tpu import TPU, cycles

PAIRS = programs.pairs()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_spool_costs_what_the_program_written_by_hand_costs(pair):
    by_hand, with_lox = (TPU.compile(f, *pair.args) for f in (pair.by_hand, pair.with_lox))
    assert cycles(with_lox) <= 1.1 * cycles(by_hand)
    assert with_lox.peak <= 2.1 * by_hand.peak
    assert with_lox.transfers == by_hand.transfers


def test_a_scan_of_a_shard_map_costs_what_the_program_written_by_hand_costs():
    pair = programs.pair_on_devices(TPU.devices())
    by_hand, with_lox = (TPU.compile(f, *pair.args, **programs.ON_DEVICES) for f in (pair.by_hand, pair.with_lox))
    assert cycles(with_lox) <= 1.1 * cycles(by_hand)
    assert with_lox.peak <= 2.1 * by_hand.peak
    assert with_lox.transfers == by_hand.transfers == {}


@pytest.mark.parametrize("name", ["8 scalars, interval", "8 scalars, where"])
def test_records_that_all_have_room_take_no_memory_but_their_own(name):
    """In a ring they would have to be put in order."""
    (pair,) = (pair for pair in PAIRS if pair.name == name)
    by_hand, with_lox = (TPU.compile(f, *pair.args) for f in (pair.by_hand, pair.with_lox))
    assert with_lox.peak <= 1.05 * by_hand.peak
    assert " gather(" not in with_lox.text


@pytest.mark.parametrize("steps", [100, 10_000])
def test_what_folds_set_aside_in_a_loop_around_a_shard_map_does_not_grow(steps, monkeypatch):
    """The page On accelerators has these figures: lox's folds are scalars of each device, and those by hand are not."""
    monkeypatch.setattr(programs, "STEPS", steps)
    options = {"number": 4, "specs": [PartitionSpec("d"), PartitionSpec()]}

    def peak(fun):
        return TPU.compile(fun, *programs.SHARD_MAPPED, **options).peak / 10**6

    marked_loop = programs.shard_mapped(TPU.devices(), log=True)
    assert peak(lox.spool(marked_loop, reduce="mean")) <= 0.43
    assert peak(programs.shard_mapped_means(TPU.devices())) <= 0.04
    assert peak(lox.spool(marked_loop, interval=10)) <= 0.21


def transfers(places):
    """Each place sends. If there are several, the program also says when it begins and ends. Nothing is received."""
    return {"send": 1 if places == 1 else places + 2}


@pytest.mark.parametrize("name", programs.TAPPED)
def test_a_tap_is_one_send_for_each_place(name):
    fun, args, places = programs.TAPPED[name]
    assert TPU.compile(lox.tap(fun, lambda logs: None), *args).transfers == transfers(places)


@pytest.mark.parametrize("name", programs.TAPPED)
def test_a_tap_of_a_logger_is_one_send_for_each_place(name):
    fun, args, places = programs.TAPPED[name]
    with lox.loggers.create("memory") as logger:
        state = logger.init(jax.random.key(0))
        assert TPU.compile(programs.tapped_by(logger, fun), state, *args).transfers == transfers(places)


@pytest.mark.parametrize("remat", [False, True])
def test_no_loop_waits_for_the_host(remat):
    tapped = TPU.compile(lox.tap(programs.training_step(True, remat), lambda logs: None), *programs.TRAINING)
    in_loops = [line for body in tapped.loop_bodies() for line in body]
    assert any(" send(" in line for line in in_loops)
    assert not any(" recv(" in line for line in in_loops)


def test_a_tap_of_a_data_parallel_step_has_no_collective_for_it():
    fun, options = programs.training_step(True, False), {"number": 4, "specs": [PartitionSpec(), PartitionSpec("d")]}
    spooled = TPU.compile(lox.spool(fun), *programs.TRAINING, **options)
    tapped = TPU.compile(lox.tap(fun, lambda logs: None), *programs.TRAINING, **options)
    assert tapped.transfers == {**transfers(2), "all-reduce": spooled.transfers["all-reduce"]}


@pytest.mark.parametrize("options", [{"interval": 10}, {"interval": 3}], ids=str)
def test_an_interval_is_one_send(options):
    tapped = lox.tap(marked(scalars(8)), lambda logs: None, **options)
    assert TPU.compile(tapped, *MATVEC).transfers == {"send": 1}


def test_a_scan_of_a_shard_map_is_one_send_of_each_device():
    tapped = lox.tap(programs.shard_mapped(TPU.devices(), log=True), lambda logs: None)
    specs = [PartitionSpec("d"), PartitionSpec()]
    assert TPU.compile(tapped, *programs.SHARD_MAPPED, number=4, specs=specs).transfers == {"send": 1}


def test_a_logger_that_taps_a_scan_of_a_shard_map_is_one_send_of_each_device():
    fun, specs = programs.shard_mapped(TPU.devices(), log=True), [PartitionSpec(), PartitionSpec("d"), PartitionSpec()]
    with lox.loggers.create("memory") as logger:
        args = logger.init(jax.random.key(0)), *programs.SHARD_MAPPED
        assert TPU.compile(programs.tapped_by(logger, fun), *args, number=4, specs=specs).transfers == {"send": 1}


@pytest.mark.parametrize("name", programs.SEVERAL_PLACES)
def test_lanes_with_several_places_wait_for_nothing(name):
    wrap, fun, args, places = programs.SEVERAL_PLACES[name]
    assert TPU.compile(wrap(lox.tap(fun, lambda logs: None)), *args).transfers == transfers(places)


@pytest.mark.parametrize("outside", [True, False])
def test_several_places_on_each_device_of_a_shard_map_wait_for_nothing(outside):
    fun, tap = programs.marked_around(scalars(8)), lambda f: lox.tap(f, lambda logs: None)
    mapped = tap(programs.on_each(TPU.devices(), fun)) if outside else programs.on_each(TPU.devices(), tap(fun))
    specs = [PartitionSpec("d"), PartitionSpec()]
    assert TPU.compile(mapped, *programs.SHARD_MAPPED, number=4, specs=specs).transfers == transfers(3)


def test_buffers_are_sent_in_the_loop_and_at_the_end():
    tapped = lox.tap(marked(scalars(8)), lambda logs: None, batch=128)
    assert TPU.compile(tapped, *MATVEC).transfers == transfers(2)


@pytest.mark.parametrize("lanes", [0, 64])
def test_the_run_of_a_record_is_sent_with_it(lanes):
    tapped, args = programs.with_run_ids(programs.marked_apart(scalars(8)), lanes)
    assert TPU.compile(tapped, *args).transfers == {"send": 1}
