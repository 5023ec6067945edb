"""Records that wait are written together: in fewer calls, and with nothing else to be told from what is written."""

import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerWarning, MemoryLogger, RecordError
from tests.loggers.recording import Collecting, scan, wait_until


class Held:
    """Lets nothing be written while it is open, so that all that is logged in it waits at the same time."""

    def __init__(self, logger, state):
        self._logger, self._state = logger, state

    def __enter__(self):
        self._logger.flush()
        self._logger.gate.clear()
        # The write that waits at the gate looks like no other.
        self._logger.log(self._state, {"first": np.zeros((3, 1, 4))})
        wait_until(lambda: self._logger.at_gate)

    def __exit__(self, *exc_info):
        self._logger.gate.set()


class Gated(Collecting):
    at_gate = False

    def open(self, run):
        self.calls.append(("open", run))
        return GatedWriter(self, run.name)


class GatedWriter:
    def __init__(self, logger, name):
        self.logger, self.name = logger, name

    def write(self, logs):
        self.logger.at_gate = not self.logger.gate.is_set()
        self.logger.gate.wait()
        self.logger.at_gate = False
        self.check(logs)
        if "first" not in logs:
            self.logger.calls.append(("write", self.name, logs))

    def check(self, logs):
        pass

    def flush(self):
        self.logger.calls.append(("flush", self.name))

    close = flush


class Picky(Gated):
    """Stores no negative numbers, and says so in the way of its choice."""

    error = RecordError

    def open(self, run):
        return PickyWriter(self, run.name)


class PickyWriter(GatedWriter):
    def check(self, logs):
        if any((values < 0).any() for values in logs.values()):
            raise self.logger.error("negative")


def writes(logger, name=None):
    return [call[2] for call in logger.calls if call[0] == "write" and name in (None, call[1])]


def test_records_that_wait_are_one_write_in_their_order():
    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            for i in range(100):
                logger.log(
                    state, {"x": i / 2, "v": np.full((2, 3), i), "n": {"a": i}, "t": "text"}, step=i, epoch=i // 10
                )
        logger.flush()
        (logs,) = writes(logger)
        assert logs["x"].tolist() == [i / 2 for i in range(100)]
        assert logs["v"].tolist() == [np.full((2, 3), i).tolist() for i in range(100)]
        assert logs["n"]["a"].tolist() == list(range(100)) == logs.step["x"].tolist() == logs.step["n"].tolist()
        assert logs["t"].tolist() == ["text"] * 100
        assert logs.steps["epoch"]["v"].tolist() == [i // 10 for i in range(100)]
        assert logs.stacked == set(logs)
        assert set(logs.counts.values()) == {100}
        assert logger.calls[-1][0] == "flush"


def test_a_lone_record_is_written_at_once_and_unasked():
    class NeverFlushed(Collecting):
        flush_interval = None

    logger = NeverFlushed()
    state = logger.init(jax.random.key(0))
    for i in range(3):
        logger.log(state, {"x": i})
        wait_until(lambda i=i: sum(len(logs["x"]) for logs in writes(logger)) == i + 1)
        assert not any(call == "flush" for call, *_ in logger.calls)
    logger.close()


@pytest.mark.parametrize(
    ("records", "sizes"),
    [
        ([{"x": 1.0}, {"x": 2.0}, {"y": 3.0}, {"x": 4.0}], [2, 1, 1]),
        ([{"x": 1.0}, {"x": 2}, {"x": 3}], [1, 2]),
        ([{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(3)}], [2, 1]),
        ([{"x": 1, "y": 2}, {"y": 2, "x": 1}], [1, 1]),
        ([{"x": {"a": 1}}, {"x": {"a": 2}}, {"x": {"b": 3}}], [2, 1]),
        ([{"x": "a"}, {"x": "b"}, {"x": "long"}], [2, 1]),
    ],
)
def test_only_what_looks_alike_is_joined_and_nothing_overtakes(records, sizes):
    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            for record in records:
                logger.log(state, record)
        logger.flush()
        found = writes(logger)
    assert [max(logs.counts.values()) for logs in found] == sizes
    seen = [values for logs in found for _, values in logs.rows()]
    assert [jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, row)) for row in seen] == [
        jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), record) for record in records
    ]


@pytest.mark.parametrize("values", [(1.0, {"a": 1.0}), ({"a": 1.0}, 1.0), ([1.0], {"a": 1.0}), (1.0, (1.0, 2.0))])
def test_a_key_may_change_its_structure(values):
    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            for value in values:
                for i in range(3):
                    logger.log(state, {"x": value}, step=i)
        logger.flush()
        assert [logs.counts["x"] for logs in writes(logger)] == [3, 3]
        for logs, value in zip(writes(logger), values, strict=True):
            assert jax.tree.structure(logs["x"]) == jax.tree.structure(value)


def test_nothing_that_goes_wrong_on_the_thread_ends_it_or_costs_a_record(monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("a bug of ours")

    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        monkeypatch.setattr("lox.loggers._delivery.sink.joined", broken)
        with pytest.raises(RuntimeError, match="a bug of ours"):
            logger.log(state, {"x": 1})
            logger.flush()
        monkeypatch.undo()
        logger.log(state, {"x": 2})
        logger.flush()
        assert [x for logs in writes(logger) for x in logs["x"].tolist()] == [1, 2]


def test_keys_that_are_apart_are_joined_each_for_itself():
    class Apart(Gated):
        keys_apart = True

    with Apart() as logger:
        states = [logger.init(jax.random.key(seed)) for seed in range(2)]
        with Held(logger, states[0]):
            for i in range(20):
                for state in states:
                    logger.log(state, {"loss": i, "acc": -i}, step=i)
                    logger.log(state, {"norm": i / 2}, step=i)
            logger.log(states[0], {"acc": 1.5}, step=20)  # a key of a record before it, which it must not overtake
            logger.log(states[0], {"loss": 20, "acc": -20}, step=20)
        logger.flush()
        first, second = (writes(logger, run.name) for run in logger.runs)
        for found in (first, second):
            assert [list(logs) for logs in found[:2]] == [["loss", "acc"], ["norm"]]
            assert found[0]["acc"].tolist() == [-i for i in range(20)]
            assert found[1]["norm"].tolist() == [i / 2 for i in range(20)]
        assert [logs["acc"].tolist() for logs in first[2:]] == [[1.5], [-20]]
        assert len(second) == 2


def test_records_whose_keys_overlap_are_one_write_where_keys_are_apart():
    class Apart(Gated):
        keys_apart = True

    with Apart() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            for i in range(10):
                logger.log(state, {"a": i, "b": i, "c": i}, step=i)
                logger.log(state, {"b": 100 + i, "d": {"e": i}}, step=i)
                logger.log(state, {"c": 100 + i, "a": 100 + i}, step=i)
        logger.flush()
        (logs,) = writes(logger)
    twice = [value for i in range(10) for value in (i, 100 + i)]
    assert [logs[key].tolist() for key in "abc"] == [twice] * 3
    assert logs["d"]["e"].tolist() == list(range(10)) == logs.step["d"].tolist()
    assert logs.step["b"].tolist() == [value % 100 for value in twice]


def test_a_batch_ends_once_for_each_run_after_all_its_writes():
    class Batches(Gated):
        def open(self, run):
            return BatchesWriter(self, run.name)

    class BatchesWriter(GatedWriter, lox.loggers.BatchWriter):
        def end_batch(self):
            self.logger.calls.append(("end", self.name))
            if self.logger.breaks:
                raise OSError("the disk is away")

    with Batches() as logger:
        logger.breaks = False
        states = [logger.init(jax.random.key(seed)) for seed in range(3)]
        with Held(logger, states[0]):
            for i in range(3):
                logger.log(states[0], {"a": i})
                logger.log(states[0], {"b": i})
                logger.log(states[1], {"a": i})
        wait_until(lambda: sum(call[0] == "end" for call in logger.calls) == 3)  # the first is that of the gate
        first, second = (run.name for run in logger.runs[:2])
        calls = [call[:2] for call in logger.calls if call[0] in ("write", "end")][1:]
        assert calls[-2:] == [("end", first), ("end", second)]
        assert calls[:-2].count(("write", first)) == 6
        assert calls[:-2].count(("write", second)) == 1
        logger.breaks = True
        logger.log(states[0], {"a": 3})
        with pytest.raises(OSError, match="the disk is away") as caught:
            logger.flush()
        assert "writing to run" in caught.value.__notes__[0]
        logger.breaks = False


@pytest.mark.parametrize("lanes", [None, 2], ids=["alone", "lanes"])
def test_blocks_of_records_are_joined_too(lanes):
    def rows(x):
        def body(c, i):
            lox.log({"x": x + i, "y": {"z": c}}, step=i)
            return c + 1, None

        return jax.lax.scan(body, 0, jnp.arange(3))[0]

    keys = jax.random.split(jax.random.key(0), lanes) if lanes else jax.random.key(0)
    with Gated() as logger:
        states = jax.vmap(logger.init)(keys) if lanes else logger.init(keys)
        step = lambda state, x: logger.spool(rows, state)(x)  # noqa: E731
        step = jax.jit(jax.vmap(step, in_axes=(0, None)) if lanes else step)
        with Held(logger, logger.init(jax.random.key(7))):
            for call in range(5):
                step(states, jnp.int32(10 * call))
            jax.effects_barrier()
        logger.flush()
        for run in logger.runs[: lanes or 1]:
            (logs,) = writes(logger, run.name)
            assert logs["x"].tolist() == [10 * call + i for call in range(5) for i in range(3)]
            assert logs["y"]["z"].tolist() == logs.step["x"].tolist() == [0, 1, 2] * 5


def test_rows_of_a_bound_that_hold_no_record_are_not_joined_in():
    def some(n):
        return jax.lax.fori_loop(0, n, lambda i, c: (lox.log({"x": n}, step=i), c)[1], 0)

    with Gated() as logger, warnings.catch_warnings(record=True, action="always") as caught:
        state = logger.init(jax.random.key(0))
        step = jax.jit(lambda n: logger.spool(some, state, capacity=2)(n))
        with Held(logger, logger.init(jax.random.key(7))):
            for n in (1, 2, 3, 2):
                step(n)
            jax.effects_barrier()
        logger.flush()
        assert [x for logs in writes(logger) for x in logs["x"].tolist()] == [1, 2, 2, 3, 3, 2, 2]
        assert ["capacity=2 kept only the last 2" in str(warning.message) for warning in caught] == [True]


def test_other_step_axes_and_steps_that_differ_within_a_record_stay_apart():
    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            logger.log(state, {"x": 1}, step=0)
            logger.log(state, {"x": 2}, epoch=0)
            for a, b in ((0, 1), (1, 0)):
                logger.log(state, lox.logdict({"a": a, "b": b}, steps={"step": {"a": a, "b": b}}))
        logger.flush()
        assert [len(list(logs.rows())) for logs in writes(logger)] == [1, 1, 2, 2]


def test_each_run_gets_its_own_records_in_order():
    with Gated() as logger:
        states = [logger.init(jax.random.key(seed)) for seed in range(3)]
        names = [run.name for run in logger.runs]
        with Held(logger, states[0]):
            for i in range(60):
                logger.log(states[i % 3], {"x": i}, step=i)
        logger.flush()
        for lane, name in enumerate(names):
            (logs,) = writes(logger, name)
            assert logs["x"].tolist() == list(range(lane, 60, 3)) == logs.step["x"].tolist()


def test_lanes_are_joined_run_by_run():
    with Gated() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 1000))
        names = [run.name for run in logger.runs]
        first = jax.tree.map(lambda leaf: leaf[0], states)
        run = jax.jit(jax.vmap(lambda state, x: logger.tap(scan, state)(x + jnp.arange(8.0))))
        with Held(logger, first):
            jax.block_until_ready(run(states, jnp.arange(1000.0)))
            jax.effects_barrier()
        logger.flush()
        found = dict.fromkeys(names)
        for call in logger.calls:
            if call[0] == "write":
                assert found[call[1]] is None, "more than one write"
                found[call[1]] = call[2]
        for lane, logs in enumerate(found.values()):
            assert logs.step["total"].tolist() == [lane + i for i in range(8)]
            assert logs["total"].tolist() == np.cumsum(lane + np.arange(8.0)).tolist()


def test_a_run_that_is_in_several_lanes_keeps_the_order_of_its_records():
    with Gated() as logger:
        state = logger.init(jax.random.key(0))
        with Held(logger, state):
            for i in range(3):
                jax.vmap(lambda lane, i=i: logger.log(state, {"x": 10 * i + lane}))(jnp.arange(2))
        logger.flush()
        assert [x for logs in writes(logger) for x in logs["x"].tolist()] == [0, 1, 10, 11, 20, 21]


def test_a_run_logged_to_alone_and_in_a_lane_keeps_the_order_of_its_records():
    with Gated() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        names = [run.name for run in logger.runs]
        second = jax.tree.map(lambda leaf: leaf[1], states)
        with Held(logger, second):
            for i in range(4):
                logger.log(second, {"x": jnp.int32(10 * i)})
                jax.vmap(lambda state, i=i: logger.log(state, {"x": jnp.int32(10 * i + 1)}))(states)
        logger.flush()
        assert [x for logs in writes(logger, names[1]) for x in logs["x"].tolist()] == [
            10 * i + j for i in range(4) for j in range(2)
        ]


def test_lanes_that_are_not_alive_get_nothing():
    def f(x):
        return jax.lax.cond(x % 2 == 0, lambda x: (lox.log({"x": x}), x)[1], lambda x: x, x)

    with Gated() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 4))
        names = [run.name for run in logger.runs]
        first = jax.tree.map(lambda leaf: leaf[0], states)
        with Held(logger, first):
            for i in (0, 2, 1, 4):
                jax.vmap(lambda s, x: logger.tap(f, s)(x))(states, i + jnp.arange(4))
                jax.effects_barrier()
        logger.flush()
        found = [[x for logs in writes(logger, name) for x in logs["x"].tolist()] for name in names]
        assert found == [[0, 2, 4], [2], [2, 4, 6], [4]]


def test_a_record_that_cannot_be_stored_does_not_take_its_neighbours_with_it():
    logger = Picky()
    state = logger.init(jax.random.key(0))
    with Held(logger, state):
        for x in (1, 2, -3, 4, -5):
            logger.log(state, {"x": x}, step=abs(x))
    with pytest.raises(RecordError, match="negative") as caught:
        logger.flush()
    assert "1 record lost" in caught.value.__notes__[0]
    assert [(x, s) for logs in writes(logger) for x, s in zip(logs["x"], logs.step["x"], strict=True)] == [
        (1, 1), (2, 2), (4, 4)
    ]  # fmt: skip
    logger.close()


@pytest.mark.parametrize(("error", "lost"), [(RecordError, 2), (OSError, 5)])
def test_lost_records_are_counted_also_within_a_block(error, lost):
    logger = Picky(on_error="warn")
    logger.error = error
    state = logger.init(jax.random.key(0))
    held = Held(logger, state)
    held.__enter__()
    for x in (1, 2, -3, 4, -5):
        logger.log(state, {"x": x})
    held.__exit__()
    with pytest.warns(LoggerWarning, match="negative"):
        logger.flush()
    logger.log(state, {"x": 6})
    with pytest.warns(LoggerWarning, match=f"{lost} records? w(as|ere) lost"):
        logger.close()
    assert sum(len(logs["x"]) for logs in writes(logger)) == 6 - lost


def test_a_run_that_is_resumed_drops_the_known_records_of_a_block(tmp_path):
    for last in (5, 8):
        with lox.loggers.JsonlLogger(tmp_path, if_exists="resume") as logger:
            state = logger.init(jax.random.key(0))
            for i in range(last):
                logger.log(state, {"x": i}, step=i)
    (file,) = tmp_path.glob("*.jsonl")
    assert file.read_text().splitlines() == [f'{{"step": {i}, "x": {i}}}' for i in range(8)]


def test_flush_does_not_wait_for_a_rest_and_comes_after_what_was_logged_before_it():
    logger = Collecting()
    state = logger.init(jax.random.key(0))
    for i in range(50):
        logger.log(state, {"x": i})
        logger.flush()
        assert logger.calls[-1][0] == "flush"
        assert sum(len(logs["x"]) for logs in writes(logger)) == i + 1
    logger.close()


def test_a_queue_that_fills_up_ends_the_rest(monkeypatch):
    monkeypatch.setattr("lox.loggers._delivery.worker._REST", 1e9)
    monkeypatch.setattr("lox.loggers._delivery.worker._MAX_REST", 1e9)

    class NeverFlushed(Collecting):
        flush_interval = None

    logger = NeverFlushed(queue_size=8)
    state = logger.init(jax.random.key(0))
    for i in range(100):
        logger.log(state, {"x": i})
    wait_until(lambda: sum(len(logs["x"]) for logs in writes(logger)) >= 96)
    assert len(writes(logger)) < 100
    logger.close()
    assert [x for logs in writes(logger) for x in logs["x"].tolist()] == list(range(100))


def test_values_too_large_for_the_queue_end_the_rest(monkeypatch):
    monkeypatch.setattr("lox.loggers._delivery.worker._REST", 1e9)
    monkeypatch.setattr("lox.loggers._delivery.worker._MAX_REST", 1e9)
    monkeypatch.setattr("lox.loggers._delivery.worker.MAX_BYTES", 1000)
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        for size in (1, 1, 120, 120, 1, 500, 1):
            logger.log(state, {f"x{size}": np.ones(size)})
        assert next(iter(logger.logs.values())).counts == {"x1": 4, "x120": 2, "x500": 1}


def test_rows_that_rest_are_flushed_when_due(monkeypatch):
    monkeypatch.setattr("lox.loggers._delivery.worker._REST", 1e9)
    monkeypatch.setattr("lox.loggers._delivery.worker._MAX_REST", 1e9)

    class Quick(Collecting):
        flush_interval = 0.05

    logger = Quick()
    state = logger.init(jax.random.key(0))
    for i in range(3):
        logger.log(state, {"x": i})
    wait_until(lambda: sum(len(logs["x"]) for logs in writes(logger)) == 3)
    wait_until(lambda: logger.calls[-1][0] == "flush")
    logger.close()
    assert [x for logs in writes(logger) for x in logs["x"].tolist()] == [0, 1, 2]


def test_each_logger_of_several_gets_every_record_whatever_the_others_do():
    slow, quick = Collecting(slow=0.005), MemoryLogger()
    with lox.loggers.MultiLogger(slow, quick) as logger:
        state = logger.init(jax.random.key(0))
        for i in range(200):
            logger.log(state, {"x": i}, step=i)
        logger.flush()
        assert [x for logs in writes(slow) for x in logs["x"].tolist()] == list(range(200))
        assert len(writes(slow)) < 100
        assert next(iter(quick.logs.values()))["x"].tolist() == list(range(200))


def test_what_threads_log_to_one_run_at_the_same_time_is_all_there():
    with Collecting(queue_size=16) as logger:
        state = logger.init(jax.random.key(0))

        def work(first):
            for i in range(first, first + 200):
                logger.log(state, {"x": i})
                if i % 50 == 0:
                    time.sleep(0.001)

        threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        logger.flush()
        found = [x for logs in writes(logger) for x in logs["x"].tolist()]
        assert sorted(found) == [1000 * number + i for number in range(4) for i in range(200)]
        for number in range(4):
            mine = [x for x in found if x // 1000 == number]
            assert mine == sorted(mine)


def _every_third(i):
    lox.log({"x": i / 2, "v": jnp.ones(3) * i}, step=i, where=i % 3 == 0)


def _every_third_without_steps(i):
    lox.log({"x": i}, where=i % 3 == 0)


def _in_a_branch(i):
    jax.lax.cond(i % 3 == 0, lambda: (lox.log({"x": i}, step=i), 0)[1], lambda: 0)


def _in_a_loop(i):
    def body(j):
        lox.log({"x": i}, step=i)
        return j + 1

    jax.lax.while_loop(lambda j: j < i % 2, body, 0)


def _some_of_its_keys(i):
    lox.log({"always": i}, step=i)
    lox.log({"x": i}, step=i, where=i % 3 == 0)


PROGRAMS = [_every_third, _every_third_without_steps, _in_a_branch, _in_a_loop, _some_of_its_keys]


@pytest.mark.parametrize("lanes", [None, 3], ids=["alone", "lanes"])
@pytest.mark.parametrize("options", [{"capacity": 1}, {"capacity": 2}, {"reduce": "mean"}, {"reduce": "last"}], ids=str)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_calls_that_record_nothing_write_nothing(program, options, lanes):
    """A program that is called in a Python loop has room for a record also where there is none."""

    def rows(transform, **options):
        keys = jax.random.split(jax.random.key(0), lanes) if lanes else jax.random.key(0)
        with Gated() as logger:
            states = jax.vmap(logger.init)(keys) if lanes else logger.init(keys)
            apply = getattr(logger, transform)
            step = lambda state, i: apply(program, state, **options)(i)  # noqa: E731
            step = jax.jit(jax.vmap(step) if lanes else step)
            with Held(logger, logger.init(jax.random.key(7))):
                for i in range(10):
                    step(states, i + jnp.arange(lanes) if lanes else jnp.asarray(i))
                jax.effects_barrier()
            logger.flush()
            return {
                run.name: sorted(
                    (key, sorted((axis, float(step)) for axis, step in steps.items()), np.ravel(values[key]).tolist())
                    for logs in writes(logger, run.name)
                    for steps, values in logs.rows()
                    for key in values
                )
                for run in logger.runs
            }

    spooled, tapped = rows("spool", **options), rows("tap")
    assert spooled == tapped
    assert any(tapped.values())
