"""Tables, and saving them."""

import numpy as np

import lox
import lox.loggers
from lox.loggers import Run, SaveLogger


def table(data, steps=None):
    columns = {key: np.asarray(value) if type(value) is list else value for key, value in data.items()}
    by_axis = {axis: dict.fromkeys(columns, np.asarray(step)) for axis, step in (steps or {}).items()}
    return lox.logdict(columns, steps=by_axis, stacked=list(columns))


def save(path, *tables, name="run"):
    writer = SaveLogger(path).open(Run(name))
    for each in tables:
        writer.write(each)
    writer.close()
    return path / name
