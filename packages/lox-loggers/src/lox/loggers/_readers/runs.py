"""`Runs`: what `load` returns for a folder of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import lox
from lox.loggers._delivery.names import safe_name
from lox.loggers._errors import LoggerOptionError, RunFormatError
from lox.loggers._readers import config as configs
from lox.loggers._readers.stack import stack_runs


class Runs(Mapping[str, lox.logdict]):
    """Runs by name, in the order in which they were opened, with the config of each.

    Args:
      logs: the records of each run.
      configs: the config that `init` got for each run.
      left_out: for each run, the kind of each stored value that could not be read as arrays.
    """

    def __init__(
        self,
        logs: Mapping[str, lox.logdict],
        configs: Mapping[str, Mapping[str, Any]] | None = None,
        left_out: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._logs = dict(logs)
        self._given = {name: dict((configs or {}).get(name, {})) for name in self._logs}
        self._left_out = {name: dict((left_out or {}).get(name, {})) for name in self._logs}
        self._constants: set[str] | None = None
        self._flat: dict[str, dict[str, Any]] | None = None

    def __getitem__(self, name: str) -> lox.logdict:
        for known in (name, _encoded(name)):  # the stored name, or the name before it was encoded
            if known in self._logs:
                return self._logs[known]
        raise KeyError(f"no run {name!r}. Runs: {_some(self._logs)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        return repr(self._logs)

    def _repr_html_(self) -> str:
        """What a notebook shows: the keys over all runs, and the runs with their config."""
        from lox.loggers._compare.html import show_runs

        return show_runs(self)

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The config of each run: what `init` was given, and what the run logged once, without steps
        (`lox.log({"rate": rate})`)."""
        keys = [key for logs in self._logs.values() for key in logs if key in self.constants]
        found = {}
        for name, logs in self._logs.items():
            given, logged = self._given[name], configs.logged_config(logs, dict.fromkeys(keys))
            found[name] = given | {key: value for key, value in logged.items() if key not in given}
        return found

    @property
    def constants(self) -> set[str]:
        """The keys that count as config: no run has steps or more than one value for them."""
        if self._constants is None:
            self._constants = configs.constants(self._logs)
        return self._constants

    @property
    def left_out(self) -> dict[str, dict[str, str]]:
        """For each run, what is stored but not in its logs: `{"sample": "image"}`."""
        return self._left_out

    @property
    def flat_configs(self) -> dict[str, dict[str, Any]]:
        """The same as `configs`, with one name for each value (`model/width`), and values that can be compared."""
        if self._flat is None:
            self._flat = {name: configs.flat(config) for name, config in self.configs.items()}
        return self._flat

    def where(self, equal: Mapping[str, Any] | Callable[[dict[str, Any]], bool] = {}, /, **more: Any) -> Runs:  # noqa: B006
        """The runs whose config has these values: `where(rate=0.01)`, `where({"model/width": 8})`, or
        `where(lambda config: config["rate"] < 0.1)`."""
        if callable(equal):
            flat = self.flat_configs
            return self._pick(name for name in self if equal(flat[name])).where(**more)
        asked = {name: configs.comparable(value) for name, value in {**equal, **more}.items()}
        self.check_known(asked)
        return self._pick(
            name
            for name, config in self.flat_configs.items()
            if all(key in config and configs.same(config[key], value) for key, value in asked.items())
        )

    def by(self, *keys: str) -> dict[Any, Runs]:
        """The runs grouped by the value of a config key, in the order of the values; with several keys, by tuples of values. Runs
        without the key are under None."""
        self.check_known(keys)
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name, config in self.flat_configs.items():
            groups.setdefault(tuple(configs.hashable(config.get(key)) for key in keys), []).append(name)
        ordered = sorted(groups, key=lambda values: [configs.sort_key(value) for value in values])
        return {values[0] if len(keys) == 1 else values: self._pick(groups[values]) for values in ordered}

    def stack(self, pad: bool = False) -> lox.logdict:
        """All runs as one logdict. The run axis comes first, then the records: a key logged once has shape `(runs, 1)`.

        Args:
          pad: fill up runs that have fewer records with zeros; `counts` has the number of records of each run.
        """
        return stack_runs(self, pad)

    def to_pandas(self) -> Any:
        """One row for each record, with columns for the run, its config, the step axes and the values. Needs pandas."""
        from lox.loggers._readers.table import to_pandas

        return to_pandas(self)

    def plot(
        self,
        keys: str | Iterable[str] | None = None,
        *,
        by: str | Sequence[str] = (),
        axis: str | None = None,
        center: str = "mean",
        band: str = "std",
        each: bool = False,
        smooth: float = 0.0,
        log: bool = False,
    ) -> Any:
        """The `matplotlib.figure.Figure` that `lox plot` writes: a plot for each key, a curve for each group. Needs matplotlib.

        Args:
          keys: only these keys; patterns such as `"train/*"` work.
          by: the config keys that group runs. Each group is one curve with a band; without any keys, all runs are one group.
          axis: the step axis to draw over; by default the first one that all runs have.
          center: `"mean"`, `"median"`, or `"iqm"`, the mean of the middle half.
          band: `"std"`, `"ci95"`, the bootstrap interval of the center, `"minmax"`, or `"quartiles"`.
          each: draw a line for each run instead.
          smooth: the weight of earlier records, from 0 to below 1, as in TensorBoard.
          log: use a logarithmic y axis.
        """
        from lox.loggers._compare.curves import Look, panels
        from lox.loggers._compare.figure import figure
        from lox.loggers._readers.selection import Keys

        look = Look((by,) if isinstance(by, str) else tuple(by), axis, center, band, each, smooth)
        found = panels({"": self}, look, Keys(keys))
        if not found:
            raise RunFormatError("nothing to draw: no key matches, or only config and text were logged")
        return figure(found, look, log=log)

    def _pick(self, names: Iterable[str]) -> Runs:
        picked = Runs({name: self._logs[name] for name in names}, self._given, self._left_out)
        picked._constants = self.constants  # what counts as config does not depend on the chosen runs
        return picked

    def check_known(self, keys: Iterable[str]) -> None:
        """If one of these keys is in no run's config, raises an error that lists the known ones."""
        known = dict.fromkeys(key for config in self.flat_configs.values() for key in config)
        for key in keys:
            if key not in known:
                there = f"Available: {', '.join(known)}" if known else "No run has a config"
                raise RunFormatError(f"no run has {key!r} in its config. {there}")


def _encoded(name: Any) -> str | None:
    try:
        return safe_name("load", name) if isinstance(name, str) else None
    except LoggerOptionError:
        return None


def _some(names: Mapping[str, Any]) -> str:
    first = list(names)[:5]
    return ", ".join(first) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if first else "none"
