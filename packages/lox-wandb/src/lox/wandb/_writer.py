"""`RunWriter`: the rows of one run.

wandb drops a row whose `step=` is smaller than the last one, so lox never passes `step=`. Instead, a row holds its steps as
metrics with the names of the step axes, and every other metric is declared to belong to the axis it was logged with.

Keys with equal steps share a row, even if they come in separate writes, as they do from `tap`. So rows wait until one of
their keys comes again, or until the next flush. This is not a second batching of records: a row that was sent to wandb cannot
get another key.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import wandb

from lox import logdict
from lox.loggers.backend import json_value
from lox.loggers.kinds import Kinds
from lox.wandb._disk import OnDisk
from lox.wandb._earlier import Earlier
from lox.wandb._errors import BACKEND, WandbError, WandbFinishedError, WandbKeyError
from lox.wandb._reports import Reports, log
from lox.wandb._rows import Axes, PendingRows, axes_of, check_names, steps_of
from lox.wandb._summary import Summary
from lox.wandb._values import ValueEncoder, numbers

_SAY_AFTER = 5.0  # seconds

# More rows than this do not wait for other keys.
_MAX_WAITING = 8192


class Metrics(NamedTuple):
    """Some metrics: their keys, their names, and for each of them a value for each record."""

    keys: list[str]
    names: list[str]
    columns: list[list[Any]]

    def pick(self, places: list[int]) -> Metrics:
        return Metrics(
            [self.keys[place] for place in places],
            [self.names[place] for place in places],
            [self.columns[place] for place in places],
        )


class Upload:
    """What the runs of a logger share when they end.

    Attributes:
      timeout: for how many seconds to wait for the upload of a run.
      told: the messages of wandb that were already reported.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.told: set[str] = set()
        self._wandb_timeout = timeout  # wandb itself stops after it, and it cannot be changed later
        self._timed_out = False

    def shorten(self, timeout: float) -> None:
        """Waits for at most this long from now on."""
        self.timeout = timeout if self._wandb_timeout is None else min(timeout, self._wandb_timeout)

    def finish(self, run: wandb.Run) -> None:
        """Ends a run. Raises a TimeoutError if its data is not uploaded in time. After that, the other runs wait for a shorter
        time."""
        try:
            if self._timed_out:
                _finish_within(1.0, run)
            elif self.timeout is not None and self.timeout != self._wandb_timeout:
                _finish_within(self.timeout, run)
            else:
                run.finish()
        except TimeoutError:
            self._timed_out = True
            raise


def _finish_within(seconds: float, run: wandb.Run) -> None:
    ended: list[bool] = []

    def end() -> None:
        with contextlib.suppress(Exception):  # wandb's process may end meanwhile
            run.finish()
            ended.append(True)

    ending = threading.Thread(target=end, daemon=True)
    try:
        ending.start()
    except RuntimeError:  # the interpreter is exiting, so no thread can start
        run.finish()
        return
    ending.join(seconds)
    if not ended:
        raise TimeoutError


def _later(seconds: float, action: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # the interpreter is exiting, so no thread can start
        timer.start()
    return timer


class RunWriter:
    def __init__(
        self,
        run: wandb.Run,
        *,
        kinds: Kinds,
        summary: Summary,
        encoder: ValueEncoder,
        upload: Upload,
        earlier: Earlier | None = None,
    ) -> None:
        self.run = run
        self._upload = upload
        self._reports = Reports(upload.told, str(run.name), run.settings.log_internal) if not run.disabled else None
        self.closed = False
        self._kinds = kinds
        self._summary = summary
        self._encode = encoder
        self._earlier = earlier
        self._waiting: dict[Axes, PendingRows] = {}
        self._flat: dict[Any, dict[Axes, list[str]]] = {}  # layouts of logs that hold only numbers
        self._defined: set[str] = set()
        self._on_disk = OnDisk(run)
        if earlier is not None and earlier.next_number > run.starting_step:
            # An empty row stores nothing, but sets the number of the next one: offline, wandb does not know how many rows the
            # earlier files have.
            run.log({}, step=earlier.next_number)

    def write(self, logs: logdict) -> None:
        layout = _flat_layout(logs)
        groups = None if layout is None else self._flat.get(layout)
        if groups is None:
            self._write_any(logs, layout)
            return
        for axes, keys in groups.items():
            self._write_group(logs, axes, Metrics(keys, keys, [numbers(logs[key]) for key in keys]))

    def flush(self) -> None:
        """Sends every row to wandb's own process. `settle` waits until they are on disk."""
        for rows in self._waiting.values():
            self._emit(rows)
        self._encode.forget_files()
        self._tell_reports()

    def settle(self) -> None:
        """Returns when every row that was flushed is in the run's file."""
        if not self.closed:
            self._on_disk.wait()

    def close(self) -> None:
        self.closed = True
        try:
            self.flush()
        finally:
            self._finish()
        self._on_disk.wait_for_end()

    def _finish(self) -> None:
        """Waits for the upload, for at most the logger's `close_timeout`, or what `close` was given."""
        saying = _later(_SAY_AFTER, self._say_what_is_waited_for)
        try:
            self._upload.finish(self.run)
        except TimeoutError:
            self._tell_reports()
            self._on_disk.wait()
            folder = Path(self.run.settings.sync_file).parent
            raise WandbError(
                f"{BACKEND}: the upload of the run {self.run.name!r} did not end within {self._upload.timeout:g} seconds "
                f"(close_timeout=). All of its {self._on_disk.expected} rows are in {folder}; `wandb sync {folder}` "
                "uploads them."
            ) from None
        finally:
            saying.cancel()

    def _say_what_is_waited_for(self) -> None:
        self._tell_reports()
        limit = "" if self._upload.timeout is None else f" at most {self._upload.timeout:g} seconds (close_timeout=)"
        log.warning("%s: waiting for the upload of the run %r%s", BACKEND, self.run.name, limit)

    def _tell_reports(self) -> None:
        if self._reports is not None:
            self._reports.tell()

    def configure(self, config: dict[str, Any]) -> None:
        self._call(self.run.config.update, config, allow_val_change=True)

    def _write_any(self, logs: logdict, layout: Any) -> None:
        columns = self._kinds.columns(logs)
        check_names([*logs, *(column.name for column in columns)], logs.steps)
        groups: dict[Axes, Metrics] = {}
        for column in columns:
            if column.kind == "hparams":  # these have no history: the run's config keeps the last value
                self.configure({column.name: json_value(column.values[-1])})
                continue
            axes = axes_of(logs, column.key)
            group = groups.setdefault(axes, Metrics([], [], []))
            for name, values in self._encode(column).items():
                if not _is_step(logs, axes, column.key, name, values):
                    self._define(axes, column.key, name)
                    group.keys.append(column.key)
                    group.names.append(name)
                    group.columns.append(values)
        for axes, group in groups.items():
            self._write_group(logs, axes, group)
        if layout is not None and sorted(name for group in groups.values() for name in group.names) == sorted(logs):
            self._flat[layout] = {axes: group.keys for axes, group in groups.items()}

    def _write_group(self, logs: logdict, axes: Axes, group: Metrics) -> None:
        """Adds metrics of the same axes to the rows of their steps."""
        rows = self._waiting.get(axes)
        if rows is None:
            rows = self._waiting[axes] = PendingRows(axes)
        if rows.has_any(group.names):
            self._emit(rows)
        for part in _by_steps(logs, axes, group):
            skipped = [self._earlier.steps(name, axes) for name in part.names] if self._earlier is not None else []
            rows.add(part.names, steps_of(logs, axes, part.keys[0]), part.columns, skipped)
        if not axes or len(rows) > _MAX_WAITING:
            self._emit(rows)

    def _define(self, axes: Axes, key: str, name: str) -> None:
        if name in self._defined:
            return
        self._defined.add(name)
        for axis in axes:
            if axis not in self._defined:
                self._defined.add(axis)
                self._call(self.run.define_metric, axis)
        summary = self._summary.of(name, key)
        if (axes or summary) and "*" not in name:  # wandb would treat it as a pattern
            self._call(
                self.run.define_metric,
                name.replace(".", "\\."),  # a plain dot would lead into a nested value
                step_metric=axes[0] if axes else None,
                step_sync=False,  # rows have their own steps, and wandb must not add others
                summary=summary,
            )

    def _emit(self, rows: PendingRows) -> None:
        for row in rows.take():
            self._call(self.run.log, row)
            self._on_disk.expected += 1

    def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except wandb.Error as error:
            if "finished" in str(error):
                raise WandbFinishedError(
                    f"{BACKEND}: the run {self.run.name!r} is finished (by run.finish() or wandb.teardown()), so "
                    'nothing more can be logged to it. Close the logger instead; if_exists="resume" continues a run.'
                ) from error
            raise WandbError(f"{BACKEND}: the run {self.run.name!r}: {error}") from error


def _flat_layout(logs: logdict) -> Any:
    """The layout of logs whose keys all have one number in each record; None for other logs.

    Programs log the same thing again and again, so each layout is analysed only once.
    """
    keys = []
    for key, values in logs.items():
        if type(values) is not np.ndarray or values.ndim != 1 or values.dtype.kind not in "biuf":
            return None
        keys.append(key)
    return tuple(keys), tuple([(axis, tuple(by_key)) for axis, by_key in logs.steps.items()])


def _by_steps(logs: logdict, axes: Axes, group: Metrics) -> list[Metrics]:
    """The metrics in parts that share their steps, so that one pass over the rows is enough for a part."""
    if len(group.keys) < 2:
        return [group] if group.keys else []
    arrays = [logs.steps[axis] for axis in axes]
    first = [by_key[group.keys[0]] for by_key in arrays]
    same = (by_key[key] is array for by_key, array in zip(arrays, first, strict=True) for key in group.keys)
    if axes and all(same):
        return [group]
    parts: dict[tuple[int, ...], list[int]] = {}
    for place, key in enumerate(group.keys):
        shared = tuple([id(by_key[key]) for by_key in arrays]) if axes else (len(group.columns[place]),)
        parts.setdefault(shared, []).append(place)
    return [group.pick(places) for places in parts.values()]


def _is_step(logs: logdict, axes: Axes, key: str, name: str, values: list[Any]) -> bool:
    """Whether a step was also logged as a value, which the row already has."""
    if name not in axes:
        return False
    if logs.steps[name][key].tolist() == values:
        return True
    raise WandbKeyError(
        f"{BACKEND}: {name!r} is both a step axis and a key of the same record, with different values. Rename one."
    )
