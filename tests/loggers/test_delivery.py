"""From the program to the writer: what arrives, when, and in which order."""

import gc
import threading
import time
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import MemoryLogger
from tests.loggers.recording import Collecting, scan, wait_until


def test_spool_returns_the_output_alone_and_delivers_once():
    logger = Collecting()
    state = logger.init(jax.random.key(0))
    assert float(jax.jit(logger.spool(scan, state))(jnp.arange(4.0))) == 6.0
    logger.close()
    writes = [call for call in logger.calls if call[0] == "write"]
    assert len(writes) == 1
    assert writes[0][2]["total"].tolist() == [0.0, 1.0, 3.0, 6.0]


def test_log_puts_a_prefix_before_each_key():
    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"loss": 1.0}, prefix="a/", step=3)
    logger.log(state, lox.spool(scan)(jnp.arange(4.0))[1], prefix="b/")
    jax.jit(lambda x: logger.log(state, {"loss": x}, prefix="c/", step=4))(2.0)
    logger.close()
    (logs,) = logger.logs.values()
    assert list(logs) == ["a/loss", "b/total", "c/loss"]
    assert logs.step["a/loss"].tolist() == [3]
    assert logs["b/total"].tolist() == [0.0, 1.0, 3.0, 6.0]
    assert logs.step["c/loss"].tolist() == [4]


def test_a_backend_checks_names_before_anything_is_delivered():
    class Picky(MemoryLogger):
        def check_names(self, keys, axes):
            if bad := [name for name in (*keys, *axes) if name.startswith("_")]:
                raise lox.loggers.RecordError(f"no underscores: {bad}")

    logger = Picky()
    state = logger.init(jax.random.key(0))
    for call in (
        lambda: logger.log(state, {"x": 1.0}, prefix="_"),
        lambda: logger.log(state, {"x": 1.0}, _step=1),
        lambda: jax.jit(lambda: logger.log(state, {"_x": 1.0}))(),
        lambda: jax.jit(logger.spool(lambda: lox.log({"_x": 1.0}), state))(),
        lambda: jax.jit(logger.tap(lambda: lox.log({"_x": 1.0}), state))(),
    ):
        with pytest.raises(lox.loggers.RecordError, match="no underscores"):
            call()
    logger.close()
    assert not any(logger.logs.values())


def test_tap_delivers_while_running_and_batches_when_asked(monkeypatch):
    sizes = []

    receive = Collecting._receive
    monkeypatch.setattr(
        Collecting, "_receive", lambda self, d: sizes.append(np.size(d.logs["total"])) or receive(self, d)
    )
    for options, expected in (({}, [1, 1, 1, 1, 1]), ({"batch": 2}, [2, 2, 2]), ({"interval": 2}, [1, 1, 1])):
        sizes.clear()
        logger = Collecting()
        state = logger.init(jax.random.key(0))
        assert float(jax.jit(logger.tap(scan, state, **options))(jnp.arange(5.0))) == 10.0
        logger.close()
        assert sizes == expected
        written = [total for call in logger.calls if call[0] == "write" for total in call[2]["total"].tolist()]
        assert written == ([0.0, 3.0, 10.0] if "interval" in options else [0.0, 1.0, 3.0, 6.0, 10.0])


def test_spool_takes_the_options_of_lox_spool():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        logger.spool(scan, state, interval=2, prefix="train/")(jnp.arange(5.0))
        logger.spool(scan, state, reduce="mean")(jnp.arange(5.0))
        with pytest.warns(UserWarning, match="'nothing': no such key"):
            logger.spool(scan, state, argnames="nothing")(jnp.arange(5.0))
        (logs,) = logger.logs.values()
    assert logs["train/total"].tolist() == [0.0, 3.0, 10.0]
    assert logs["total"].tolist() == [4.0]


def test_capacity_rows_that_were_not_used_are_not_written():
    def dynamic(n):
        def body(i):
            lox.log({"i": i}, step=i)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        jax.jit(logger.spool(dynamic, state, capacity=8))(3)
        keys = jax.random.split(jax.random.key(1), 2)
        states = jax.vmap(logger.init)(keys)
        jax.vmap(lambda s, n: logger.spool(dynamic, s, capacity=8)(n))(states, jnp.array([1, 4]))
        assert [logs["i"].tolist() for logs in logger.logs.values()] == [[0, 1, 2], [0], [0, 1, 2, 3]]


def test_under_grad_each_record_is_delivered_once():
    def loss(w):
        lox.log({"w": w})
        return jnp.sum(w**2)

    for transform in ("spool", "tap"):
        with MemoryLogger() as logger:
            state = logger.init(jax.random.key(0))
            gradient = jax.jit(jax.grad(getattr(logger, transform)(loss, state)))(jnp.float32(3.0))
            assert float(gradient) == 6.0
            assert next(iter(logger.logs.values()))["w"].tolist() == [3.0]


def test_lanes_that_did_not_take_the_branch_get_no_record():
    def f(x):
        return jax.lax.cond(x > 1, lambda x: (lox.log({"x": x}), x)[1], lambda x: -x, x)

    with MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 4))
        jax.vmap(lambda s, x: logger.tap(f, s)(x))(states, jnp.arange(4.0))
        assert [logs.get("x", np.array([])).tolist() for logs in logger.logs.values()] == [[], [], [2.0], [3.0]]


def test_all_lanes_are_one_host_call(monkeypatch):
    deliveries = []

    receive = MemoryLogger._receive
    monkeypatch.setattr(MemoryLogger, "_receive", lambda self, d: deliveries.append(d.lanes) or receive(self, d))
    with MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 64))
        jax.jit(jax.vmap(lambda s, x: logger.spool(scan, s)(x * jnp.arange(3.0))))(states, jnp.arange(64.0))
        logger.flush()
        assert deliveries == [(64,)]
        assert [logs["total"].tolist()[-1] for logs in logger.logs.values()] == [3.0 * lane for lane in range(64)]


def test_one_run_in_many_lanes_gets_the_records_of_all():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        jax.vmap(lambda x: logger.log(state, {"x": x}))(jnp.arange(3))
        assert next(iter(logger.logs.values()))["x"].tolist() == [0, 1, 2]


def test_writes_come_from_one_thread_and_flush_follows_them():
    logger = Collecting()
    state = logger.init(jax.random.key(0))
    for i in range(5):
        logger.log(state, {"x": i})
    logger.flush()
    opened, *writes, flushed = logger.calls
    assert (opened[0], flushed[0]) == ("open", "flush")
    assert [x for call in writes for x in call[2]["x"].tolist()] == list(range(5))
    assert {call[3] for call in writes} == {"lox:Collecting"}
    logger.close()
    assert logger.calls[-1][0] == "close"


def test_rows_are_flushed_unasked_after_a_while():
    class Quick(Collecting):
        flush_interval = 0.02

    logger = Quick()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1})
    wait_until(lambda: ("flush", "0000000000000000") in logger.calls)
    assert [call[0] for call in logger.calls] == ["open", "write", "flush"]
    logger.close()


def test_a_flush_that_failed_is_tried_again_unasked():
    class Locked(Collecting):
        flush_interval = 0.02
        attempts = 0

        def open(self, run):
            writer = super().open(run)

            def flush():
                self.attempts += 1
                if self.attempts < 3:
                    raise OSError("locked")
                self.calls.append(("flush", run.name))

            writer.flush = flush
            return writer

    with Locked(on_error="warn") as logger, warnings.catch_warnings(action="ignore"):
        logger.log(logger.init(jax.random.key(0)), {"x": 1})
        wait_until(lambda: logger.calls[-1][0] == "flush")
        assert logger.attempts == 3
        attempts = logger.attempts
        time.sleep(0.2)
        assert logger.attempts == attempts


def test_a_full_queue_makes_the_caller_wait_and_drops_nothing():
    logger = Collecting(queue_size=2)
    state = logger.init(jax.random.key(0))
    logger.gate.clear()
    logged = []

    def log_many():
        for i in range(20):
            logger.log(state, {"x": i}, step=i)
            logged.append(i)

    thread = threading.Thread(target=log_many)
    thread.start()
    wait_until(lambda: len(logged) >= 2)
    time.sleep(0.1)
    assert len(logged) < 6  # what is queued, what is being written, and no more
    logger.gate.set()
    thread.join()
    logger.close()
    assert [x for call in logger.calls if call[0] == "write" for x in call[2]["x"].tolist()] == list(range(20))


def test_threads_may_log_at_the_same_time_and_each_run_keeps_its_order():
    with MemoryLogger(queue_size=8) as logger:
        states = [logger.init(jax.random.key(seed)) for seed in range(4)]

        def work(state):
            for i in range(100):
                logger.log(state, {"x": i}, step=i)

        threads = [threading.Thread(target=work, args=(state,)) for state in states]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [logs["x"].tolist() for logs in logger.logs.values()] == [list(range(100))] * 4


def test_what_was_logged_cannot_be_changed_afterwards():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        buffer = np.zeros(3)
        for i in range(3):
            buffer[:] = i
            logger.log(state, {"x": buffer})
        assert next(iter(logger.logs.values()))["x"].tolist() == [[0.0] * 3, [1.0] * 3, [2.0] * 3]


def test_records_from_python_keep_their_precision():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        now = 1731700000.123456
        logger.log(state, {"time": now, "big": 2**40, "note": "text"}, step=2**40)
        (logs,) = logger.logs.values()
    assert logs["time"].tolist() == [now]
    assert logs["big"].tolist() == [2**40] == logs.step["big"].tolist()
    assert logs["note"].tolist() == ["text"]


@pytest.mark.parametrize(
    ("record", "steps", "message"),
    [
        ({1: 2}, {}, "keys of a record must be str"),
        ({"x": None}, {}, "'x' holds no arrays"),
        ({"x": object()}, {}, "'x' holds a object"),
        ({"x": 1}, {"step": [1, 2]}, "step 'step' must be a scalar"),
        ([1, 2], {}, "a logdict or a dict"),
        (lox.logdict({"x": 1}), {"step": 1}, "its own steps"),
    ],
)
def test_log_says_what_is_wrong_with_a_record(record, steps, message):
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        with pytest.raises(lox.LoxError, match=message) as caught:
            logger.log(state, record, **steps)
    assert isinstance(caught.value, TypeError)


def test_a_logger_that_is_let_go_of_still_writes_and_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(jax.random.key(0))
    for i in range(100):
        logger.log(state, {"x": i})
    alive = weakref.ref(logger)
    del logger
    gc.collect()
    assert alive() is None
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("lox:")])
    (logs,) = lox.loggers.load(tmp_path).values()
    assert logs["x"].tolist() == list(range(100))


def test_threads_may_close_at_the_same_time():
    logger = Collecting(slow=0.01)
    state = logger.init(jax.random.key(0))
    for i in range(10):
        logger.log(state, {"x": i})
    threads = [threading.Thread(target=call) for call in (logger.close, logger.flush, logger.close, logger.flush)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [call[0] for call in logger.calls].count("close") == 1
    assert sum(len(call[2]["x"]) for call in logger.calls if call[0] == "write") == 10


@pytest.mark.parametrize("how", ["last", "mean", "max", ("mean", "count")])
def test_a_reduction_of_no_records_is_no_record(how):
    def rollout(length):
        def step(total, i):
            lox.log({"return": total}, where=(i + 1) % length == 0, step=i)
            lox.log({"always": total}, step=i)
            return total + 1.0, None

        return jax.lax.scan(step, 0.0, jnp.arange(10))[0]

    with lox.loggers.MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
        jax.vmap(lambda state, n: logger.spool(rollout, state, reduce=how)(n))(states, jnp.array([5, 50]))
        logger.flush()
        ended, never = logger.logs.values()
    assert list(ended) == ["return", "always"]
    assert ended.step["return"].tolist() == [9]
    assert list(never) == ["always"]


def _log(logger, state):
    def branch(x):
        logger.log(state, {"x": x})
        return x

    return branch


def _mark(x):
    lox.log({"x": x})
    return x


IN_A_BRANCH = {
    "log": _log,
    "spool": lambda logger, state: logger.spool(_mark, state),
    "tap": lambda logger, state: logger.tap(_mark, state),
}


@pytest.mark.parametrize("make", IN_A_BRANCH.values(), ids=IN_A_BRANCH)
def test_only_the_lanes_that_take_a_branch_log_in_it(make):
    with MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))

        @jax.jit
        @jax.vmap
        def f(state, x):
            x = jax.lax.cond(x > 0, make(logger, state), lambda x: x, x)
            return jax.lax.while_loop(lambda c: c > 2, lambda c: make(logger, state)(c) - 1, x)

        f(states, jnp.array([1.0, -1.0, 4.0]))
        logger.flush()
        written = [logger.logs.get(run.name, {}) for run in logger.runs]
    assert [logs["x"].tolist() if logs else [] for logs in written] == [[1.0], [], [4.0, 4.0, 3.0]]
