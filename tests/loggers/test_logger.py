"""What `Logger` does for every backend: runs and their names, delivery, errors."""

import gc
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerOptionError, LoggerStateError, LoggerWarning, MemoryLogger


class Collecting(lox.loggers.Logger):
    """A backend that keeps the very calls it gets."""

    def __init__(self, *, slow=0.0, **options):
        super().__init__(**options)
        self.calls = []
        self.slow = slow
        self.gate = threading.Event()
        self.gate.set()

    def open(self, run):
        self.calls.append(("open", run))
        return CollectingWriter(self, run.name)


class CollectingWriter:
    def __init__(self, logger, name):
        self.logger, self.name = logger, name

    def write(self, logs):
        self.logger.gate.wait()
        time.sleep(self.logger.slow)
        self.logger.calls.append(("write", self.name, logs, threading.current_thread().name))

    def flush(self):
        self.logger.calls.append(("flush", self.name))

    def close(self):
        self.logger.calls.append(("close", self.name))


def scan(xs):
    def body(total, x):
        total = total + x
        lox.log({"total": total}, step=x.astype(int))
        return total, None

    return jax.lax.scan(body, jnp.zeros(()), xs)[0]


# --- keys and names


@pytest.mark.parametrize(
    "key",
    [
        jax.random.key(42),
        jax.random.PRNGKey(42),
        np.array([0, 42], np.uint32),
    ],
    ids=["typed", "raw", "numpy"],
)
def test_typed_and_raw_keys_name_the_same_run(key):
    with MemoryLogger() as logger:
        logger.init(key)
        (run,) = logger.runs
    assert (run.name, run.key, run.process_index, run.resume) == ("000000000000002a", (0, 42), 0, False)


def test_keys_that_differ_never_share_a_name():
    words = [(1, 23), (12, 3), (0, 123), (123, 0), (0x1, 0x23000000), (0x12300000, 0)]
    kinds = [jax.random.key(0), jax.random.key(0, impl="rbg"), jax.random.key(0, impl="unsafe_rbg")]
    keys = [jax.random.wrap_key_data(np.asarray(pair, np.uint32)) for pair in words] + kinds
    with MemoryLogger(if_exists="error") as logger:
        for key in keys:
            logger.init(key)
        names = [run.name for run in logger.runs]
    assert len({name.lower() for name in names}) == len(keys)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (jax.random.split(jax.random.key(0), 3), r"jax\.vmap\(logger\.init\)"),
        (jax.random.split(jax.random.PRNGKey(0), 3), r"jax\.vmap\(logger\.init\)"),
        (0, r"PRNG key, such as jax\.random\.key\(0\)"),
        (jnp.zeros(2), "PRNG key"),
    ],
)
def test_init_says_what_it_takes(key, message):
    with MemoryLogger() as logger, pytest.raises(LoggerStateError, match=message) as caught:
        logger.init(key)
    assert isinstance(caught.value, lox.LoxError)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f))], ids=["eager", "jit", "jit jit"])
def test_init_under_jit_and_vmap_is_one_host_call_and_opens_one_run_per_key(wrap, monkeypatch):
    calls = []
    original = MemoryLogger._open_lanes
    monkeypatch.setattr(MemoryLogger, "_open_lanes", lambda self, *args: calls.append(args[2]) or original(self, *args))
    keys = jax.random.split(jax.random.key(0), 6).reshape(2, 3)
    with MemoryLogger() as logger:
        states = wrap(jax.vmap(jax.vmap(logger.init)))(keys)
        assert states.run.shape == (2, 3)
        assert [run.key for run in logger.runs] == [tuple(map(int, w)) for w in jax.random.key_data(keys.reshape(-1))]
    assert calls == [(2, 3)]


def test_init_inside_scan_opens_a_run_each_time():
    with MemoryLogger() as logger:
        keys = jax.random.split(jax.random.key(0), 3)
        _, states = jax.lax.scan(lambda c, key: (c, logger.init(key)), 0, keys)
        jax.vmap(lambda state, x: logger.log(state, {"x": x}))(states, jnp.arange(3))
        assert [logs["x"].tolist() for logs in logger.logs.values()] == [[0], [1], [2]]


def test_a_state_is_a_pytree_that_can_be_donated():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))

        def step(state, x):
            logger.log(state, {"x": x}, step=x)
            return state

        donating = jax.jit(step, donate_argnums=0)
        for x in range(5):
            state = donating(state, x)
        (logs,) = logger.logs.values()
        assert logs["x"].tolist() == list(range(5))


def test_a_batched_state_outside_vmap_is_an_error_that_says_so():
    with MemoryLogger() as logger:
        states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 3))
        for call in (lambda: logger.log(states, {"x": 1}), lambda: logger.spool(scan, states)):
            with pytest.raises(LoggerStateError, match=r"shape \(3,\).*vmap"):
                call()


def test_the_state_of_another_logger_is_noticed():
    with MemoryLogger() as one, MemoryLogger() as other:
        state = one.init(jax.random.key(0))
        other.log(state, {"x": 1})
        with pytest.raises(LoggerStateError, match="only with the logger whose init made it"):
            other.flush()
        with pytest.raises(LoggerStateError, match="expected the state"):
            one.log(jax.random.key(0), {"x": 1})


# --- delivery


def test_spool_returns_the_output_alone_and_delivers_once():
    logger = Collecting()
    state = logger.init(jax.random.key(0))
    assert float(jax.jit(logger.spool(scan, state))(jnp.arange(4.0))) == 6.0
    logger.close()
    writes = [call for call in logger.calls if call[0] == "write"]
    assert len(writes) == 1
    assert writes[0][2]["total"].tolist() == [0.0, 1.0, 3.0, 6.0]


def test_tap_delivers_while_running_and_batches_when_asked():
    for options, sizes in (({}, [1, 1, 1, 1, 1]), ({"batch": 2}, [2, 2, 1]), ({"interval": 2}, [1, 1, 1])):
        logger = Collecting()
        state = logger.init(jax.random.key(0))
        assert float(jax.jit(logger.tap(scan, state, **options))(jnp.arange(5.0))) == 10.0
        logger.close()
        assert [len(call[2]["total"]) for call in logger.calls if call[0] == "write"] == sizes


def test_spool_takes_the_options_of_lox_spool():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        logger.spool(scan, state, interval=2, prefix="train/")(jnp.arange(5.0))
        logger.spool(scan, state, reduce="mean")(jnp.arange(5.0))
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


def test_all_lanes_are_one_host_call():
    deliveries = []

    class Counting(MemoryLogger):
        def _receive(self, delivery):
            deliveries.append(delivery.lanes)
            super()._receive(delivery)

    with Counting() as logger:
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
    assert [call[0] for call in logger.calls] == ["open"] + ["write"] * 5 + ["flush"]
    assert {call[3] for call in logger.calls if call[0] == "write"} == {"lox:Collecting"}
    logger.close()
    assert logger.calls[-1][0] == "close"


def test_rows_are_flushed_unasked_after_a_while():
    class Quick(Collecting):
        flush_interval = 0.02

    logger = Quick()
    state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1})
    wait_until(lambda: ("flush", "0000000000000000") in logger.calls)
    logger.close()


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
    assert [int(call[2]["x"][0]) for call in logger.calls if call[0] == "write"] == list(range(20))


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
        ({1: 2}, {}, "keys of a record are str"),
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


# --- errors


class Failing(Collecting):
    """Fails on the second write of each run, and on closing if told so."""

    fail_on_close = False

    def open(self, run):
        return FailingWriter(self, run.name)


class FailingWriter(CollectingWriter):
    def write(self, logs):
        super().write(logs)
        if int(logs["x"][0]) == 1:
            raise OSError("no space left on device")

    def close(self):
        if self.logger.fail_on_close:
            raise OSError("cannot close")


@pytest.mark.parametrize("call", ["flush", "close", "log", "spool", "tap", "init"])
def test_a_failure_is_raised_by_the_next_call_whichever_it_is(call):
    logger = Failing()
    state = logger.init(jax.random.key(0))
    spooled, tapped = logger.spool(scan, state), logger.tap(scan, state)
    logger.gate.clear()  # so that nothing fails before all is logged
    for i in range(3):
        logger.log(state, {"x": i})
    logger.gate.set()
    wait_until(lambda: len(logger.calls) == 3)
    calls = {
        "flush": logger.flush,
        "close": logger.close,
        "log": lambda: logger.log(state, {"x": 3}),
        "spool": lambda: spooled(jnp.arange(2.0)),
        "tap": lambda: tapped(jnp.arange(2.0)),
        "init": lambda: logger.init(jax.random.key(1)),
    }
    with pytest.raises(OSError, match="no space left") as caught:
        calls[call]()
    assert "1 records lost" in caught.value.__notes__[0]
    if call != "close":  # raised once, not again, and what comes after it is written
        logger.log(state, {"x": 5})
    logger.close()
    assert [int(c[2]["x"][0]) for c in logger.calls if c[0] == "write"] == [0, 1, 2] + [5] * (call != "close")


def test_a_failure_does_not_keep_other_runs_from_being_written():
    logger = Failing()
    states = [logger.init(jax.random.key(seed)) for seed in range(2)]
    logger.log(states[0], {"x": 1})
    with pytest.raises(OSError, match="no space"):
        logger.flush()
    logger.log(states[1], {"x": 7})
    logger.flush()
    assert logger.calls[-2][1:2] == (logger.runs[1].name,)
    logger.close()


def test_a_failing_close_closes_the_other_runs_and_is_raised():
    logger = Failing()
    logger.fail_on_close = True
    logger.init(jax.random.key(0))
    with pytest.raises(OSError, match="cannot close"):
        logger.close()
    logger.close()


def test_a_run_that_cannot_be_opened_is_an_error_of_init():
    class Closed(lox.loggers.Logger):
        def open(self, run):
            raise PermissionError("not here")

    logger = Closed()
    with pytest.raises(PermissionError, match="not here"):
        logger.init(jax.random.key(0))
    with pytest.raises(PermissionError, match="not here"):
        jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    logger.close()


def test_with_on_error_warn_a_run_that_cannot_be_opened_only_warns():
    class Closed(lox.loggers.Logger):
        def open(self, run):
            raise PermissionError("not here")

    logger = Closed(on_error="warn")
    with pytest.warns(LoggerWarning, match="opening a run failed: PermissionError: not here"):
        state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1})
    with pytest.warns(LoggerWarning, match="1 records were lost"):
        logger.close()


def test_a_warning_made_an_error_is_raised_to_the_caller_not_in_the_thread():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error", LoggerWarning)
        logger = Failing(on_error="warn")
        state = logger.init(jax.random.key(0))
        logger.log(state, {"x": 1})
        with pytest.raises(LoggerWarning, match="no space left"):
            logger.flush()
        logger.log(state, {"x": 2})
        warnings.simplefilter("ignore", LoggerWarning)
        logger.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"if_exists": "ask"}, "if_exists='ask'; it must be one of 'new', 'error', 'replace', 'resume'"),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        ({"processes": 1}, "processes=1"),
        ({"queue_size": 0}, "queue_size=0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(LoggerOptionError, match=message):
        MemoryLogger(**options)


def test_a_backend_that_forgets_super_init_is_told_so():
    class Forgetful(lox.loggers.Logger):
        def __init__(self, path):
            self.path = path

        def open(self, run):
            raise AssertionError

    with pytest.raises(LoggerOptionError, match=r"Forgetful\.__init__ must call super\(\)\.__init__"):
        Forgetful("x").init(jax.random.key(0))


def wait_until(condition, seconds=20.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.005)


def test_the_state_of_a_replaced_run_is_told_that_it_is():
    with MemoryLogger(if_exists="replace") as logger:
        old = logger.init(jax.random.key(0))
        logger.log(old, {"x": 1})
        new = logger.init(jax.random.key(0))
        logger.log(new, {"x": 2})
        assert [logs["x"].tolist() for logs in logger.logs.values()] == [[2]]
        logger.log(old, {"x": 3})
        with pytest.raises(lox.loggers.LoggerClosedError, match="a later init .* has replaced the run"):
            logger.flush()


def test_resuming_a_run_that_is_open_is_to_go_on_with_it():
    with MemoryLogger(if_exists="resume") as logger:
        for x in range(2):
            logger.log(logger.init(jax.random.key(0)), {"x": x}, step=x)
        assert [logs["x"].tolist() for logs in logger.logs.values()] == [[0, 1]]


def test_error_also_refuses_a_run_that_is_open():
    with MemoryLogger(if_exists="error") as logger:
        logger.init(jax.random.key(0))
        with pytest.raises(lox.loggers.RunExistsError, match="0000000000000000"):
            logger.init(jax.random.key(0))


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_run_that_exists_is_an_error_whatever_on_error_says(on_error, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        logger.init(jax.random.key(0))
    logger = lox.loggers.SaveLogger(tmp_path, if_exists="error", on_error=on_error)
    with pytest.raises(lox.loggers.RunExistsError, match="if_exists='new'"):
        logger.init(jax.random.key(0))
    logger.close()


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
    assert [call[0] for call in logger.calls].count("write") == 10
