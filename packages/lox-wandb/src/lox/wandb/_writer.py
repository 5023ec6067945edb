"""`RunWriter`: the rows of one run.

wandb drops a row whose `step=` lies behind, so that argument is never given. A row holds its steps as metrics of their
own, under the names of the step axes, and every other metric is declared to belong to the axis that it was logged with.

Keys of equal steps share a row, also if they come in separate writes, as they do from `tap`: rows wait until one of
their keys comes again, or until the next flush.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import wandb

from lox import logdict
from lox.loggers.kinds import Column, Kinds
from lox.wandb._earlier import Earlier
from lox.wandb._errors import WandbError, WandbFinishedError, WandbKeyError
from lox.wandb._rows import Axes, Rows, Steps, by_axes, check_names, steps_of
from lox.wandb._runfile import RunReader
from lox.wandb._summary import Summary
from lox.wandb._values import BACKEND, ValueEncoder, plain

# More rows than this do not wait for other keys.
_MAX_WAITING = 8192
# How long the file of a run may stay as it is while rows are known to be on their way to it.
_PATIENCE = 15.0


class RunWriter:
    def __init__(
        self, run: wandb.Run, *, kinds: Kinds, summary: Summary, encoder: ValueEncoder, earlier: Earlier | None = None
    ) -> None:
        self.run = run
        self._kinds = kinds
        self._summary = summary
        self._encode = encoder
        self._earlier = earlier
        self._waiting: dict[Axes, Rows] = {}
        self._defined: set[str] = set()
        self._on_disk = _OnDisk(run)
        if earlier is not None and earlier.next_number > run.starting_step:
            # An empty row, which stores nothing: offline, wandb does not know how many rows the earlier files hold, and
            # would number these like those.
            run.log({}, step=earlier.next_number)

    def write(self, logs: logdict) -> None:
        columns = self._kinds.columns(logs)
        check_names([*logs, *(column.name for column in columns)], logs.steps)
        for axes, group in by_axes(logs, columns).items():
            self._write_group(logs, axes, group)

    def flush(self) -> None:
        """Hands every row to wandb's own process. `settle` waits until they are on disk."""
        for rows in self._waiting.values():
            self._emit(rows)
        self._encode.forget_files()

    def settle(self) -> None:
        """Returns when every row that was flushed is in the run's file."""
        self._on_disk.wait()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self.run.finish()
        self._on_disk.wait_for_end()

    def configure(self, config: dict[str, Any]) -> None:
        self._call(self.run.config.update, config, allow_val_change=True)

    def _write_group(self, logs: logdict, axes: Axes, columns: list[Column]) -> None:
        rows = self._waiting.setdefault(axes, Rows(axes))
        shown = [column for column in columns if column.kind != "hparams"]
        encoded = [self._encode(column) for column in shown]
        if any(rows.has_any(values) for values in encoded):
            self._emit(rows)
        for column, by_name in zip(shown, encoded, strict=True):
            steps = steps_of(logs, axes, column)
            for name, values in by_name.items():
                self._add(rows, axes, column.key, name, steps, values)
        self.configure_from([column for column in columns if column.kind == "hparams"])
        if not axes or len(rows) > _MAX_WAITING:
            self._emit(rows)

    def _add(self, rows: Rows, axes: Axes, key: str, name: str, steps: list[Steps], values: list[Any]) -> None:
        if name in axes:
            if [step[axes.index(name)] for step in steps] == values:
                return  # the step was logged as a value too, and the row has it
            raise WandbKeyError(
                f"{BACKEND}: {name!r} is both a step axis and, with other values, a key of the same record: rename one."
            )
        self._define(axes, key, name)
        rows.add(name, steps, values, self._skipped(name, axes))

    def configure_from(self, columns: list[Column]) -> None:
        """Values of the kind hparams are no history: they go to the run's config, the last one stays."""
        if columns:
            self.configure({column.name: plain(column.values[-1]) for column in columns})

    def _skipped(self, name: str, axes: Axes) -> Collection[Steps]:
        """The steps that earlier files of the run hold."""
        return () if self._earlier is None else self._earlier.steps(name, axes)

    def _define(self, axes: Axes, key: str, name: str) -> None:
        if name in self._defined:
            return
        self._defined.add(name)
        for axis in axes:
            if axis not in self._defined:
                self._defined.add(axis)
                self._call(self.run.define_metric, axis)
        summary = self._summary.of(name, key)
        if (axes or summary) and "*" not in name:  # wandb takes it for a pattern
            self._call(
                self.run.define_metric,
                name.replace(".", "\\."),  # a plain dot would lead into a nested value
                step_metric=axes[0] if axes else None,
                step_sync=False,  # rows say their steps; a step that they do not say must not be invented
                summary=summary,
            )

    def _emit(self, rows: Rows) -> None:
        for row in rows.take():
            self._call(self.run.log, row)
            self._on_disk.expected += 1

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except wandb.Error as error:
            if "finished" in str(error):
                raise WandbFinishedError(
                    f"{BACKEND}: the run {self.run.name!r} is finished (by run.finish() or wandb.teardown()), so nothing "
                    'more can be logged to it. Close the logger instead; if_exists="resume" continues a run.'
                ) from error
            raise WandbError(f"{BACKEND}: the run {self.run.name!r}: {error}") from error


class _OnDisk:
    """How many of the rows have reached the run's file, from which no death of the process can take them.

    wandb's process writes the file from time to time; there is no way to ask it to do so now. It also goes on writing
    when `run.finish()` has returned.
    """

    def __init__(self, run: wandb.Run) -> None:
        self.expected = 0
        self._found = 0
        self._run = run
        self._interval = float(getattr(run.settings, "x_transaction_log_flush_interval", 0) or 0)
        self._reader = None if run.disabled else RunReader(run.settings.sync_file)

    def wait(self) -> None:
        """Returns when all rows are there. Where wandb writes only full blocks, they may never be, so it does not wait."""
        if self._reader is not None and self._interval:
            self._wait(lambda: self._found >= self.expected, self._interval / 4)

    def wait_for_end(self) -> None:
        """Returns when the file of a finished run is whole."""
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
                    f"{BACKEND}: of the {self.expected} rows of the run {self._run.name!r}, {self._found} have reached its "
                    f"file {self._reader.path}. Is the disk full, or wandb's process gone?"
                )
            else:
                time.sleep(min(pause, 0.25))
