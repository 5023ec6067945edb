"""Counters near their ends. Nobody waits for 2**31 records: the stores start shortly before."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox._reduce import Reduction, resolve
from lox._storage.counts import MAX_RECORDS
from lox._storage.stores import Aval, Finished, ReduceStore, RingStore

RECORD = (Aval((), np.dtype("float32")),)
STEP = (Aval((), np.dtype("int32")),)


def reduction(how: Any) -> Reduction:
    found = resolve(how)
    assert found is not None
    return found


def finished(store: Any, start: int, number: int, keep: Any = None) -> Finished:
    """After ``number`` more records, 0, 1, 2, ..., of which ``keep`` says which there are; ``start`` were there before."""

    def one(state: Any, i: Any) -> Any:
        here = None if keep is None else jnp.asarray(keep)[i]
        return store.add(state, [lax.convert_element_type(i, np.float32)], [i] if store.steps else [], here), None

    @jax.jit
    def run() -> Any:
        state = (jnp.int32(start), *store.init()[1:])
        return store.finish(lax.scan(one, state, jnp.arange(number))[0])

    return run()


def due(start: int, number: int, every: int) -> list[int]:
    """Which of the next records an interval keeps."""
    return [i for i in range(number) if (start + i) % every == 0]


def counted(records: int, every: int, period: int) -> int:
    """What a counter says after so many records. If it was full, it is one of the last ``period`` numbers."""
    return MAX_RECORDS if records > MAX_RECORDS - period else -(-records // every)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("start", [0, MAX_RECORDS - 20, MAX_RECORDS])
def test_an_interval_goes_on_past_the_last_number(every, start):
    store = ReduceStore(reduction("last"), RECORD, STEP, every)
    done = finished(store, start, 29)
    assert done.leaves == [[due(start, 29, every)[-1]]]
    assert done.steps == [due(start, 29, every)[-1]]
    assert int(done.count) == counted(start + 29, every, every)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("start", [0, MAX_RECORDS - 30, MAX_RECORDS])
def test_a_ring_keeps_the_last_records_past_the_last_number(every, rows, start):
    store = RingStore(rows, RECORD, STEP, every)
    done = finished(store, start, 50)
    kept = due(start, 50, every)
    assert np.asarray(done.leaves[0]).tolist() == kept[-rows:]
    assert np.asarray(done.steps[0]).tolist() == kept[-rows:]
    assert int(done.count) == counted(start + 50, every, every * rows)


def test_a_count_stays_at_the_last_number_and_counts_exactly_to_it():
    store = ReduceStore(reduction("sum"), RECORD, ())
    for number, expected in ((1, -2), (2, -1), (3, 0), (4, 0), (9, 0)):
        assert int(finished(store, MAX_RECORDS - 3, number).count) == MAX_RECORDS + expected
    (_, reducer), *_ = reduction("count").reducers
    state = jnp.int32(MAX_RECORDS - 2)
    for expected in (-1, 0, 0, 0):
        state = reducer.update(state, jnp.float32(0))
        assert int(state) == MAX_RECORDS + expected


def test_records_that_are_not_there_are_not_counted_at_the_end_either():
    store = RingStore(2, RECORD, ())
    keep = [True, False, False, True, False, True, False]
    done = finished(store, MAX_RECORDS, len(keep), keep)
    assert np.asarray(done.leaves[0]).tolist() == [3, 5]
    assert int(done.count) == MAX_RECORDS
    assert (
        int(finished(ReduceStore(reduction("sum"), RECORD, ()), MAX_RECORDS - 3, len(keep), keep).count) == MAX_RECORDS
    )
    assert (
        int(finished(ReduceStore(reduction("sum"), RECORD, ()), MAX_RECORDS - 4, len(keep), keep).count) < MAX_RECORDS
    )


def _running(how: str, records: int) -> Any:
    """The state of a reduction after so many records that were all 0."""
    (_, reducer), *_ = reduction(how).reducers

    def with_count(part: Any) -> Any:
        high = np.float32(records)
        return dataclasses.replace(part, count=jnp.complex64(high + 1j * np.float32(records - int(high))))

    state = reducer.init(RECORD[0])
    return reducer, with_count(state) if how == "mean" else tuple(map(with_count, state))


@pytest.mark.parametrize("records", [2**24 - 7, 2**31 - 100, 2**47])
def test_means_and_deviations_hold_to_2_48_records(records):
    number, value = 5000, 1e6
    for how, expected in {
        "mean": number * value / (records + number),
        "std": value * np.sqrt(number / (records + number) - (number / (records + number)) ** 2),
    }.items():
        reducer, state = _running(how, records)
        after = jax.jit(lambda s, r=reducer: lax.fori_loop(0, number, lambda _, s: r.update(s, jnp.float32(value)), s))(
            state
        )
        np.testing.assert_allclose(reducer.finish(after), expected, rtol=1e-5)
        count = (after if how == "mean" else after[0]).count
        assert int(count.real) + int(count.imag) == records + number


def test_a_ring_and_an_interval_that_32_bits_cannot_tell_apart_are_refused():
    def fun(x):
        def body(x):
            lox.log({"x": x})
            return x - 1

        return lax.while_loop(lambda x: x > 0, body, x)

    for options in ({"capacity": 2**20, "interval": 2**11}, {"reduce": "mean", "interval": 2**30 + 1}):
        with pytest.raises(lox.LoxError, match=r"capacity times interval must be at most 2\*\*30, got \d+ times \d+"):
            jax.eval_shape(lox.spool(fun, **options), 3.0)
    logs = lox.spool(fun, capacity=2**10, interval=2**3)(20.0)[1].trim()
    assert np.asarray(logs["x"]).tolist() == [20, 12, 4]


@pytest.mark.parametrize("numpy", [np, jnp])
def test_the_counts_of_logs_in_sequence_end_at_the_same_number(numpy):
    def logs(count: Any) -> lox.logdict:
        return lox.logdict({"x": numpy.zeros(2)}, counts={"x": count})

    full, some = numpy.asarray(MAX_RECORDS, "int32"), numpy.asarray(5, "int32")
    for first, second, expected in (
        (full, some, MAX_RECORDS),
        (some, full, MAX_RECORDS),
        (some, some, 10),
        (3, some, 8),
    ):
        total = (logs(first) + logs(second)).counts["x"]
        assert (int(total), total.dtype) == (expected, np.int32)
    assert (logs(MAX_RECORDS) + logs(5)).counts["x"] == MAX_RECORDS + 5  # numbers of Python have no end
