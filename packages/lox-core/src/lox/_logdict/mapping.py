"""``logdict``: what ``lox.spool`` returns and what a callback receives.

A logdict is a dict of ``key -> value`` that also knows, for every key,

* its **steps**: one array per step axis, laid out like the records,
* its **count**: how many records there were (an ``int`` where the program fixes it, else an array),
* whether it is **stacked**: the records lie along axis 0 of the values. A key that is not stacked holds one
  record, without that axis.

It is a pytree. Step arrays that several keys share are one leaf, so a record with sixty values carries its step only
once. Under ``vmap`` the lane axis comes before the record axis. The methods below work on the logs of one lane, so map
them with ``jax.vmap`` too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from lox._errors import LogTypeError, MissingKeyError
from lox._logdict import display, html, pytree
from lox._logdict.arrays import Memo, to_numpy, to_plain
from lox._logdict.frame import to_frame
from lox._logdict.keys import no_such_key, takes_two
from lox._logdict.reduction import reduce_logs
from lox._logdict.sequence import concatenate, iterate_rows

Steps = dict[str, dict[str, Any]]


class logdict(dict[str, Any]):
    """Logged values by key, with their steps and counts.

    Args:
      data: the values, each a pytree of arrays.
      steps: ``{axis: {key: array}}``, laid out as the values are.
      counts: how many records each key has; by default, the length of its values.
      stacked: the keys whose values have a record axis.

    >>> logs = logdict({"loss": np.array([3.0, 2.0])}, steps={"step": {"loss": np.array([0, 10])}}, stacked=["loss"])
    >>> print(logs)
    {'loss': [3., 2.]}
    >>> logs.step["loss"].tolist()
    [0, 10]
    """

    __slots__ = ("_bounds", "_counts", "_stacked", "_steps")

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        steps: Mapping[str, Mapping[str, Any]] | None = None,
        counts: Mapping[str, Any] | None = None,
        stacked: Iterable[str] = (),
    ) -> None:
        super().__init__(data)
        self._steps: Steps = {
            axis: {key: np.asarray(step) if isinstance(step, (list, tuple)) else step for key, step in by_key.items()}
            for axis, by_key in (steps or {}).items()
        }
        self._stacked = frozenset(stacked) & self.keys()
        self._counts = {key: (counts or {}).get(key, self._rows_of(key)) for key in self}
        # key -> capacity (None: rows are never dropped), for the keys whose unused rows `trim` may drop.
        self._bounds: dict[str, int | None] = {}

    @classmethod
    def _make(
        cls,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]],
        steps: Steps,
        counts: dict[str, Any],
        stacked: frozenset[str],
        bounds: dict[str, int | None],
    ) -> logdict:
        """The constructor without checks or copies, for hot paths."""
        new = cls.__new__(cls)
        dict.update(new, data)
        new._steps, new._counts, new._stacked, new._bounds = steps, counts, stacked, bounds
        return new

    # --- what it knows -------------------------------------------------------------------------------------------

    @property
    def steps(self) -> Steps:
        """``{axis: {key: steps}}``."""
        return self._steps

    @property
    def counts(self) -> dict[str, Any]:
        """How many records each key had in all, including those that a bound dropped."""
        return self._counts

    @property
    def stacked(self) -> frozenset[str]:
        """The keys whose values have a record axis."""
        return self._stacked

    def __getattr__(self, name: str) -> dict[str, Any]:
        if name.startswith("_"):  # also asked for while unpickling, before there are steps
            raise AttributeError(f"logdict has no attribute {name!r}")
        if name in self._steps:
            return self._steps[name]
        raise AttributeError(f"logdict has no attribute or step axis {name!r}; its step axes are {list(self._steps)}")

    def __missing__(self, key: Any) -> Any:
        raise MissingKeyError(f"lox: {no_such_key(key, self)}")

    def _rows_of(self, key: str) -> int:
        if key not in self._stacked:
            return 1
        return int(np.shape(jax.tree.leaves(self[key])[0])[0])

    def _check_one_lane(self, what: str) -> None:
        """Refuse logs of several lanes: their lane axis comes first, and would be mistaken for the record axis."""
        for key in self._stacked:
            count, shape = self._counts[key], np.shape(jax.tree.leaves(self[key])[0])
            lanes = np.ndim(count) > 0 or (
                key not in self._bounds and len(shape) > 1 and shape[0] != count and shape[1] == count
            )
            if lanes:
                raise LogTypeError(
                    f"lox: logs.{what} needs the logs of one lane, and these are the logs of several ({key!r} has "
                    f"shape {shape}). Take one lane with jax.tree.map(lambda x: x[i], logs)"
                    + (", or map over the lanes with jax.vmap(lambda logs: ...)(logs)" if what in _MAPPED else "")
                    + ". (If they come from the devices of a shard_map, spool inside it, or use a logger.)"
                )

    def _steps_of(self, key: str) -> dict[str, Any]:
        return {axis: by_key[key] for axis, by_key in self._steps.items() if key in by_key}

    def __repr__(self) -> str:
        return display.show_mapping(self)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each key, with its curve."""
        return html.show_logs(self)

    # --- editing -------------------------------------------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        """Set one record without steps; to keep steps, build a logdict and use ``|``."""
        if key in self:
            del self[key]
        super().__setitem__(key, value)
        self._counts[key] = 1

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        for by_key in (*self._steps.values(), self._counts, self._bounds):
            by_key.pop(key, None)
        self._stacked -= {key}
        self._steps = {axis: by_key for axis, by_key in self._steps.items() if by_key}

    def pop(self, key: str, *default: Any) -> Any:
        if key not in self:
            return super().pop(key, *default)
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        if not self:
            return super().popitem()
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        self._become(logdict())

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **values: Any) -> None:
        """As ``|``, in place."""
        for other in (*others, values):
            self._become(self | dict(other) if not isinstance(other, logdict) else self | other)

    def _become(self, other: logdict) -> None:
        super().clear()
        super().update(other)
        self._steps, self._counts, self._stacked, self._bounds = (
            other._steps,
            other._counts,
            other._stacked,
            other._bounds,
        )

    def copy(self) -> logdict:
        return self._pick({key: key for key in self})

    __copy__ = copy

    def __reduce__(self) -> Any:
        return logdict._make, (dict(self), self._steps, self._counts, self._stacked, self._bounds)

    def _pick(self, names: Mapping[str, str]) -> logdict:
        """The keys of ``names``, renamed to its values."""
        return logdict._make(
            {new: self[key] for key, new in names.items()},
            {
                axis: picked
                for axis, by_key in self._steps.items()
                if (picked := {names[key]: steps for key, steps in by_key.items() if key in names})
            },
            {new: self._counts[key] for key, new in names.items()},
            frozenset(names[key] for key in self._stacked if key in names),
            {names[key]: bound for key, bound in self._bounds.items() if key in names},
        )

    def filter(self, pred: Callable[[str], bool] | Callable[[str, Any], bool]) -> logdict:
        """The keys for which ``pred(key)`` holds; a function of two arguments is given the value too."""
        given = self.items() if takes_two(pred) else ((key,) for key in self)
        return self._pick({args[0]: args[0] for args in given if pred(*args)})

    def prefix(self, prefix: str) -> logdict:
        """The same logs, with ``prefix`` put before every key."""
        return self._pick({key: prefix + key for key in self})

    # --- combining -----------------------------------------------------------------------------------------------

    def __or__(self, other: Mapping[str, Any]) -> logdict:  # type: ignore[override]
        """The keys of both. If a key is in both, the right one wins, with its steps and count."""
        right = other if isinstance(other, logdict) else logdict(other)
        left = self.filter(lambda key: key not in right)
        merged = logdict._of_disjoint([left, right])
        return merged._pick({key: key for key in dict.fromkeys((*self, *right))})

    def __ior__(self, other: Mapping[str, Any]) -> logdict:  # type: ignore[override]
        self.update(other)
        return self

    @staticmethod
    def _of_disjoint(parts: list[logdict]) -> logdict:
        """Joins logs that have no key in common."""
        whole = logdict()
        for part in parts:
            dict.update(whole, part)
            for axis, by_key in part._steps.items():
                whole._steps.setdefault(axis, {}).update(by_key)
            whole._counts.update(part._counts)
            whole._bounds.update(part._bounds)
        whole._stacked = frozenset().union(*(part._stacked for part in parts))
        return whole

    def __add__(self, other: logdict) -> logdict:
        """The records of ``self``, then those of ``other``."""
        if not isinstance(other, logdict):
            return NotImplemented
        return concatenate(self, other)

    # --- looking at records --------------------------------------------------------------------------------------

    @property
    def slice(self) -> _Slicer:
        """``logs.slice[i:j:k]`` takes those records of every stacked key; ``logs.slice[i]`` takes one record."""
        return _Slicer(self)

    def trim(self) -> logdict:
        """Drop the unused rows of bounded keys (``capacity=``, ``where=``). The logs must be concrete."""
        bounded = {key for key in self._bounds if key in self._stacked}
        if not bounded:
            return self
        if any(isinstance(self._counts[key], jax.core.Tracer) for key in bounded):
            raise LogTypeError("lox: logs.trim() needs concrete values: call it outside jit, vmap and grad")
        self._check_one_lane("trim()")
        rows = {key: min(int(self._counts[key]), self._rows_of(key)) for key in bounded}
        return self._map_rows(lambda key, leaf: leaf[: rows[key]] if key in rows else leaf, bounds={})

    def table(self) -> logdict:
        """The logs as numpy columns: every key stacked, unused rows dropped."""
        self._check_one_lane("table()")
        concrete = jax.tree.map(to_numpy, self).trim()
        single = self.keys() - self._stacked
        if single:
            concrete = concrete._map_rows(lambda key, leaf: np.asarray(leaf)[None] if key in single else leaf)
        concrete._stacked = frozenset(concrete)
        return concrete

    def _map_rows(self, change: Callable[[str, Any], Any], **replaced: Any) -> logdict:
        """Apply ``change(key, leaf)`` to all leaves of values and steps."""
        shared = Memo()
        values = {key: jax.tree.map(functools.partial(change, key), value) for key, value in self.items()}
        kinds = {key: (key in self._bounds, key in self._stacked, _bound_id(self, key)) for key in self}
        steps = {
            axis: {key: shared(kinds[key], leaf, functools.partial(change, key, leaf)) for key, leaf in by_key.items()}
            for axis, by_key in self._steps.items()
        }
        bounds = replaced.get("bounds", dict(self._bounds))
        return logdict._make(values, steps, dict(self._counts), self._stacked, bounds)

    def rows(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Iterate over records as ``(steps, values)``.

        Keys with equal steps share a row, keys without steps are merged by record number.

        >>> logs = logdict({"a": np.arange(2), "b": np.arange(2) * 10}, stacked=["a", "b"])
        >>> [{key: int(value) for key, value in values.items()} for _, values in logs.rows()]
        [{'a': 0, 'b': 0}, {'a': 1, 'b': 10}]
        """
        self._check_one_lane("rows()")
        return iterate_rows(self.table())

    def reduce(self, how: Any) -> logdict:
        """Fold the records of each key, with the same result as ``spool(f, reduce=how)``."""
        self._check_one_lane("reduce()")
        return reduce_logs(self, how)

    def asdict(self) -> dict[str, Any]:
        """Plain numpy arrays and Python numbers."""
        return {key: jax.tree.map(to_plain, value) for key, value in self.trim().items()}

    def to_pandas(self, lanes: int | None = None) -> Any:
        """A DataFrame with a row for each record and a column for each step axis and key. Needs pandas.

        Nested values have a column for each leaf, ``key/leaf``. Logs of several lanes, as from ``vmap(spool(f))``, have the
        rows of each lane and a column ``lane``.

        Args:
          lanes: how many leading axes are lanes. Logs without steps do not show it, so pass it for those.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("logdict.to_pandas() needs pandas: pip install pandas") from error
        return to_frame(pandas, self, lanes)

    def plot(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        axis: str | None = None,
        center: str = "mean",
        band: str = "std",
        each: bool = False,
        smooth: float = 0.0,
        log: bool = False,
        lanes: int | None = None,
    ) -> Any:
        """A ``matplotlib.figure.Figure`` with a plot for each key, as ``lox plot`` draws it. Needs lox-loggers and matplotlib.

        Several lanes, as from ``vmap(spool(f))``, are one curve with a band.

        Args:
          keys: only these keys; patterns such as ``"train/*"`` work.
          axis: the step axis to draw over; by default the first one that a key has.
          center: ``"mean"``, ``"median"``, or ``"iqm"``, the mean of the middle half.
          band: ``"std"``, ``"ci95"``, the bootstrap interval of the center, ``"minmax"``, or ``"quartiles"``.
          each: draw a line for each lane instead.
          smooth: the weight of earlier records, from 0 to below 1, as in TensorBoard.
          log: use a logarithmic y axis.
          lanes: how many leading axes are lanes. Logs without steps do not show it, so pass it for those.
        """
        try:
            from lox.loggers._compare.logs import plot_logs
        except ImportError as error:
            raise ImportError(
                "logs.plot() needs lox-loggers and matplotlib: pip install 'lox-loggers[plot]'"
            ) from error
        options = {"axis": axis, "center": center, "band": band, "each": each, "smooth": smooth, "log": log}
        return plot_logs(self, keys, lanes, options)


# What works on traced logs too, and so under `jax.vmap`.
_MAPPED = ("slice", "reduce()")


class _Slicer:
    def __init__(self, logs: logdict) -> None:
        self._logs = logs

    def __getitem__(self, index: slice | int) -> logdict:
        self._logs._check_one_lane("slice")
        logs = self._logs.trim()
        taken = logs._map_rows(lambda key, leaf: leaf[index] if key in logs.stacked else leaf)
        if not isinstance(index, slice):
            taken._stacked = frozenset()
        taken._counts = {key: taken._rows_of(key) for key in taken}
        return taken


def _bound_id(logs: logdict, key: str) -> int | None:
    return id(logs._counts[key]) if key in logs._bounds else None


pytree.register(logdict)
