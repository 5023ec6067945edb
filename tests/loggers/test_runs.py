"""Runs, their keys and names, and the states that stand for them."""

import dataclasses
import json
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerOptionError, LoggerStateError, MemoryLogger, RunFormatError
from lox.loggers._backends.config_file import read_config
from tests.loggers.recording import scan


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
    monkeypatch.setattr(MemoryLogger, "_open_lanes", lambda self, *args: calls.append(args[3]) or original(self, *args))
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
        with pytest.raises(LoggerStateError, match="only with the logger whose init returned it"):
            other.flush()
        with pytest.raises(LoggerStateError, match="expected the state"):
            one.log(jax.random.key(0), {"x": 1})


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


@pytest.mark.parametrize("if_exists", ["new", "error", "replace"])
def test_a_second_init_of_a_key_is_numbered_and_leaves_the_first_alone(if_exists):
    with MemoryLogger(if_exists=if_exists) as logger:
        old, new = logger.init(jax.random.key(0)), logger.init(jax.random.key(0))
        for state, x in ((old, 1), (new, 2), (old, 3)):
            logger.log(state, {"x": x})
        assert {name: logs["x"].tolist() for name, logs in logger.logs.items()} == {
            "0000000000000000": [1, 3],
            "0000000000000000-2": [2],
        }


def test_resuming_a_run_that_is_open_is_to_go_on_with_it():
    with MemoryLogger(if_exists="resume") as logger:
        for x in range(2):
            logger.log(logger.init(jax.random.key(0)), {"x": x}, step=x)
        assert [logs["x"].tolist() for logs in logger.logs.values()] == [[0, 1]]


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_run_that_exists_is_an_error_whatever_on_error_says(on_error, tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        logger.init(jax.random.key(0))
    logger = lox.loggers.SaveLogger(tmp_path, if_exists="error", on_error=on_error)
    with pytest.raises(lox.loggers.RunExistsError, match="if_exists='new'"):
        logger.init(jax.random.key(0))
    logger.close()


def test_odd_steps_are_told_apart_on_resume(tmp_path):
    """nan, the infinities and large numbers are steps like any other; 0.0 and -0.0 are one."""
    for steps in ([float("nan"), 1.0], [0.0, float("inf"), float("nan"), 1e300], [-0.0, 1e300, -float("inf"), 2**53]):
        with lox.loggers.SaveLogger(tmp_path, if_exists="resume") as logger:
            state = logger.init(jax.random.key(0))
            for step in steps:
                logger.log(state, {"a": 1.0}, step=np.float64(step))
    (logs,) = lox.loggers.load(tmp_path).values()
    assert str(logs.step["a"].tolist()) == "[nan, 1.0, 0.0, inf, 1e+300, -inf, 9007199254740992.0]"


def test_a_config_reaches_the_backend_as_it_is():
    config = {
        "steps": np.int64(5_000_000_000),
        "rates": np.array([0.1, 1 / 3]),
        "names": np.array(["a", "b"]),
        "since": np.datetime64("2020-01-01"),
        "big": 2**70,
        "nested": {"rate": 0.1, "sizes": (64, 64), "none": None},
        "device": jnp.arange(3),
    }
    with MemoryLogger() as logger:
        logger.init(jax.random.key(0), config)
        config["rates"][:] = 0  # that is the user's
        (run,) = logger.runs
    assert run.config["steps"] == 5_000_000_000
    assert run.config["rates"].tolist() == [0.1, 1 / 3]
    assert run.config["names"].tolist() == ["a", "b"]
    assert run.config["since"] == np.datetime64("2020-01-01")
    assert (run.config["big"], run.config["nested"]) == (2**70, {"rate": 0.1, "sizes": (64, 64), "none": None})
    assert run.config["device"].tolist() == [0, 1, 2]


def test_lanes_have_their_own_config():
    keys = jax.random.split(jax.random.key(0), 2)
    with MemoryLogger() as logger:
        jax.vmap(lambda key, rate: logger.init(key, {"rate": rate, "all": np.int64(2**40)}))(keys, np.array([0.5, 2.0]))
        assert [(run.config["rate"].tolist(), run.config["all"]) for run in logger.runs] == [(0.5, 2**40), (2.0, 2**40)]


@pytest.mark.parametrize("config", [{3: 4, "a": 1}, {"a": {3: 4, "b": 1}}, [1]])
def test_what_is_no_config_is_refused(config):
    with MemoryLogger() as logger, pytest.raises(LoggerOptionError, match="config"):
        logger.init(jax.random.key(0), config)


@dataclasses.dataclass
class Net:
    sizes: tuple[int, ...]
    rate: jax.Array


def test_a_config_in_the_types_of_json_keeps_order_digits_and_none():
    config = {
        "z": jnp.float32(0.1),
        "a": None,
        "half": jnp.bfloat16(0.5),
        "words": np.array(["a", "b"]),
        "since": np.datetime64("2020-01-01"),
        "where": Path("data") / "x",
        "complex": 1 + 2j,
        "net": Net((64, 32), jnp.ones(2)),
        "nan": float("nan"),
        "key": jax.random.key(7),
    }
    with MemoryLogger() as logger:
        logger.init(jax.random.key(0), config)
        (plain,) = logger.configs.values()
    assert list(plain) == list(config)
    assert json.loads(json.dumps(plain | {"nan": None})) == {
        "z": 0.1,
        "a": None,
        "half": 0.5,
        "words": ["a", "b"],
        "since": "2020-01-01",
        "where": os.path.join("data", "x"),
        "complex": [1.0, 2.0],
        "net": {"sizes": [64, 32], "rate": [1.0, 1.0]},
        "nan": None,
        "key": [0, 7],
    }
    assert math.isnan(plain["nan"])


def test_static_values_and_mapped_ones_share_a_config_by_in_axes():
    keys, rates = jax.random.split(jax.random.key(0), 2), jnp.asarray([0.5, 2.0])
    axes = {"rate": 0, "env": None, "depth": None, "clip": None}
    with MemoryLogger() as logger:
        jax.vmap(logger.init, in_axes=(0, axes))(keys, {"rate": rates, "env": "CartPole", "depth": 3, "clip": None})
        first, second = logger.configs.values()
    assert first == {"rate": 0.5, "env": "CartPole", "depth": 3, "clip": None}
    assert second == {**first, "rate": 2.0}


@pytest.mark.parametrize("transform", [jax.vmap, jax.jit])
def test_text_in_compiled_code_is_an_error_that_says_where_it_goes(transform):
    with MemoryLogger() as logger:
        state = logger.init(jax.random.key(0))
        states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state) if transform is jax.vmap else state
        with pytest.raises(LoggerStateError, match=r"'env' is text.*logger.init\(key, \{'env': \.\.\.\}\)"):
            transform(lambda state: logger.log(state, {"env": "CartPole"}))(states)


def test_numbers_of_a_config_that_are_not_finite_come_back(tmp_path):
    with lox.loggers.SaveLogger(tmp_path) as logger:
        logger.init(jax.random.key(7), {"low": -math.inf, "x": [math.nan]})
    text = (tmp_path / "0000000000000007" / "config.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"low": "-Infinity", "x": ["NaN"]}
    config = read_config(tmp_path / "0000000000000007" / "config.json")
    assert config["low"] == -math.inf
    assert math.isnan(config["x"][0])


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": 1'])
def test_a_damaged_config_file_is_an_error_that_names_it(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunFormatError, match=r"config\.json is damaged"):
        read_config(tmp_path / "config.json")
