"""Calls from Python do not wait for the device: what it has yet to compute is read on the background thread."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import MemoryLogger
from lox.loggers._delivery import copies, worker

jitted_or_not = pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])


@jax.jit
def slow(x):
    """Takes a fair part of a second on any machine; the result depends on all of it."""
    return jax.lax.fori_loop(0, 40, lambda i, a: jnp.tanh(a @ a), jnp.full((600, 600), x))[0, 0]


def step(x):
    y = slow(x)
    lox.log({"y": y, "x": x}, step=jnp.int32(x))
    return y


def records(logger):
    (run,) = logger.runs
    return logger.logs[run.name]


@pytest.fixture(autouse=True, scope="module")
def compiled():
    slow(0.0).block_until_ready()


@jitted_or_not
def test_a_spooled_call_returns_before_the_program_has_run(wrap):
    with MemoryLogger() as logger:
        spooled = logger.spool(wrap(step), logger.init(jax.random.key(0)))
        jax.block_until_ready(spooled(jnp.float32(0)))  # traced and compiled
        out = spooled(jnp.float32(1))
        assert not out.is_ready()
        logger.flush()
        assert out.is_ready()
        np.testing.assert_array_equal(records(logger)["x"], [0, 1])
        np.testing.assert_array_equal(records(logger)["y"][1], out)


def test_logging_a_value_that_is_not_computed_yet_does_not_wait():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        y = slow(jnp.float32(1))
        logger.log(state, {"y": y}, step=3)
        assert not y.is_ready()
        logger.flush()
        np.testing.assert_array_equal(records(logger)["y"], [y])
        np.testing.assert_array_equal(records(logger).step["y"], [3])


def test_neither_does_logging_a_nested_value():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        y = slow(jnp.float32(1))
        logger.log(state, {"parts": {"y": y, "z": 2.0}}, step=3)
        assert not y.is_ready()
        logger.flush()
        np.testing.assert_array_equal(records(logger)["parts"]["y"], [y])


def test_neither_does_logging_at_a_step_that_is_not_computed_yet():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        for _ in range(2):  # the first time, the copy is compiled
            at = (slow(jnp.float32(1)) * 0 + 3).astype(jnp.int32)
            logger.log(state, {"y": 2.0}, step=at)
            has_waited = at.is_ready()
            logger.flush()
        assert not has_waited
        np.testing.assert_array_equal(records(logger).step["y"], [3, 3])


def slow_key(x, impl=None):
    return jax.random.fold_in(jax.random.key(1, impl=impl), (slow(x) * 0).astype(int))


def is_ready(key):
    return jax.random.key_data(key).is_ready()


def words_of(key):
    """The words of a key that is computed, as they are logged."""
    jax.block_until_ready(key)
    with MemoryLogger() as logger:
        logger.log(logger.init(jax.random.key(0)), {"key": key})
        logger.flush()
        return records(logger)["key"]


def assert_same_words(words, expected):
    np.testing.assert_array_equal(words, expected)
    assert words.dtype == expected.dtype
    assert words.dtype.metadata == expected.dtype.metadata


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_logging_a_key_that_is_not_computed_yet_does_not_wait(impl):
    for _ in range(2):  # the first time, the copy is compiled
        with MemoryLogger() as logger:
            state = logger.init(jax.random.key(0))
            key = slow_key(jnp.float32(1), impl)
            logger.log(state, {"key": key, "nested": {"key": key}})
            has_waited = is_ready(key)
            logger.flush()
            logs = records(logger)
    assert not has_waited
    assert_same_words(logs["key"], words_of(key))
    assert_same_words(logs["nested"]["key"], words_of(key))


@pytest.mark.parametrize("time", [False, True], ids=["plain", "time"])
@jitted_or_not
def test_neither_does_a_spooled_call_that_logs_keys(wrap, time):
    def f(x):
        key = slow_key(x)
        lox.log({"key": key, "keys": jax.random.split(key, 3), "x": x})
        return key

    f = wrap(f)
    with MemoryLogger() as logger:
        jax.block_until_ready(logger.spool(f, logger.init(jax.random.key(0)))(jnp.float32(0)))  # traced and compiled
    with MemoryLogger(time=time) as logger:
        key = logger.spool(f, logger.init(jax.random.key(0)))(jnp.float32(1))
        assert not is_ready(key)
        logger.flush()
        logs = records(logger)
    assert logs["x"].tolist() == [1]
    assert_same_words(logs["key"], words_of(key))
    assert_same_words(logs["keys"], words_of(jax.random.split(key, 3)))


def test_a_key_can_be_deleted_after_it_was_logged():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        key = slow_key(jnp.float32(1))
        logger.log(state, {"key": key})
        jax.random.key_data(key).delete()
        logger.flush()
        assert_same_words(records(logger)["key"], words_of(slow_key(jnp.float32(1))))


def test_a_value_can_be_donated_or_deleted_after_it_was_logged():
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        first, second = slow(jnp.float32(1)), slow(jnp.float32(2))
        logger.log(state, {"y": first})
        logger.log(state, {"y": second})
        after = consume(first)
        second.delete()
        logger.flush()
        assert float(records(logger)["y"][0]) == float(after) - 1
        assert len(records(logger)["y"]) == 2


@pytest.mark.parametrize(
    "wrap", [jax.jit, lambda f: f, lambda f: jax.jit(f, donate_argnums=0)], ids=["jit", "eager", "donated"]
)
def test_what_a_spooled_function_takes_and_returns_can_be_donated(wrap):
    """Results of a compiled program are arrays of their own, also those that are arguments or the same value twice."""
    consume = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x):
        y = jnp.full(3, slow(x[0]))
        lox.log({"argument": x, "result": y, "again": y, "key": jax.random.key(1), "none of it": 5})
        return y

    with MemoryLogger() as logger:
        spooled = logger.spool(wrap(f), logger.init(jax.random.key(0)))
        for i in range(3):
            x = jnp.full(3, float(i))
            y = spooled(x)
            consume(y)
            if not x.is_deleted():
                consume(x)
        logger.flush()
        logs = records(logger)
        np.testing.assert_array_equal(logs["argument"], [[0.0] * 3, [1.0] * 3, [2.0] * 3])
        np.testing.assert_array_equal(logs["result"], logs["again"])
        np.testing.assert_array_equal(logs["result"][:, 0], [slow(float(i)) for i in range(3)])
        assert logs["none of it"].tolist() == [5, 5, 5]
        np.testing.assert_array_equal(logs["key"], [jax.random.key_data(jax.random.key(1))] * 3)


def test_results_of_a_compiled_program_are_queued_without_a_copy(monkeypatch):
    def never(*args):
        raise AssertionError(args)

    def f(x):
        lox.log({"x": x, "nested": {"y": x + 1}}, step=jnp.int32(x))
        return x

    with MemoryLogger() as logger:
        spooled = logger.spool(jax.jit(f), logger.init(jax.random.key(0)))
        monkeypatch.setattr(copies, "_copy", never)
        for i in range(3):
            spooled(jnp.float32(i))
        logger.flush()
        assert records(logger)["x"].tolist() == [0, 1, 2]
        assert records(logger)["nested"]["y"].tolist() == [1, 2, 3]
        assert records(logger).step["x"].tolist() == [0, 1, 2]


def test_values_on_several_devices_are_logged_together():
    first, second = jax.devices()[:2]
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        a, b = slow(jax.device_put(jnp.float32(1), first)), slow(jax.device_put(jnp.float32(2), second))
        logger.log(state, {"a": a, "b": b, "c": 3.0})
        assert not (a.is_ready() and b.is_ready())
        logger.flush()
        for key, value in {"a": a, "b": b, "c": 3.0}.items():
            np.testing.assert_array_equal(records(logger)[key], [value])


def test_so_are_values_on_the_same_devices_in_another_order():
    def spread(devices):
        mesh = jax.sharding.Mesh(np.array(devices), ("x",))
        return jax.device_put(jnp.arange(2.0), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))

    def f(a, b):
        lox.log({"a": a, "b": b})

    a, b = spread(jax.devices()[:2]), spread(jax.devices()[1::-1])
    with MemoryLogger() as logger:
        logger.spool(f, logger.init(jax.random.key(0)))(a, b)
        logger.flush()
        np.testing.assert_array_equal(records(logger)["a"], [a])
        np.testing.assert_array_equal(records(logger)["b"], [b])


@jitted_or_not
def test_signatures_of_one_function_may_alternate(wrap):
    """What is known of the logs of one signature must not be used for another."""

    def f(x):
        lox.log({"total": x.sum(), "whole": x} if x.ndim else {"x": x})
        return x

    with MemoryLogger() as logger:
        spooled = logger.spool(wrap(f), logger.init(jax.random.key(0)))
        for i in range(3):
            spooled(jnp.float32(i))
            spooled(jnp.full(2, float(i)))
        logger.flush()
        assert records(logger)["x"].tolist() == [0, 1, 2]
        assert records(logger)["total"].tolist() == [0, 2, 4]
        assert records(logger)["whole"].tolist() == [[0, 0], [1, 1], [2, 2]]


@jitted_or_not
def test_names_that_a_backend_refuses_are_refused_at_every_call(wrap):
    class Picky(MemoryLogger):
        def check_names(self, keys, axes):
            if "bad" in keys:
                raise ValueError("no bad keys")

    def f(x):
        lox.log({"good": x} if x.ndim else {"bad": x})
        return x

    with Picky() as logger:
        spooled = logger.spool(wrap(f), logger.init(jax.random.key(0)))
        for _ in range(2):
            spooled(jnp.ones(2))
            with pytest.raises(ValueError, match="no bad keys"):
                spooled(jnp.float32(1))
        logger.flush()
        assert list(records(logger)) == ["good"]
        assert len(records(logger)["good"]) == 2


@jitted_or_not
def test_the_bytes_of_queued_results_count(monkeypatch, wrap):
    """A program's results of known size wait for room, as everything else does."""
    monkeypatch.setattr(worker, "MAX_BYTES", 3 * 4 * 1000)

    def f(x):
        lox.log({"row": jnp.full(1000, slow(x))})
        return x

    with MemoryLogger() as logger:
        spooled = logger.spool(wrap(f), logger.init(jax.random.key(0)))
        most = 0
        for i in range(8):
            spooled(jnp.float32(i))
            most = max(most, logger._sink._worker._bytes)
        assert 4 * 1000 <= most <= 3 * 4 * 1000
        logger.flush()
        assert len(records(logger)["row"]) == 8


def test_records_of_slow_and_fast_calls_stay_in_order():
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        logger.log(state, {"y": slow(jnp.float32(1))}, step=0)
        for i in range(1, 5):
            logger.log(state, {"y": float(i)}, step=i)
        logger.flush()
        np.testing.assert_array_equal(records(logger).step["y"], range(5))


def test_a_program_that_logs_while_its_spooled_logs_are_awaited_does_not_hang():
    """The queue holds one entry: the program must not wait for a thread that waits for the program."""
    with MemoryLogger(queue_size=1) as logger:
        state = logger.init(jax.random.key(0))

        def chatty(x):
            def body(i, x):
                logger.log(state, {"inside": i})
                return jnp.tanh(x @ x)

            x = jax.lax.fori_loop(0, 30, body, jnp.full((300, 300), x))
            lox.log({"end": x[0, 0]})
            return x

        spooled = logger.spool(jax.jit(chatty), state)
        for i in range(3):
            spooled(jnp.float32(i))
        logger.flush()
        assert len(records(logger)["inside"]) == 90
        assert len(records(logger)["end"]) == 3


def test_when_the_queue_is_full_python_waits():
    with MemoryLogger(queue_size=2) as logger:
        state = logger.init(jax.random.key(0))
        values = [slow(jnp.float32(i)) for i in range(6)]
        for y in values:
            logger.log(state, {"y": y})
        assert values[0].is_ready()  # there was room only when the first ones had been read
        logger.flush()
        assert len(records(logger)["y"]) == 6


def test_what_the_device_raises_is_raised_by_the_logger():
    def fail(x):
        raise ValueError("the disk of the data loader is full")

    def failing(x):
        y = jax.pure_callback(fail, jax.ShapeDtypeStruct((), jnp.float32), x)
        lox.log({"y": y})
        return y

    logger = MemoryLogger()
    state = logger.init(jax.random.key(0))
    with pytest.raises(Exception, match="the disk of the data loader is full"):
        logger.spool(jax.jit(failing), state)(jnp.float32(1))
        logger.flush()
    logger.log(state, {"after": 1.0})
    logger.close()
    assert list(records_after_close(logger)["after"]) == [1.0]


def records_after_close(logger):
    (logs,) = logger.logs.values()
    return logs
