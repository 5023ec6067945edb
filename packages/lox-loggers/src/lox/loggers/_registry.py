"""Which backends are installed: the entry points of the group `lox.loggers`, from any distribution.

Names are read from the metadata of installed distributions. A backend is imported only when it is asked for. One that
cannot be imported, or whose name two distributions claim, breaks nothing but itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import inspect
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers._delivery.logger import Logger
from lox.loggers._errors import (
    DuplicateLoggerError,
    LoggerLoadError,
    LoggerNotFoundError,
    LoggerOptionError,
)
from lox.loggers._specs import parse_spec, split_specs

GROUP = "lox.loggers"
_NAME = re.compile(r"[\w.-]+")  # what LOX_LOGGERS can name
VARIABLE = "LOX_LOGGERS"

# What to install for the names that lox itself offers. For other names nothing is suggested: a package that happens to be
# named like a typo would be bad advice.
_DISTRIBUTIONS = {
    **dict.fromkeys(("console", "csv", "jsonl", "memory", "multi", "progress", "save"), "lox-loggers"),
    "tensorboard": "lox-tensorboard",
    "wandb": "lox-wandb",
}


@dataclasses.dataclass(frozen=True)
class Backend:
    """An installed backend, as its distribution describes it.

    Args:
      path: where its class is, `module:Class`.
      rivals: other backends installed under the same name; while there are any, none can be used by name.
    """

    name: str
    path: str
    distribution: str
    version: str
    rivals: tuple[Backend, ...] = ()

    def __str__(self) -> str:
        return f"{self.path} from {self.distribution} {self.version}"


def available() -> dict[str, Backend]:
    """The installed backends by name, in alphabetical order. Imports none of them.

    >>> lox.loggers.available()["save"].distribution
    'lox-loggers'
    """
    found: dict[str, list[Backend]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        backend = _describe(point)
        if backend not in found.setdefault(backend.name, []):
            found[backend.name].append(backend)
    return {name: dataclasses.replace(first, rivals=tuple(rivals)) for name, (first, *rivals) in sorted(found.items())}


def get(name: str) -> type[Logger]:
    """The class of the backend `name`.

    >>> lox.loggers.get("save").__name__
    'SaveLogger'
    """
    if not isinstance(name, str):
        raise LoggerOptionError(f"the name of a logger must be a str, such as 'save'; got {name!r}")
    installed = available()
    if name not in installed:
        raise LoggerNotFoundError(_not_found(name, installed))
    backend = installed[name]
    if backend.rivals:
        claims = "; ".join(map(str, (backend, *backend.rivals)))
        raise DuplicateLoggerError(
            f"the logger name {name!r} is claimed by {1 + len(backend.rivals)} distributions: {claims}. "
            "Uninstall all but one of them, or import the class you mean from its module"
        )
    return load_backend(backend)


def create(
    spec: str | Iterable[str | tuple[str, Mapping[str, Any]] | Logger] | None = None, /, **options: Any
) -> Logger:
    """Creates a logger by name, `create("save", path="runs")`, or several as one, `create(["console", "save:path=runs"])`.
    `create()` reads the names from the environment variable LOX_LOGGERS; if it is not set, it creates a console logger.

    An item of a list is a name, a name with options as in LOX_LOGGERS, a pair `(name, options)`, or a logger. `name=`, the
    format of run names, applies to all of them.

    >>> with lox.loggers.create(["memory", "save:path=runs"]) as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    >>> list(lox.loggers.load("runs"))
    ['0000000000000000']
    """
    if isinstance(spec, str):
        if len(several := split_specs(spec)) > 1:
            raise LoggerOptionError(f"create takes one name, or a list of them: create({several!r}); got {spec!r}")
        name, written = parse_spec(spec)
        return _make(name, {**written, **options})
    if other := options.keys() - {"name"}:
        raise LoggerOptionError(
            f"options ({', '.join(sorted(other))}) belong to one logger, so name one. For several loggers, write "
            'create([("save", {"path": "runs"}), "console"])'
        )
    if spec is None:
        made = [create(each) for each in split_specs(os.environ.get(VARIABLE, "")) or ["console"]]
        return made[0] if len(made) == 1 and not options else get("multi")(*made, **options)
    if not isinstance(spec, Iterable):
        hint = "call it instead: " + spec.__name__ + "(...)" if isinstance(spec, type) else "for several, write a list"
        raise LoggerOptionError(f"create takes the name of a logger, such as 'save', but got {spec!r}; {hint}")
    items = list(spec)
    if not items:
        raise LoggerOptionError("create was given an empty list. Name at least one logger, such as 'console'")
    return get("multi")(*[_make_item(item) for item in items], **options)


def load_backend(backend: Backend) -> type[Logger]:
    """Imports the class of an installed backend."""
    which = f"the logger {backend.name!r} ({backend})"
    if not _NAME.fullmatch(backend.name):
        raise LoggerLoadError(
            f"{which} has a name that cannot be used: names consist of letters, digits, '-', '_' and '.'"
        )
    point = importlib.metadata.EntryPoint(backend.name, backend.path, GROUP)
    try:
        loaded = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # even SystemExit: a plugin must not end the program that asks for it
        raise LoggerLoadError(f"{which} failed to import: {type(error).__name__}: {error}") from error
    if not (isinstance(loaded, type) and issubclass(loaded, Logger)):
        raise LoggerLoadError(f"{which} is not a subclass of lox.loggers.Logger, but {loaded!r}")
    if missing := sorted(getattr(loaded, "__abstractmethods__", ())):
        raise LoggerLoadError(f"{which} is abstract: {loaded.__name__} does not define {', '.join(missing)}")
    return loaded


def by_class_name(name: str) -> type[Logger] | None:
    """The registered class with that name; None if there is none."""
    owners = [
        backend
        for first in available().values()
        for backend in (first, *first.rivals)
        if backend.path.rpartition(":")[2].strip() == name
    ]
    paths = {backend.path for backend in owners}
    if len(paths) > 1:
        claims = "; ".join(map(str, owners))
        raise DuplicateLoggerError(f"several installed loggers are called {name}: {claims}. Import it from its module")
    return load_backend(owners[0]) if owners else None


def class_names(distribution: str | None = None) -> list[str]:
    """The names of the registered classes: all of them, or those of one distribution."""
    return [
        backend.path.rpartition(":")[2].strip()
        for first in available().values()
        for backend in (first, *first.rivals)
        if distribution in (None, backend.distribution)
    ]


def _describe(point: importlib.metadata.EntryPoint) -> Backend:
    distribution = getattr(point, "dist", None)
    if distribution is None:
        return Backend(point.name, point.value, "unknown", "")
    return Backend(point.name, point.value, distribution.name, distribution.version)


def _not_found(name: str, installed: Mapping[str, Backend]) -> str:
    message = f"no logger {name!r} is installed; installed: {', '.join(installed) or 'none at all'}."
    close = difflib.get_close_matches(name, {*installed, *_DISTRIBUTIONS} - {name}, n=3)
    if name in _DISTRIBUTIONS:
        return f"{message} Run: pip install {_DISTRIBUTIONS[name]}"
    if close:
        message += f" Did you mean {' or '.join(map(repr, close))}?"
    missing = [match for match in close if match not in installed]
    if missing:
        return f"{message} For {missing[0]!r} run: pip install {_DISTRIBUTIONS[missing[0]]}"
    return f"{message} If it belongs to another package, install that package: pip install PACKAGE"


def _make_item(item: Any) -> Logger:
    if isinstance(item, Logger):
        return item
    if isinstance(item, str):
        return create(item)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping):
        return _make(item[0], item[1])
    raise LoggerOptionError(f"a logger is given by a name, a pair (name, options) or a Logger; got {item!r}")


def _make(name: str, options: Mapping[str, Any]) -> Logger:
    logger = get(name)
    try:
        inspect.signature(logger).bind(**options)
        return logger(**options)
    except Exception as error:
        # Constructors pass unknown options on to Logger, so the error may be raised there. Any other TypeError is raised
        # as it is.
        unknown = re.search(r"unexpected keyword argument '(\w+)'|missing a required argument: '(\w+)'", str(error))
        if type(error) is not TypeError or unknown is None or (unknown[1] and unknown[1] not in options):
            error.add_note(f"while making the logger {name!r}, {logger.__module__}.{logger.__qualname__}")
            raise
        raise LoggerOptionError(f"logger {name!r}: {unknown[0]}. {_options_of(logger, options)}") from None


def _options_of(logger: type[Logger], options: Mapping[str, Any]) -> str:
    parameters = {**inspect.signature(logger).parameters, **inspect.signature(Logger).parameters}
    known = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
    hints = [
        match for option in options if option not in known for match in difflib.get_close_matches(option, known, n=1)
    ]
    text = f"{logger.__name__} takes: {', '.join(known)}"
    return f"Did you mean {hints[0]!r}? {text}" if hints else text
