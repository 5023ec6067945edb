"""How users see the public API: checked by mypy (`hatch run types:check`), never run."""

from pathlib import Path
from typing import Any, assert_type

import jax

import lox
import lox.loggers
from lox.loggers import backend
from lox.tensorboard import TensorBoardLogger
from lox.wandb import WandbLogger


def train(key: jax.Array, steps: int) -> float:
    marked = lox.log({"steps": steps}, step=0, where=True, tags=("a",), reduce="mean")
    assert_type(marked, lox.logdict)
    assert_type(lox.log_grad(key, "key"), jax.Array)
    return 1.0


def the_transformations_keep_the_signature_of_the_function(key: jax.Array) -> None:
    out, logs = lox.spool(train, argnames="loss", reduce=("mean", "max"), capacity=3)(key, steps=2)
    assert_type(out, float)
    assert_type(logs, lox.logdict)
    assert_type(lox.tap(train, lambda logs: print(logs["loss"]), batch=8)(key, 2), float)
    assert_type(lox.nolog(train)(key, 2), float)
    assert_type(lox.probe(train, names="h", loops=True)(key, 2), float)
    assert_type([finding.key for finding in lox.probe(train).found(key, 2)], list[str])
    found, report = lox.find_nonfinite(train)(key, steps=2)
    assert_type(found, float)
    assert_type(report.primitive, str)
    lox.spool(train)(key, "two")  # type: ignore[arg-type]
    lox.tap(train)(key)  # type: ignore[call-arg]


def a_logdict_is_a_dict(logs: lox.logdict) -> None:
    assert_type(logs + logs, lox.logdict)
    assert_type(logs.reduce("mean"), lox.logdict)
    assert_type(logs.slice[1:2], lox.logdict)
    for steps, values in logs.rows():
        assert_type(steps, dict[str, Any])
        assert_type(values, dict[str, Any])


def a_logger_keeps_the_signature_of_the_function_too(key: jax.Array) -> None:
    with lox.loggers.create(["console", "save"]) as logger:
        assert_type(logger, lox.loggers.Logger)
        state = logger.init(key)
        assert_type(state, lox.loggers.LoggerState)
        assert_type(logger.spool(train, state, reduce="mean")(key, 2), float)
        assert_type(logger.tap(train, state)(key, steps=2), float)
        logger.spool(train, state)(key, "two")  # type: ignore[arg-type]
    assert_type(lox.loggers.progress(train, name="training")(key, steps=2), float)
    with lox.loggers.SaveLogger("runs") as save:
        assert_type(save, lox.loggers.SaveLogger)


def runs_can_be_narrowed_and_put_together(error: lox.loggers.UnreadableRunsError) -> None:
    runs = lox.loggers.load("runs", keys=["loss", "train/*"])
    assert isinstance(runs, lox.loggers.Runs)
    assert_type(runs["a"], lox.logdict)
    assert_type(runs.where(rate=0.1), lox.loggers.Runs)
    assert_type(runs.by("rate"), dict[Any, lox.loggers.Runs])
    assert_type(runs.stack(pad=True), lox.logdict)
    assert_type(lox.loggers.load("runs", stack=True), lox.logdict)


def histograms_and_configs_are_values(x: jax.Array) -> None:
    histogram = lox.loggers.Histogram(x, bins=10, range=(0, 1))
    assert_type(histogram + histogram, lox.loggers.Histogram)
    assert_type(histogram.sum(0)[1:], lox.loggers.Histogram)
    lox.log({"weights": lox.loggers.Histogram({"w": x}, bins=[0.0, 0.5, 1.0])})
    config = lox.loggers.Config({"env": "CartPole"}, rate=x)
    with lox.loggers.create("memory") as logger:
        assert_type(logger.init(jax.random.key(0), config), lox.loggers.LoggerState)


def a_backend_has_these_methods() -> type[lox.loggers.Logger]:
    class Nowhere:
        def write(self, logs: lox.logdict) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None: ...

    class NowhereLogger(lox.loggers.Logger):
        def open(self, run: lox.loggers.Run) -> lox.loggers.Writer:
            assert_type(run.name, str)
            return Nowhere()

    return NowhereLogger


def a_backend_has_these_tools(run: lox.loggers.Run, group: backend.NameFormat) -> None:
    file = backend.GrowingFile(Path("runs/a.txt"))
    file.take(b"a line", records=1)
    assert_type(file.kept_records, int)
    assert_type(backend.fill_format("MyLogger", "group", group, run), str)
    assert_type(backend.read_config(backend.config_in(Path("runs/a"))), dict[str, Any])
    assert_type(backend.number_labels(["a", "a"]), list[tuple[str, int]])
    backend.write_config("runs/a", run)  # type: ignore[arg-type]


BACKENDS: list[type[lox.loggers.Logger]] = [TensorBoardLogger, WandbLogger, lox.loggers.ConsoleLogger]
