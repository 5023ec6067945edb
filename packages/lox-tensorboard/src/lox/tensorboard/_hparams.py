"""Hyperparameters, for TensorBoard's HPARAMS tab."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tensorboardX import summary
from tensorboardX.proto.summary_pb2 import Summary

from lox.loggers import LoggerOptionError, Run
from lox.loggers.kinds import Column, KindError

Number = str | bool | int | float


class HParams:
    """The hyperparameters of one run: those given to the logger, and those logged under the kind `"hparams"`.

    TensorBoard reads them once for each run and ignores later changes. So if some are to be logged, writing waits for the
    first record that has any.
    """

    def __init__(self, given: Mapping[str, Number], expects_more: bool) -> None:
        self._values = dict(given)
        self._waiting = expects_more
        self._written = False

    def at_start(self) -> list[Summary]:
        return [] if self._waiting else self._write()

    def add(self, columns: list[Column]) -> list[Summary]:
        """Takes logged hyperparameters, and returns the summaries to write."""
        logged = {column.name: _constant(column) for column in columns if len(column.values)}
        for name, value in logged.items():
            self._check(name, value)
        self._values.update(logged)
        return self._write() if logged else []

    def at_end(self) -> list[Summary]:
        start = self._write()
        if not self._written:
            return []
        _, _, end = summary.hparams({}, {})
        return [*start, end]

    def _write(self) -> list[Summary]:
        if self._written or not self._values:
            return []
        self._written = True
        # Without the experiment summary, TensorBoard finds the metrics itself: every scalar of a run.
        _, start, _ = summary.hparams(self._values, {})
        return [start]

    def _check(self, name: str, value: Number) -> None:
        if self._written and name not in self._values:
            raise KindError(
                f"TensorBoardLogger: {name!r} is a hyperparameter, but the hyperparameters of this run are already written. "
                "TensorBoard reads them once: log them all in one record."
            )
        if self._written and not _same(self._values[name], value):
            raise _changed(name, self._values[name], value)


def check_hparams(hparams: Mapping[str, Any] | None) -> dict[str, Number]:
    """The hyperparameters given to a logger, flattened to what TensorBoard can show."""
    if hparams is not None and not isinstance(hparams, Mapping):
        raise LoggerOptionError(
            f"TensorBoardLogger: hparams must be a mapping, as in {{'lr': 1e-3}}; got {type(hparams).__name__}"
        )
    return dict(_flat("", hparams or {}))


def of_config(run: Run) -> dict[str, Number]:
    """The config of a run, flattened. Values that the HPARAMS tab cannot show become text, because a config is not only for
    TensorBoard."""
    return dict(_flat("", run.plain_config))


def _refuse(name: str, value: Any) -> Number:
    raise LoggerOptionError(
        f"TensorBoardLogger: hparams[{name!r}] is a {type(value).__name__}; the HPARAMS tab shows numbers, "
        "strings and booleans. Convert it, with str() if nothing else fits."
    )


def _flat(prefix: str, hparams: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    for name, value in hparams.items():
        full = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(f"{full}/", value)
        elif isinstance(value, str | bool | int | float):
            yield full, value
        elif value is None or isinstance(value, list | tuple):
            yield full, str(value)
        elif np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf":
            yield full, _number(np.asarray(value))
        else:
            yield full, _refuse(full, value)


def _number(value: np.ndarray) -> Number:
    if value.dtype.kind == "f" and value.dtype.itemsize < 8:
        return float(str(value[()]))  # so a rate of 0.1 is stored as 0.1, not as 0.10000000149011612
    number: Number = value.item()
    return number


def _constant(column: Column) -> Number:
    """The value of a hyperparameter, which must be the same in all records of a run."""
    if column.values.ndim != 1:
        raise KindError(
            f"TensorBoardLogger: {column.name!r} cannot be a hyperparameter: a record has shape "
            f"{column.values.shape[1:]}, and the HPARAMS tab shows single numbers and strings."
        )
    first, *rest = np.unique(column.values, equal_nan=True)[:2].tolist()
    if rest:
        raise _changed(column.name, first, rest[0])
    value: Number = first.decode() if isinstance(first, bytes) else first
    return value


def _changed(name: str, before: Number, after: Number) -> KindError:
    return KindError(
        f"TensorBoardLogger: the hyperparameter {name!r} has the values {before!r} and {after!r} in one run. What "
        "changes during a run is a scalar: leave it out of kinds=."
    )


def _same(a: Number, b: Number) -> bool:
    return a == b or (a != a and b != b)
