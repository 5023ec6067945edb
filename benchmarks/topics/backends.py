"""Rows of eight scalars into each backend, against the loop a user would write."""

from __future__ import annotations

import csv
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lox
import lox.loggers
from benchmarks.harness import Figure, exact, in_turns
from lox._host.delivery import Delivery
from lox.loggers import Run

KEYS = [f"train/key{i}" for i in range(8)]
BLOCK, BLOCKS, ROWS = 128, 100, 1000
VALUES = np.random.default_rng(0).normal(size=(8, BLOCK * BLOCKS)).astype(np.float32)


def table(first: int, rows: int) -> lox.logdict:
    steps = np.arange(first, first + rows)
    data = {key: VALUES[i, :rows] for i, key in enumerate(KEYS)}
    return lox.logdict(data, steps={"step": dict.fromkeys(KEYS, steps)}, stacked=KEYS)


# Built before the clock runs: what is measured is the writing.
TABLES = [table(i * BLOCK, BLOCK) for i in range(BLOCKS)]
SINGLE = [table(i, 1) for i in range(ROWS)]


def figures(quick: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _save(Path(folder), quick)
        if quick:
            return
        yield from _against_loop(
            "csv", "csv.writer loop", lox.loggers.create("csv", path=f"{folder}/csv"), _csv_loop(folder)
        )
        yield from _against_loop(
            "jsonl", "json.dumps loop", lox.loggers.create("jsonl", path=f"{folder}/jsonl"), _json_loop(folder)
        )
        yield from _tensorboard(folder)
        yield from _wandb(folder)
        yield from _growth(Path(folder))


def _writing(writer: Any, tables: list[lox.logdict]) -> Callable[[], None]:
    def write() -> None:
        for logs in tables:
            writer.write(logs)
        writer.flush()

    return write


def _delivering(logger: Any, tables: list[lox.logdict]) -> Callable[[], None]:
    """As from a program that runs: through the queue of the logger, where what waits is joined."""
    run = np.asarray(logger.init(jax.random.key(len(tables))).run)
    deliveries = [Delivery((), np.asarray(True), run, logs) for logs in tables]

    def deliver() -> None:
        for delivery in deliveries:
            logger._receive(delivery)
        logger.flush()

    return deliver


def _save(folder: Path, quick: bool) -> Iterator[Figure]:
    logger = lox.loggers.SaveLogger(folder / "save")
    raw = open(folder / "raw", "wb")  # noqa: SIM115
    block = bytes(_bytes_on_disk(logger) // BLOCKS)

    def raw_blocks() -> None:
        for _ in TABLES:
            raw.write(block)
        raw.flush()

    thunks = {
        "save, blocks of 128": _delivering(logger, TABLES),
        "save, row by row": _delivering(logger, SINGLE),
        "file.write": raw_blocks,
    }
    per = {"save, blocks of 128": BLOCK * BLOCKS, "save, row by row": ROWS, "file.write": BLOCK * BLOCKS}
    if not quick:
        thunks["np.save of all so far"] = _np_save_loop(folder)
        per["np.save of all so far"] = BLOCK * BLOCKS
    samples = in_turns(thunks, seconds=3, wait=False, per=per)
    fields = {"topic": "backends", "case": "8 scalars"}
    yield _rate(samples, "save, blocks of 128", "file.write", target=0.3, **fields)
    yield _rate(samples, "save, row by row", "file.write", **fields)
    if not quick:
        yield _rate(samples, "save, blocks of 128", "np.save of all so far", **fields)
    raw.close()


def _bytes_on_disk(logger: Any) -> int:
    """How much the rows of TABLES are as the logger writes them: values, and the steps of each key."""
    writer = logger.open(Run("size"))
    _writing(writer, TABLES)()
    writer.close()
    return sum(file.stat().st_size for file in (logger.path / "size").glob("*.npy"))


def _rate(samples: Any, ours: str, theirs: str, **fields: Any) -> Figure:
    note = f"{1 / samples.median(ours):,.0f} rows/s against {1 / samples.median(theirs):,.0f}"
    return samples.speedup(ours, theirs, unit="rate", note=note, **fields)


def _np_save_loop(folder: Path) -> Callable[[], None]:
    """Every 128 rows, save all there are."""

    def loop() -> None:
        for i in range(BLOCKS):
            for key, column in zip(KEYS, VALUES, strict=True):
                np.save(folder / f"{key.replace('/', '-')}.npy", column[: (i + 1) * BLOCK])

    return loop


def _csv_loop(folder: str) -> Callable[[], None]:
    def loop() -> None:
        with open(f"{folder}/loop.csv", "a", newline="") as file:
            writer = csv.DictWriter(file, ["step", *KEYS])
            for step, row in enumerate(VALUES.T[:ROWS].tolist()):
                writer.writerow({"step": step, **dict(zip(KEYS, row, strict=True))})

    return loop


def _json_loop(folder: str) -> Callable[[], None]:
    def loop() -> None:
        with open(f"{folder}/loop.jsonl", "a") as file:
            for step, row in enumerate(VALUES.T[:ROWS].tolist()):
                file.write(json.dumps({"step": step, **dict(zip(KEYS, row, strict=True))}) + "\n")

    return loop


def _against_loop(
    name: str, against: str, logger: Any, loop: Callable[[], None], rows_of_loop: int = ROWS, **fields: Any
) -> Iterator[Figure]:
    blocks, rows = f"{name}, blocks of 128", f"{name}, row by row"
    thunks = {blocks: _delivering(logger, TABLES), rows: _delivering(logger, SINGLE), against: loop}
    samples = in_turns(thunks, seconds=2, wait=False, per={blocks: BLOCK * BLOCKS, rows: ROWS, against: rows_of_loop})
    for ours in (blocks, rows):
        yield _rate(samples, ours, against, topic="backends", case="8 scalars", **(fields if ours == blocks else {}))
    logger.close()


def _tensorboard(folder: str) -> Iterator[Figure]:
    if not importlib.util.find_spec("lox.tensorboard"):
        return
    from tensorboardX import SummaryWriter

    logger = lox.loggers.create("tensorboard", logdir=f"{folder}/tensorboard")
    naive = SummaryWriter(f"{folder}/naive")

    def loop() -> None:
        for step in range(ROWS):
            for key, column in zip(KEYS, VALUES, strict=True):
                naive.add_scalar(key, column[step], step)

    yield from _against_loop("tensorboard", "SummaryWriter.add_scalar loop", logger, loop, target=15)
    naive.close()
    if importlib.util.find_spec("tensorflow"):
        yield from _clu(folder)


def _clu(folder: str) -> Iterator[Figure]:
    from clu import metric_writers

    writer = metric_writers.create_default_writer(f"{folder}/clu", just_logging=False)
    logger = lox.loggers.create("tensorboard", logdir=f"{folder}/beside-clu")

    rows = 100

    def loop() -> None:
        for step in range(rows):
            writer.write_scalars(step, {key: column[step] for key, column in zip(KEYS, VALUES, strict=True)})
        writer.flush()

    yield from _against_loop("tensorboard", "clu.metric_writers", logger, loop, rows_of_loop=rows)


def _wandb(folder: str) -> Iterator[Figure]:
    if not importlib.util.find_spec("wandb") or not importlib.util.find_spec("lox.wandb"):
        return
    import wandb

    rows = 200
    quiet = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_machine_info=True, disable_git=True
    )
    bare = wandb.init(project="bench", mode="offline", dir=folder, settings=quiet, reinit="create_new")
    logger = lox.loggers.create("wandb", project="bench", mode="offline", path=folder)
    block = [table(i * 100, 100) for i in range(rows // 100)]

    def loop() -> None:
        for step in range(rows):
            bare.log({"step": step, **{key: float(column[step]) for key, column in zip(KEYS, VALUES, strict=True)}})

    one_by_one = "wandb, row by row"
    thunks = {"wandb": _delivering(logger, block), one_by_one: _delivering(logger, SINGLE), "run.log loop": loop}
    samples = in_turns(thunks, seconds=6, wait=False, per={"wandb": rows, one_by_one: ROWS, "run.log loop": rows})
    for name in ("wandb", one_by_one):
        yield _rate(samples, name, "run.log loop", topic="backends", case="8 scalars, offline", target=0.9)
    logger.close()
    bare.finish()


def _growth(folder: Path) -> Iterator[Figure]:
    """Many rows into one run: are the last written as fast as the first?"""
    for name, total, options in (
        ("save", 1_000_000, {"path": folder / "grow"}),
        ("tensorboard", 1_000_000, {"logdir": folder / "grow-tb"}),
        ("csv", 200_000, {"path": folder / "grow-csv"}),
        ("jsonl", 200_000, {"path": folder / "grow-jsonl"}),
    ):
        if name not in lox.loggers.available():
            continue
        writer = lox.loggers.create(name, **options).open(Run("long"))
        tenth = []
        blocks = total // BLOCK // 10
        for part in range(10):
            tables = [table((part * blocks + i) * BLOCK, BLOCK) for i in range(blocks)]
            start = time.process_time()  # the disk's moods are not the question
            for logs in tables:
                writer.write(logs)
            writer.flush()
            tenth.append(time.process_time() - start)
        writer.close()
        yield exact(
            float(np.median(tenth[-3:])),
            float(np.median(tenth[:3])),
            topic="backends",
            what=f"{name}, last of {total:,} rows",
            against="first rows",
            case="blocks of 128",
            unit="growth",
            target=1.25,
            note=f"{blocks * BLOCK * 10 / sum(tenth):,.0f} rows/s over all",
        )
