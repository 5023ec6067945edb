"""Offline runs of plain wandb and of lox, read back."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import wandb

from lox.loggers import RunFormatError, load
from lox.wandb import WandbLogger
from tests.wandb.offline import file_of, wait_until_whole

LIGHT = wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_machine_info=True, disable_git=True)


def start(folder: Path, **options: Any) -> wandb.Run:
    folder.mkdir(parents=True, exist_ok=True)
    return wandb.init(project="plain", mode="offline", dir=str(folder), reinit="create_new", settings=LIGHT, **options)


def finish(run: wandb.Run) -> Path:
    run.finish()
    return wait_until_whole(file_of(run))


def test_plain_wandb(tmp_path: Path) -> None:
    run = start(tmp_path / "a", name="first", config={"rate": 0.1, "model": {"width": 8}, "none": None})
    run.define_metric("val/*", step_metric="epoch")
    for step in range(4):
        run.log({"loss": 1 / (step + 1), "nested": {"a": step, "b": {"c": 2.5}}, "w": wandb.Histogram([1.0, 2.0, 3.0])})
        run.log({"val/acc": step / 4, "epoch": 10 * step})
    run.log({"bad": float("nan"), "final": 3, "text": "done", "picture": wandb.Image(np.zeros((2, 2, 3), np.uint8))})
    run.config.update({"late": True})
    file = finish(run)
    runs = load(tmp_path)
    assert list(runs) == ["a/first"]
    logs = runs["a/first"]
    assert logs["loss"].tolist() == [1.0, 1 / 2, 1 / 3, 1 / 4]
    assert logs.steps["step"]["loss"].tolist() == [0, 2, 4, 6]
    assert set(logs.steps) == {"step", "time", "epoch"}
    assert logs.steps["epoch"]["val/acc"].tolist() == [0, 10, 20, 30]
    assert "val/acc" not in logs.steps["step"]
    assert logs["nested/b/c"].tolist() == [2.5] * 4
    assert logs["w"]["mean"].tolist() == pytest.approx([2.0] * 4, abs=0.05)
    assert runs.configs["a/first"] == {
        "rate": 0.1, "model": {"width": 8}, "none": None, "late": True, "final": 3, "text": "done",
        "bad": pytest.approx(np.nan, nan_ok=True),
    }  # fmt: skip
    assert runs.left_out["a/first"] == {"picture": "image-file"}
    assert load(file)["loss"].shape == (4,)
    assert load(file.parent)["loss"].shape == (4,)


def test_runs_of_one_name_are_told_apart_and_come_as_they_began(tmp_path: Path) -> None:
    ids = []
    for number in (2, 1):
        run = start(tmp_path, name="same", config={"number": number})
        run.log({"x": number})
        run.log({"x": number})
        ids.append(run.id)
        finish(run)
    runs = load(tmp_path)
    assert list(runs) == [f"same ({run_id})" for run_id in ids]
    assert [config["number"] for config in runs.configs.values()] == [2, 1]
    assert list(runs.by("number")) == [1, 2]


def test_lox_with_everything(tmp_path: Path) -> None:
    with WandbLogger(project="ours", mode="offline", path=tmp_path) as logger:
        state = logger.init(jax.random.key(0), {"rate": 0.1, "sizes": [1, 2], "none": None})
        logger.log(state, {"depth": 3})
        for step in range(3):
            logger.log(
                state, {"loss": 0.5 * step, "net": {"w": 1.0 * step}, "v": np.arange(4.0)}, step=step, epoch=step // 2
            )
    runs = load(tmp_path)
    ((name, logs),) = runs.items()
    assert name == "0000000000000000"
    assert logs.steps["step"]["loss"].tolist() == [0, 1, 2]
    assert logs.steps["epoch"]["net/w"].tolist() == [0, 0, 1]
    assert logs["v"]["max"].tolist() == [3.0] * 3
    assert runs.configs[name] == {"rate": 0.1, "sizes": [1, 2], "none": None, "depth": 3}


def test_a_bit_that_has_changed_is_noticed(tmp_path: Path) -> None:
    run = start(tmp_path)
    for step in range(3):
        run.log({"x": step})
    file = finish(run)
    content = bytearray(file.read_bytes())
    for place in range(7, len(content), 41):
        content[place] ^= 4
        file.write_bytes(content)
        with contextlib.suppress(RunFormatError):  # or else a length that leads beyond the end, which looks like a kill
            found = load(file).get("x", np.empty(0)).tolist()
            assert found == list(range(len(found)))
        content[place] ^= 4
    for garbage in (b"garbage" * 100, b":W&B" + bytes(range(256)) * 10):
        file.write_bytes(garbage)
        with pytest.raises(RunFormatError, match=rf"{file.name} is damaged"):
            load(tmp_path)
