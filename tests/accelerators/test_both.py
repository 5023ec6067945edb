"""What holds of programs compiled for a TPU and for a GPU alike. Skipped where the compiler of one is missing."""

import pytest
from jax.sharding import PartitionSpec

import lox
from tests.accelerators import cuda, programs, tpu
from tests.accelerators.programs import MATVEC, SHARD_MAPPED, TRAINING, UNTOUCHED, training_step, unmarked


@pytest.fixture(params=["libtpu", "jax_plugins.xla_cuda12"])
def target(request):
    pytest.importorskip(request.param, reason="compiles for this device: hatch run tpu:check, cuda:check")
    return {"libtpu": tpu.TPU, "jax_plugins.xla_cuda12": cuda.H100}[request.param]


@pytest.mark.parametrize("name", UNTOUCHED)
def test_marks_that_nobody_looks_at_change_nothing(target, name):
    fun, args = UNTOUCHED[name]
    assert target.compile(fun, *args).text == target.compile(unmarked(fun), *args).text


@pytest.mark.parametrize("options", [{}, {"reduce": "mean"}], ids=["rows", "mean"])
def test_a_data_parallel_step_has_no_collective_for_its_logs(target, options):
    split = [PartitionSpec(), PartitionSpec("d")]
    by_hand = target.compile(programs.training_step_by_hand(False), *TRAINING, number=4, specs=split)
    spooled = target.compile(lox.spool(training_step(True, False), **options), *TRAINING, number=4, specs=split)
    assert spooled.transfers == by_hand.transfers


def test_marks_of_a_shard_map_that_nobody_looks_at_change_nothing(target):
    specs = [PartitionSpec("d"), PartitionSpec()]
    marked = programs.shard_mapped(target.devices(), log=True)
    programs_ = [target.compile(f, *SHARD_MAPPED, number=4, specs=specs) for f in (marked, unmarked(marked))]
    assert programs_[0].text == programs_[1].text


def test_a_scan_of_a_shard_map_is_spooled_as_by_hand(target):
    specs = [PartitionSpec("d"), PartitionSpec()]
    by_hand, marked = (programs.shard_mapped(target.devices(), log) for log in (False, True))
    compiled = [target.compile(f, *SHARD_MAPPED, number=4, specs=specs) for f in (by_hand, lox.spool(marked))]
    assert compiled[0].transfers == compiled[1].transfers == {}
    assert compiled[1].peak <= 2.1 * compiled[0].peak
    for options in ({"reduce": "mean"}, {"interval": 10}, {"capacity": 100}):
        folded = target.compile(lox.spool(marked, **options), *SHARD_MAPPED, number=4, specs=specs)
        assert folded.transfers == {}


def test_vectors_that_are_split_stay_split(target):
    specs = [PartitionSpec("d"), PartitionSpec("d")]
    by_hand, with_lox = (target.compile(f, *MATVEC, number=4, specs=specs) for f in programs.split_vectors())
    assert with_lox.transfers == by_hand.transfers
