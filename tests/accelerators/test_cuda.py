"""What lox promises of programs that are compiled for a GPU. ``hatch run cuda:check``; skipped where the plugin is missing."""

import jax
import pytest
from jax.sharding import PartitionSpec

import lox
import lox.loggers

pytest.importorskip("jax_plugins.xla_cuda12", reason="JAX's CUDA plugin compiles for GPUs: hatch run cuda:check")

from tests.accelerators import cuda, programs
from tests.accelerators.cuda import H100, kernels
from tests.accelerators.programs import MATVEC, marked, scalars


@pytest.mark.parametrize("pair", programs.pairs(), ids=lambda pair: pair.name)
def test_spool_costs_at_most_what_the_program_written_by_hand_costs(pair):
    by_hand, with_lox = (H100.compile(f, *pair.args) for f in (pair.by_hand, pair.with_lox))
    assert kernels(with_lox) <= kernels(by_hand)
    assert with_lox.peak <= 2.1 * by_hand.peak
    assert with_lox.transfers == by_hand.transfers


def test_a_scan_of_a_shard_map_costs_what_the_program_written_by_hand_costs():
    pair = programs.pair_on_devices(H100.devices())
    by_hand, with_lox = (H100.compile(f, *pair.args, **programs.ON_DEVICES) for f in (pair.by_hand, pair.with_lox))
    assert kernels(with_lox) <= kernels(by_hand)
    assert with_lox.peak <= 2.1 * by_hand.peak
    assert with_lox.transfers == by_hand.transfers == {}


def test_a_body_of_scalar_code_has_few_kernels():
    """Unpacked, each value that is logged is a kernel."""
    by_hand, with_lox = programs.scalar_code(8)
    assert kernels(H100.compile(with_lox, *programs.SCALAR)) <= 4
    assert kernels(H100.compile(by_hand, *programs.SCALAR)) >= 8


@pytest.mark.parametrize("name", programs.TAPPED)
def test_a_tap_is_one_host_call_of_one_operand_for_each_place(name):
    fun, args, places = programs.TAPPED[name]
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(lox.tap(fun, lambda logs: None), *args)
    assert cuda.host_calls(tapped) == [1] * places


@pytest.mark.parametrize("name", programs.TAPPED)
def test_a_tap_of_a_logger_is_one_host_call_of_one_operand_for_each_place(name):
    fun, args, places = programs.TAPPED[name]
    with lox.loggers.create("memory") as logger:
        state = logger.init(jax.random.key(0))
        with cuda.host_calls_that_go_nowhere():
            tapped = H100.compile(programs.tapped_by(logger, fun), state, *args)
    assert cuda.host_calls(tapped) == [1] * places


def test_a_scan_of_a_shard_map_is_one_host_call_of_each_device():
    specs = [PartitionSpec("d"), PartitionSpec()]
    with cuda.host_calls_that_go_nowhere():
        tapped = lox.tap(programs.shard_mapped(H100.devices(), log=True), lambda logs: None)
        tapped = H100.compile(tapped, *programs.SHARD_MAPPED, number=4, specs=specs)
    assert cuda.host_calls(tapped) == [1]


def test_a_logger_that_taps_a_scan_of_a_shard_map_is_one_host_call_of_each_device():
    fun, specs = programs.shard_mapped(H100.devices(), log=True), [PartitionSpec(), PartitionSpec("d"), PartitionSpec()]
    with lox.loggers.create("memory") as logger, cuda.host_calls_that_go_nowhere():
        args = logger.init(jax.random.key(0)), *programs.SHARD_MAPPED
        tapped = H100.compile(programs.tapped_by(logger, fun), *args, number=4, specs=specs)
    assert cuda.host_calls(tapped) == [1]


@pytest.mark.parametrize("lanes", [0, 64])
def test_a_tap_of_several_places_is_a_call_of_one_operand_for_each(lanes):
    """Their calls are chained, by a token among the words."""
    fun, args = programs.with_run_ids(programs.marked_around(scalars(8)), lanes)
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(fun, *args)
    assert cuda.host_calls(tapped) == [1, 1, 1]


@pytest.mark.parametrize("lanes", [0, 64])
def test_what_an_iteration_logs_is_one_operand_with_the_run_that_it_is_for(lanes):
    fun, args = programs.with_run_ids(programs.marked_apart(scalars(8)), lanes)
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(fun, *args)
    assert cuda.host_calls(tapped) == [1]


@pytest.mark.parametrize("marks", [marked, programs.marked_apart], ids=["one mark", "eight marks"])
@pytest.mark.parametrize("interval", [100, 128])
def test_an_interval_asks_nothing_in_the_loop(interval, marks):
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(lox.tap(marks(scalars(8)), lambda logs: None, interval=interval), *MATVEC)
    assert cuda.conditions_in_loops(tapped) == 0
    # One call after a chunk, and one for the iterations that are left.
    assert cuda.host_calls(tapped) == [1] * (1 if programs.STEPS % interval == 0 else 2)
    assert kernels(tapped) <= kernels(H100.compile(programs.scan_outputs(scalars(8)), *MATVEC))


@pytest.mark.parametrize("interval", [100, 128])
@pytest.mark.parametrize("place", ["around", "inside"])
def test_an_interval_asks_nothing_in_a_loop_around_or_inside_a_shard_map(place, interval):
    devices, specs = H100.devices(), [PartitionSpec("d"), PartitionSpec()]
    fun = programs.shard_mapped(devices, log=True) if place == "around" else programs.looped_on_each(devices)
    with cuda.host_calls_that_go_nowhere():
        tapped = lox.tap(fun, lambda logs: None, interval=interval)
        tapped = H100.compile(tapped, *programs.SHARD_MAPPED, number=4, specs=specs)
        alone = lox.tap(marked(lambda x: [x.sum(), x.max()]), lambda logs: None, interval=interval)
        alone = H100.compile(alone, *MATVEC)
    assert cuda.conditions_in_loops(tapped) == 0
    assert cuda.host_calls(tapped) == [1] * (1 if programs.STEPS % interval == 0 else 2)
    assert not tapped.transfers
    assert cuda.kernels_of_a_step(tapped) == cuda.kernels_of_a_step(alone)


@pytest.mark.parametrize("batch", [100, 128])
def test_a_batch_asks_nothing_in_the_loop(batch):
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(lox.tap(marked(scalars(8)), lambda logs: None, batch=batch), *MATVEC)
    assert cuda.conditions_in_loops(tapped) == 0
    # What is left after whole chunks is a call of its own.
    assert cuda.host_calls(tapped) == ([1] if programs.STEPS % batch == 0 else [1, 1])


@pytest.mark.parametrize("options", [{"interval": 100}, {"batch": 100}, {"batch": 8, "interval": 12}], ids=str)
@pytest.mark.parametrize("name", programs.UNSTEADY)
def test_no_loop_asks_whatever_it_records(name, options):
    with cuda.host_calls_that_go_nowhere():
        tapped = H100.compile(lox.tap(programs.UNSTEADY[name], lambda logs: None, **options), *MATVEC)
    assert cuda.conditions_in_loops(tapped) == 0


@pytest.mark.parametrize("batch", [100, 128])
@pytest.mark.parametrize("place", ["around", "inside"])
def test_a_batch_asks_nothing_in_a_loop_around_or_inside_a_shard_map(place, batch):
    devices, specs = H100.devices(), [PartitionSpec("d"), PartitionSpec()]
    fun = programs.shard_mapped(devices, log=True) if place == "around" else programs.looped_on_each(devices)
    with cuda.host_calls_that_go_nowhere():
        tapped = lox.tap(fun, lambda logs: None, batch=batch)
        tapped = H100.compile(tapped, *programs.SHARD_MAPPED, number=4, specs=specs)
    assert cuda.conditions_in_loops(tapped) == 0
    assert not tapped.transfers
    assert len(cuda.host_calls(tapped)) == (1 if programs.STEPS % batch == 0 else 2)
