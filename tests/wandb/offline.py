"""Reading an offline run back from its file on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import wandb
from wandb.proto import wandb_internal_pb2

from lox.wandb._runfile import RunReader, find_run_files, row_of


def file_of(run: wandb.Run) -> Path:
    return Path(run.settings.sync_file)


def wait_until_whole(path: Path) -> Path:
    """wandb writes on for a moment after `run.finish()`; the logger waits for that, a bare run does not."""
    reader = RunReader(path)
    deadline = time.monotonic() + 60
    while not reader.ended and time.monotonic() < deadline:
        reader.read_on()
        time.sleep(0.01)
    return path


def records(path: Path, kind: str) -> list[Any]:
    """The records of one kind: history, metric, config, run, summary, ..."""
    found: list[wandb_internal_pb2.Record] = list(RunReader(path).records())
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows in the order of the file, without what wandb adds to each."""
    return [
        {name: value for name, value in row_of(history).items() if not name.startswith("_")}
        for history in records(path, "history")
    ]


def all_rows(folder: Path, run_id: str) -> list[dict[str, Any]]:
    """The rows of all files of a run."""
    return [row for path in find_run_files(folder / "wandb", run_id) for row in rows(path)]


def metrics(path: Path) -> dict[str, Any]:
    """What was declared, by name."""
    return {metric.name: metric for metric in records(path, "metric")}


def summary(path: Path) -> dict[str, Any]:
    """The summary as it was when the file ended."""
    found: dict[str, Any] = {}
    for record in records(path, "summary"):
        for item in record.update:
            place = found
            *parents, leaf = list(item.nested_key) or [item.key]
            for parent in parents:
                if not isinstance(place.get(parent), dict):
                    place[parent] = {}
                place = place[parent]
            place[leaf] = json.loads(item.value_json)
    return found


def config(path: Path) -> dict[str, Any]:
    """The config as it was when the file ended, without wandb's own part."""
    found: dict[str, Any] = {}
    updates = [record.config for record in records(path, "run")] + records(path, "config")
    for update in updates:
        for item in update.update:
            found[item.key or item.nested_key[0]] = json.loads(item.value_json)
    found.pop("_wandb", None)
    return found


def rows_by_wandb(path: Path) -> list[dict[str, Any]]:
    """The same rows as `rows`, read by wandb's own command."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        {name: value for name, value in record["history"]["item"].items() if not name.startswith("_")}
        for record in found
        if record["type"] == "history"
    ]
