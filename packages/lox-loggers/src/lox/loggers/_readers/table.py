"""Runs as one tidy pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lox.loggers._errors import RunFormatError

if TYPE_CHECKING:
    from lox.loggers._readers.runs import Runs


def to_pandas(runs: Runs) -> Any:
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    frames = []
    for name, logs in runs.items():
        frame = logs.filter(lambda key: key not in runs.constants).to_pandas()
        known = {"run": name, **runs.flat_configs[name]}
        if not len(frame):  # a run with nothing but a config gets a row too
            frame = pandas.DataFrame(index=[0])
        for place, (column, value) in enumerate(known.items()):
            if column in frame.columns:
                raise RunFormatError(
                    f"run {name!r}: {column!r} is both {'the column of the run' if column == 'run' else 'in its config'} "
                    "and a key or step axis of its records; leave one out with load(path, keys=...)"
                )
            frame.insert(place, column, [value] * len(frame) if isinstance(value, list | dict) else value)
        frames.append(frame)
    if not frames:
        return pandas.DataFrame({"run": []})
    table = pandas.concat(frames, ignore_index=True)
    config = dict.fromkeys(key for known in runs.flat_configs.values() for key in known)
    first = ["run", *config]
    return table[[*first, *(column for column in table.columns if column not in config and column != "run")]]
