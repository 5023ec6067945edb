"""What a backend's author can get wrong is told at once, and by name."""

import logging
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox.loggers import LoggerLoadError, LoggerOptionError, MemoryLogger, RunExistsError, RunFormatError
from tests.loggers.recording import Collecting


class Half:
    def write(self, logs): ...


@pytest.mark.parametrize(("writer", "missing"), [(None, "no write, flush, close"), (Half(), "no flush, close")])
def test_what_open_returns_has_to_be_a_writer(writer, missing):
    class Odd(lox.loggers.Logger):
        def open(self, run):
            return writer

    with Odd() as logger, pytest.raises(LoggerLoadError, match=f"Odd.open returned .*{missing}"):
        logger.init(jax.random.key(0))


def test_any_attribute_that_is_not_refused_is_free():
    """All that Logger makes itself, and all that it calls: none of it is in the way of a backend's own."""

    class Mine(Collecting):
        def _check(self):
            return "mine"

        _settle = _ready = _raise_pending = _receive_now = _open_run = _open_new = _taken = _failures = _worker = _check

        def __init__(self, **options):
            super().__init__(**options)
            self._queue = self._runs = self._thread = self._lock = None

    with Mine() as logger:
        logger.log(logger.init(jax.random.key(0)), {"x": 1})
        logger.flush()
        assert logger._ready() == "mine"
    assert [call[0] for call in logger.calls] == ["open", "write", "flush", "close"]


@pytest.mark.parametrize("name", ["_sink", "_sinks", "_receive", "_open_one", "_open_lanes", "_writes_here"])
def test_the_names_that_logger_needs_are_refused(name):
    message = f"Mine uses the name '{name}', which is reserved by Logger"
    with pytest.raises(LoggerOptionError, match=message):
        type("Mine", (Collecting,), {name: lambda self: None})

    class Mine(Collecting):
        def __init__(self, **options):
            setattr(self, name, 3)
            super().__init__(**options)

    with pytest.raises(LoggerOptionError, match=message):
        Mine()


def test_the_refused_names_are_all_that_logger_has():
    """A private name that is added to Logger is to be mangled, or to be refused."""
    from lox.loggers._delivery.logger import Logger
    from lox.loggers._delivery.reserved import _OURS

    private = {name for name in vars(Logger) if name.startswith("_") and not name.startswith(("__", "_Logger__"))}
    assert private - {"_abc_impl"} == _OURS
    assert not [name for name in vars(MemoryLogger()) if name.startswith("_") and name in _OURS]


def test_steps_that_do_not_belong_together_are_told_when_the_run_is_opened():
    class Uneven(Collecting):
        def exists(self, name):
            return True

        def written(self, name):
            return {"x": {"step": np.arange(3)}, "loss": {"step": np.arange(3), "epoch": np.arange(2)}}

    with Uneven(if_exists="resume") as logger, pytest.raises(RunFormatError) as caught:
        logger.init(jax.random.key(0))
    assert str(caught.value) == (
        "Uneven.written('0000000000000000') returned steps of 'loss' that do not belong together: 3 along 'step', "
        "2 along 'epoch'. Row i of all axes of a key must be record i"
    )


@pytest.mark.parametrize("name", ["log", "flush", "spool", "init", "runs"])
def test_an_attribute_that_would_hide_a_method_is_refused(name):
    class Mine(Collecting):
        def __init__(self, **options):
            super().__init__(**options)
            setattr(self, name, 3)

    with pytest.raises(LoggerOptionError, match=f"Mine uses the name '{name}', which is reserved by Logger"):
        Mine()


@pytest.mark.parametrize("told", [None, {"a": [1, 2]}, [1, 2]])
def test_written_that_tells_something_else_is_named(told):
    class Mine(Collecting):
        def exists(self, name):
            return True

        def written(self, name):
            return told

    with Mine(if_exists="resume") as logger, pytest.raises(RunFormatError, match="Mine.written.*{key: {axis: steps}}"):
        logger.init(jax.random.key(0))


def test_a_writer_gets_the_number_of_its_rows_as_counts():
    """Not that of the records behind a reduction, or before a bound."""

    def some(xs):
        jax.lax.map(lambda x: lox.log({"all": x, "mean": x}, where=x > 0, reduce=None), xs)

    for options, rows in (({"reduce": "mean"}, 1), ({"capacity": 2}, 2), ({}, 4)):
        with Collecting() as logger, warnings.catch_warnings(action="ignore"):  # that a bound drops some
            logger.spool(some, logger.init(jax.random.key(0)), **options)(jnp.arange(5.0))
            logger.flush()
            (written,) = [call[2] for call in logger.calls if call[0] == "write"]
        assert written.counts == {"all": rows, "mean": rows}
        assert len(written["all"]) == rows


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    def add_note(self, note):
        raise RuntimeError("no notes")

    @property
    def lost_records(self):
        raise RuntimeError("no idea")


def _wrong_number():
    error = OSError("disk full")
    error.lost_records = "x"
    return error


@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("where", ["write", "flush", "close"])
@pytest.mark.parametrize("make", [Unspeakable, _wrong_number])
def test_an_error_that_cannot_be_told_ends_nothing(monkeypatch, make, where, on_error):
    class Careless(Collecting):
        flush_interval = 0.01

        def open(self, run):
            writer = super().open(run)
            working = getattr(writer, where)

            def fail_once(*args):
                monkeypatch.setattr(writer, where, working)
                raise make()

            monkeypatch.setattr(writer, where, fail_once)
            return writer

    class Handler(logging.Handler):
        def emit(self, record):
            raise RuntimeError("a handler of the user")

    handler = Handler()
    logging.getLogger().addHandler(handler)
    try:
        logger = Careless(on_error=on_error, queue_size=2)
        state = logger.init(jax.random.key(0))
        raised = []
        for i in range(6):
            try:
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    logger.log(state, {"x": i})
                    logger.flush()
            except Exception as error:
                raised.append(error)
            raised += told
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                logger.close()
        except Exception as error:
            raised.append(error)
        raised += told
    finally:
        logging.getLogger().removeHandler(handler)
    assert raised
    assert len([call for call in logger.calls if call[0] == "write"]) == 6 - (where == "write")


def test_a_backend_to_which_every_run_exists_is_an_error(monkeypatch):
    class Forgetful(Collecting):
        def exists(self, name):
            return True

    monkeypatch.setattr("lox.loggers._delivery.names._MOST_OF_A_NAME", 50)
    with Forgetful() as logger, pytest.raises(RunExistsError, match=r"Forgetful\.exists reports .* as existing"):
        logger.init(jax.random.key(0))


def test_steps_that_are_no_numbers_are_named():
    class Textual(Collecting):
        def exists(self, name):
            return True

        def written(self, name):
            return {"v": {"step": ["a"]}}

    with Textual(if_exists="resume") as logger, pytest.raises(RunFormatError, match=r"Textual.written.*'v'"):
        logger.init(jax.random.key(0))
