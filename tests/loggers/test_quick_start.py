"""The quick start, as it is written."""

import jax
import jax.numpy as jnp
import numpy as np

import lox
import lox.loggers


def f(xs):
    def body(i, carry):
        carry += xs[i]
        lox.log({"carry": carry}, step=i, episode=i // 2)
        return carry

    return jax.lax.fori_loop(0, len(xs), body, 0)


def test_the_loggers_of_the_quick_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    xs = jnp.arange(3)

    key = jax.random.key(0)
    logger = lox.loggers.SaveLogger("./.lox/")
    logger_state = logger.init(key)
    y = logger.spool(f, logger_state)(xs)
    assert y == 3

    console_logger = lox.loggers.ConsoleLogger()
    save_logger = lox.loggers.SaveLogger("./.lox/")
    multi_logger = lox.loggers.MultiLogger(console_logger, save_logger)
    multi_logger_state = multi_logger.init(key)
    y = multi_logger.tap(f, multi_logger_state)(xs)
    assert y == 3

    logger.close()
    multi_logger.close()
    assert "step=2  episode=1  carry=3  (3 records" in capsys.readouterr().out
    runs = lox.loggers.load(".lox")
    assert list(runs) == ["0000000000000000", "0000000000000000-2"]
    for logs in runs.values():
        assert logs["carry"].tolist() == [0, 1, 3]
        assert logs.step["carry"].tolist() == [0, 1, 2]
        assert logs.episode["carry"].tolist() == [0, 0, 1]
    assert np.load(".lox/0000000000000000/carry.npy").tolist() == [0, 1, 3]


def test_the_logger_of_the_sharp_bits(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path / "logs")
    logger_state = logger.init(jax.random.key(0))
    y = logger.spool(f, logger_state)(jnp.arange(3))
    logger.flush()
    assert y == 3
    assert lox.loggers.load(tmp_path / "logs", stack=True)["carry"].tolist() == [[0, 1, 3]]
    logger.close()
