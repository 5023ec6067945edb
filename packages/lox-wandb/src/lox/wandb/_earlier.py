"""What a resumed run already has: from its earlier files on this disk, and from the server."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wandb

from lox.loggers import LoggerWarning
from lox.wandb._runfile import Row, read_rows


class Earlier:
    """The steps of each name, and the number that wandb would give to the next row."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # For a histogram or an image, it only matters that there is one.
        self._rows = [{name: _small(value) for name, value in row.items()} for row in rows]
        self._asked: dict[tuple[str, tuple[str, ...]], set[tuple[Any, ...]]] = {}
        self.next_number = 1 + max((row.get("_step", -1) for row in self._rows), default=-1)

    def steps(self, name: str, axes: tuple[str, ...]) -> set[tuple[Any, ...]]:
        """The steps along `axes` at which `name` has a value. Without axes there are none, because such records cannot be
        distinguished."""
        if not axes:
            return set()
        if (name, axes) not in self._asked:
            needed = {name, *axes}
            self._asked[name, axes] = {tuple(row[axis] for axis in axes) for row in self._rows if needed <= row.keys()}
        return self._asked[name, axes]


def _small(value: Any) -> Any:
    return value if isinstance(value, int | float) else None


def earlier_rows(run: wandb.Run, files: list[Path]) -> Earlier:
    """The rows that a resumed `run` had before.

    Args:
      files: its files on this disk, without the new one.
    """
    rows = [row for file in files for row in read_rows(file)]
    earlier = Earlier(rows)
    if earlier.next_number >= run.starting_step:
        return earlier
    try:  # the server also has what other machines logged
        api = wandb.Api(overrides={"base_url": run.settings.base_url}, api_key=run.settings.api_key)
        return Earlier([*rows, *api.run(run.path).scan_history()])
    except Exception as error:  # whatever it is, training must continue
        message = f"WandbLogger: the rows of {run.path} could not be read, so some may be written twice: {error}"
        warnings.warn(message, LoggerWarning, stacklevel=2)
        return earlier
