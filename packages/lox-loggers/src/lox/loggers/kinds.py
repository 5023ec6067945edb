"""Kinds: how a logged value is shown (scalar, image, text, ...), chosen in the same way for every backend.

A backend that shows more than numbers takes `kinds=`, a mapping from key patterns to the name of a kind::

    TensorBoardLogger("runs", kinds={"*/image": "image", "debug/*": "skip"})

Patterns are those of `fnmatch`. The first one that matches the full name of a value, or the key it was logged under,
decides. A value that no pattern matches is a scalar if it has rank 0, text if it holds strings, and a histogram otherwise. A
`lox.loggers.Histogram` has the kind "binned": a backend gets it as it is or, if it does not support that kind, as scalars
that summarise it (`name/mean`, `name/std`, ...).

`Kinds.columns(logs)` turns the logs of one `write` into flat columns that a backend can write without looking at
types again:

- nested values become one column for each leaf, named `key/leaf`,
- complex numbers become two columns, `name/real` and `name/imag`,
- bfloat16 and the other small types of JAX become float32,
- an array of the kind "scalar" becomes one column for each of its elements, `name/0`, `name/1`, ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from lox.loggers._errors import RecordError
from lox.loggers._histogram import Histogram

KINDS = ("scalar", "histogram", "binned", "image", "text", "audio", "video", "table", "hparams", "skip")
"""All kinds. A backend supports some of them, and always `"skip"`, which leaves a key out."""

# Kinds for which the whole nested value is one thing, so its leaves are not columns of their own.
_WHOLE = frozenset({"table"})
_OF_STRINGS = frozenset({"text", "hparams"})


class KindError(RecordError):
    """A kind that a backend does not have, or a value that cannot be shown as the kind it was given."""


class KindTypeError(KindError, TypeError):
    """A value of a type that cannot be shown at all."""


class Column(NamedTuple):
    """The records of one named value, with the record axis first."""

    name: str
    """Unique among the columns of one `write`."""
    key: str
    """The key it was logged under, which knows its steps: `logs.steps[axis][key]`."""
    kind: str
    values: Any
    """A numpy array of bool, int, float or str; for the kind `"table"` the nested value as it was logged, and for the kind
    `"binned"` a `lox.loggers.Histogram` of arrays."""


class Kinds:
    """The `kinds=` of one backend, checked when it is created."""

    def __init__(self, patterns: Mapping[str, str] | None = None, *, backend: str, supported: Collection[str]) -> None:
        """
        Args:
          patterns: kinds by key pattern, as the user gave them.
          backend: the name of the backend in errors.
          supported: the kinds that it can show, besides `"skip"`.
        """
        if patterns is not None and not isinstance(patterns, Mapping):
            raise KindTypeError(
                f"{backend}: kinds must map key patterns to kinds, as in {{'*/image': 'image'}}; got {patterns!r}"
            )
        self.patterns = dict(patterns or {})
        self._backend = backend
        self._shows_binned = "binned" in supported
        self._known: dict[tuple[str, str | None], str | None] = {}
        allowed = [kind for kind in KINDS if kind in supported or kind == "skip"]
        for pattern, kind in self.patterns.items():
            self._check(pattern, kind, allowed)

    def _check(self, pattern: str, kind: str, allowed: list[str]) -> None:
        if not isinstance(pattern, str) or not isinstance(kind, str):
            raise KindTypeError(f"{self._backend}: kinds must map str to str; got {pattern!r}: {kind!r}")
        if kind in allowed:
            return
        close = get_close_matches(kind, allowed, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        known = "not a kind that it can show" if kind in KINDS else "an unknown kind"
        raise KindError(
            f"{self._backend}: kinds={{{pattern!r}: {kind!r}}}: {kind!r} is {known}."
            f"{hint} It can show {', '.join(map(repr, allowed))}."
        )

    def of(self, name: str, key: str | None = None) -> str | None:
        """The kind of a value, by its full name or the key it was logged under; None if no pattern matches."""
        if (name, key) not in self._known:
            self._known[name, key] = self._match(name, key)
        return self._known[name, key]

    def _match(self, name: str, key: str | None) -> str | None:
        for pattern, kind in self.patterns.items():
            if fnmatchcase(name, pattern) or (key is not None and fnmatchcase(key, pattern)):
                return kind
        return None

    def uses(self, kind: str) -> bool:
        """Whether any pattern asks for this kind."""
        return kind in self.patterns.values()

    def columns(self, logs: Mapping[str, Any]) -> list[Column]:
        """The values of one `write` as flat columns, in the order of the keys, without skipped ones."""
        columns: dict[str, Column] = {}
        for key, value in logs.items():
            for column in self._columns_of(key, value):
                other = columns.setdefault(column.name, column)
                if other is not column:
                    raise KindError(
                        f"{self._backend}: the keys {other.key!r} and {key!r} both hold a value named "
                        f"{column.name!r}; rename one of them."
                    )
        return list(columns.values())

    def _columns_of(self, key: str, value: Any) -> Iterable[Column]:
        if self.of(key) is None and isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return (Column(key, key, _default_kind(value), value),)  # nearly all values, written at every step
        return self._split(key, value)

    def _split(self, key: str, value: Any) -> Iterator[Column]:
        if self.of(key) in _WHOLE:
            yield Column(key, key, "table", value)
            return
        for name, leaf in _parts(key, value):
            kind = self.of(name, key)
            if kind == "skip":
                continue
            if isinstance(leaf, Histogram):
                yield from self._binned(name, key, kind, leaf)
                continue
            if kind == "binned":
                raise KindTypeError(
                    f"{self._backend}: {name!r} is not a lox.loggers.Histogram, so it cannot be 'binned'."
                )
            if kind in _WHOLE:
                yield Column(name, key, "table", leaf)
                continue
            hint = f"Log numbers, or pass kinds={{{name!r}: 'skip'}}."
            for part, values in _split_complex(name, plain(leaf, name, self._backend, hint)):
                column = Column(part, key, kind or _default_kind(values), values)
                if values.dtype.kind in "US" and column.kind not in _OF_STRINGS:
                    raise KindTypeError(f"{self._backend}: {name!r} holds strings, which cannot be the kind {kind!r}.")
                yield from _by_rank(column)

    def _binned(self, name: str, key: str, kind: str | None, value: Histogram) -> Iterator[Column]:
        if kind not in (None, "binned", "histogram", "scalar"):
            raise KindTypeError(
                f"{self._backend}: {name!r} is a lox.loggers.Histogram, which cannot be the kind {kind!r}."
            )
        if self._shows_binned and kind != "scalar":
            devices = tuple(range(1, np.ndim(value.below)))  # of a shard_map: each has counted its part
            yield Column(name, key, "binned", value.sum(devices))
            return
        for statistic, column in value.describe().items():
            if (part := self.of(f"{name}/{statistic}")) != "skip":
                yield Column(f"{name}/{statistic}", key, part or "scalar", column)


def flatten(key: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The leaves of one logged value, each named `key/leaf`; a value that is one array keeps the key's name.

    Raises a KindError if two leaves would have the same name, as in `{"a/b": 1, "a": {"b": 2}}`.
    """
    return _parts(key, value, histograms=False)


def _parts(key: str, value: Any, histograms: bool = True) -> Iterator[tuple[str, Any]]:
    """The leaves of one logged value by name. A histogram is one leaf, or is taken apart."""
    if isinstance(value, np.ndarray):
        yield key, value
        return
    # This only looks at the structure and computes nothing, so it is safe on any thread.
    named: set[str] = set()
    is_leaf = (lambda part: isinstance(part, Histogram) and part.has_bins) if histograms else None
    for path, leaf in tree_flatten_with_path(value, is_leaf=is_leaf)[0]:
        name = f"{key}/{keystr(path, simple=True, separator='/')}" if path else key
        if name in named:
            raise KindError(f"the key {key!r} holds two values named {name!r}; rename one of them.")
        named.add(name)
        yield name, leaf if isinstance(leaf, Histogram) else np.asarray(leaf)


def plain(values: np.ndarray, name: str, backend: str, hint: str = "Log numbers, or text.") -> np.ndarray:
    """The same values in a dtype that numpy has: bfloat16, int4 and similar types become float32.

    Raises a KindTypeError that ends with `hint` for anything but numbers and text.
    """
    if values.dtype.kind in "biufcUS":
        return values
    # JAX's extra types (bfloat16, float8, int4, ...) have scalar types of their own, and numpy gives them the kind "V" of void.
    if values.dtype.kind == "V" and values.dtype.type is not np.void:
        return values.astype(np.float32)
    if values.dtype == object and all(isinstance(item, str) for item in values.flat):
        return values.astype(str)
    raise KindTypeError(f"{backend}: the value {name!r} has dtype {values.dtype}, which cannot be shown. {hint}")


def decode_text(value: np.ndarray, name: str, backend: str) -> str:
    """The text of one record: a string, or a vector of UTF-8 bytes (uint8) padded with zeros.

    Bytes are what compiled code can log: `np.frombuffer("a text".encode(), np.uint8)`.
    """
    if value.dtype.kind == "U" and value.ndim == 0:
        return str(value)
    if value.dtype.kind == "S" and value.ndim == 0:
        return str(value.item().decode(errors="replace"))
    if value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes().rstrip(b"\0").decode(errors="replace")
    raise KindTypeError(
        f"{backend}: {name!r} cannot be text: a record has dtype {value.dtype} and shape {value.shape}. "
        "Log a string, or its UTF-8 bytes as a vector of uint8."
    )


def pixels(image: np.ndarray, name: str, backend: str, *, check: bool = True) -> np.ndarray:
    """An image as uint8, from floats between 0 and 1 or integers between 0 and 255.

    Args:
      check: whether other numbers are an error.
    """
    if image.dtype == np.uint8:
        return image
    floats = image.astype(np.float64) if image.dtype.kind in "bf" else image.astype(np.float64) / 255
    tolerance = 0.5 / 255  # a number that rounds to a valid pixel is accepted
    low, high = np.nanmin(floats, initial=0), np.nanmax(floats, initial=1)
    if check and (low < -tolerance or high > 1 + tolerance):
        raise KindError(
            f"{backend}: the image {name!r} holds numbers from {image.min()} to {image.max()} ({image.dtype}). Pixels "
            "are floats from 0 to 1, or integers from 0 to 255."
        )
    return np.round(np.clip(np.nan_to_num(floats, nan=0.0), 0, 1) * 255).astype(np.uint8)


def samples(frames: np.ndarray, name: str, backend: str) -> np.ndarray:
    """Audio as little-endian int16, from floats between -1 and 1 or int16."""
    if frames.dtype == np.int16:
        return frames.astype("<i2")
    if frames.dtype.kind != "f":
        raise KindError(
            f"{backend}: {name!r} cannot be audio: a record has dtype {frames.dtype}. Audio is floats from -1 to 1, or int16."
        )
    return np.round(np.clip(np.nan_to_num(frames.astype(np.float64), nan=0.0), -1, 1) * 32767).astype("<i2")


def _default_kind(values: np.ndarray) -> str:
    if values.dtype.kind in "US":
        return "text"
    return "scalar" if values.ndim == 1 else "histogram"


def _split_complex(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    if values.dtype.kind == "c":
        yield f"{name}/real", values.real
        yield f"{name}/imag", values.imag
    else:
        yield name, values


def _by_rank(column: Column) -> Iterator[Column]:
    """An array of the kind "scalar" is one curve for each element."""
    if column.kind != "scalar" or column.values.ndim <= 1:
        yield column
        return
    for index in np.ndindex(column.values.shape[1:]):
        name = "/".join([column.name, *map(str, index)])
        yield column._replace(name=name, values=column.values[(slice(None), *index)])
