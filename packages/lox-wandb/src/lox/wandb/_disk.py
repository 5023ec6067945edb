"""Waiting until rows are in the file of a run."""

from __future__ import annotations

import time
from collections.abc import Callable

import wandb

from lox.wandb._errors import BACKEND, WandbError
from lox.wandb._runfile import RunReader

# How many seconds the file of a run may stay unchanged while rows are on their way to it.
_PATIENCE = 15.0


class OnDisk:
    """How many rows have reached the run's file, where they survive if the process is killed.

    wandb's process writes the file from time to time, and cannot be asked to do so now. It continues to write after
    `run.finish()` has returned.
    """

    def __init__(self, run: wandb.Run) -> None:
        self.expected = 0
        self._found = 0
        self._run = run
        self._interval = float(getattr(run.settings, "x_transaction_log_flush_interval", 0) or 0)
        self._reader = None if run.disabled else RunReader(run.settings.sync_file)

    def wait(self) -> None:
        """Returns when all rows are in the file. If wandb writes only full blocks, it returns at once: they may never be."""
        if self._reader is not None and self._interval:
            self._wait(lambda: self._found >= self.expected, self._interval / 4)

    def wait_for_end(self) -> None:
        """Returns when the file of a finished run is complete."""
        reader = self._reader
        if reader is not None:
            self._wait(lambda: reader.ended and self._found >= self.expected, 0.005)

    def _wait(self, done: Callable[[], bool], pause: float) -> None:
        assert self._reader is not None
        deadline = time.monotonic() + self._interval + _PATIENCE
        while not done():
            if new := self._reader.read_on():
                self._found += new
                deadline = time.monotonic() + self._interval + _PATIENCE
            elif done():
                return
            elif time.monotonic() > deadline:
                raise WandbError(
                    f"{BACKEND}: only {self._found} of the {self.expected} rows of the run {self._run.name!r} have "
                    f"reached its file {self._reader.path}. Is the disk full, or wandb's process gone?"
                )
            else:
                time.sleep(min(pause, 0.25))
