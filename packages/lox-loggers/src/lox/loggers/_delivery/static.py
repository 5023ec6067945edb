"""`Config`: a config that `jax.vmap` and `jax.jit` take as an argument, even with text in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import jax
import numpy as np

from lox.loggers._delivery.config import Gap, fields_of, filled
from lox.loggers._errors import LoggerOptionError


@jax.tree_util.register_pytree_node_class
class Config(Mapping[str, Any]):
    """A config for `jax.vmap(logger.init)(keys, config)` in which some values are not arrays.

    JAX sees only its arrays, and each lane gets its own part of them. Everything else (text, numbers, None) is the same in all
    lanes. Like a `dict`, it takes a mapping (or a dataclass), keywords, or both. Mappings in it may be nested.

    >>> keys, rates = jax.random.split(jax.random.key(0), 2), jnp.array([0.1, 0.2])
    >>> with lox.loggers.MemoryLogger() as logger:
    ...     states = jax.vmap(logger.init)(keys, lox.loggers.Config(rate=rates, env="CartPole", width=64))
    >>> logger.configs["6b20015999ba4efe"]
    {'rate': 0.1, 'env': 'CartPole', 'width': 64}
    """

    def __init__(self, config: Any = (), /, **more: Any) -> None:
        values = fields_of(config) if config != () else {}
        if values is None:
            raise LoggerOptionError(f"Config must map names to values; got {type(config).__name__}")
        self._arrays: list[Any] = []
        self._template = self._without_arrays({**values, **more}, "config")

    def _without_arrays(self, value: Any, path: str) -> Any:
        if isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.ndim and _is_numbers(value)):
            self._arrays.append(value)
            return Gap(len(self._arrays) - 1)
        if type(value) in (list, tuple):
            return type(value)(self._without_arrays(item, f"{path}[{i}]") for i, item in enumerate(value))
        if (fields := fields_of(value)) is not None:
            if wrong := [name for name in fields if not isinstance(name, str)]:
                raise LoggerOptionError(f"Config: the names in a config must be str; {path} has {wrong[0]!r}")
            return {name: self._without_arrays(item, f"{path}[{name!r}]") for name, item in fields.items()}
        return value

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = filled(self._template, dict(enumerate(self._arrays)))
        return values

    def __getitem__(self, name: str) -> Any:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._template)

    def __len__(self) -> int:
        return len(self._template)

    def __repr__(self) -> str:
        return f"Config({self._values()!r})"

    def tree_flatten(self) -> tuple[list[Any], _Rest]:
        return self._arrays, _Rest(self._template)

    @classmethod
    def tree_unflatten(cls, rest: _Rest, arrays: Any) -> Self:
        new = cls.__new__(cls)
        new._arrays, new._template = list(arrays), rest.template
        return new


class _Rest:
    """A config without its arrays. Two are equal only if their values have the same types: 1, 1.0 and True are different
    settings, and JAX must not reuse a program for another setting."""

    __slots__ = ("_key", "template")

    def __init__(self, template: dict[str, Any]) -> None:
        self.template = template
        self._key = _key(template)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rest) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.template)


def _is_numbers(value: np.ndarray) -> bool:
    """Whether JAX can map it: JAX has no arrays of text or dates."""
    return value.dtype.kind in "biufc" or (value.dtype.kind == "V" and value.dtype.type is not np.void)


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(map(_key, value))
    if isinstance(value, np.ndarray):  # its repr would leave out the middle
        return str(value.dtype), value.shape, value.tobytes() if not value.dtype.hasobject else id(value)
    return type(value), repr(value)
