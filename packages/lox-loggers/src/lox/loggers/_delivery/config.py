"""The config that `init` gets: plain values, and arrays that may be traced and differ between lanes."""

from __future__ import annotations

import dataclasses
import os
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from lox.loggers._errors import LoggerOptionError

_KEPT = (
    "A config holds numbers, text, None, arrays, and lists, dataclasses and mappings of these: pass its name as text, "
    "or leave it out"
)


class ConfigTemplate:
    """A config with gaps in place of its JAX arrays, which travel to the host and are filled in for each lane."""

    def __init__(self, owner: str, config: Mapping[str, Any] | None) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise LoggerOptionError(f"{owner}: config must map names to values; got {type(config).__name__}")
        self._owner = owner
        self.arrays: dict[int, jax.Array] = {}
        self._template = self._without_arrays(config or {}, "config")

    def fill(self, arrays: Mapping[int, np.ndarray], lane: tuple[int, ...]) -> dict[str, Any]:
        """The config of one lane, with the arrays as they reached the host."""
        config: dict[str, Any] = filled(self._template, {i: np.asarray(array[lane]) for i, array in arrays.items()})
        return config

    def sample(self) -> dict[str, Any]:
        """A config with the same structure, with zeros for the arrays."""
        zeros = {i: np.zeros(array.shape, array.dtype) for i, array in self.arrays.items()}
        config: dict[str, Any] = filled(self._template, zeros)
        return config

    def _without_arrays(self, value: Any, path: str) -> Any:
        """A copy with a gap for each JAX array. numpy arrays stay on the host, so 64-bit values, text and dates do not change.
        Under `vmap`, values that differ between the lanes are JAX arrays."""
        if isinstance(value, jax.Array):
            self.arrays[len(self.arrays)] = jax.random.key_data(value) if _is_key(value) else value
            return Gap(len(self.arrays) - 1)
        if type(value) in (list, tuple):
            return type(value)(self._without_arrays(item, f"{path}[{i}]") for i, item in enumerate(value))
        if (fields := fields_of(value)) is not None:
            for name in fields:
                if not isinstance(name, str):
                    raise LoggerOptionError(f"{self._owner}: the names in a config must be str; {path} has {name!r}")
            return {name: self._without_arrays(item, f"{path}[{name!r}]") for name, item in fields.items()}
        if _can_be_kept(value):
            return value.copy() if isinstance(value, np.ndarray) else value
        raise LoggerOptionError(
            f"{self._owner}: {path} is a {type(value).__name__}, which cannot be kept: {reprlib.repr(value)}. {_KEPT}"
        )


class Gap(NamedTuple):
    """The place of an array, with its number."""

    place: int


def filled(template: Any, arrays: Mapping[int, Any]) -> Any:
    """A template with arrays in the place of its gaps."""
    if isinstance(template, Gap):
        return arrays[template.place]
    if isinstance(template, dict):
        return {name: filled(item, arrays) for name, item in template.items()}
    return type(template)(filled(item, arrays) for item in template) if type(template) in (list, tuple) else template


def fields_of(value: Any) -> Mapping[Any, Any] | None:
    """The fields of a mapping or dataclass by name; None for other values."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _can_be_kept(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return not value.dtype.hasobject and (value.dtype.kind in "biufcUSmM" or value.dtype.type is not np.void)
    return value is None or isinstance(value, bool | int | float | complex | str | os.PathLike)


def _is_key(value: jax.Array) -> bool:
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))


def json_value(value: Any) -> Any:
    """A value of a config in JSON types: arrays become numbers or lists of them, complex numbers pairs."""
    if isinstance(value, Mapping):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [json_value(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _json_scalar(np.asarray(value)[()])
    if isinstance(value, complex):
        return [value.real, value.imag]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _json_scalar(value: Any) -> Any:
    """A numpy scalar as a Python value."""
    kind = value.dtype.kind
    if kind == "c":
        return [_json_scalar(value.real), _json_scalar(value.imag)]
    if kind in "mM":
        return str(value)
    if kind == "S":
        return value.item().decode(errors="replace")
    if kind == "V" or (kind == "f" and value.dtype.itemsize < 8):  # "V": bfloat16 and similar types
        number = float(str(value))  # so a rate of 0.1 is stored as 0.1, not as 0.10000000149011612
        return int(number) if kind == "V" and "int" in value.dtype.name else number
    return value.item()
