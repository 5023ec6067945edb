"""How values of JAX's dtypes are stored in dtypes that every numpy can load without pickle.

bfloat16, float8, int4 and similar types are stored bit for bit as unsigned integers, and PRNG keys as their words. The
manifest has the name of the real dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np

from lox._storage.words import KEY_IMPL
from lox.loggers._errors import RecordError, RunFormatError

_KEY = "key:"


def name_of(dtype: np.dtype) -> str:
    """The name of a dtype in the manifest."""
    if dtype.metadata and KEY_IMPL in dtype.metadata:
        return _KEY + dtype.metadata[KEY_IMPL]
    if dtype.kind in "US":
        return dtype.str
    if _is_extension(dtype) or (dtype.kind in "biufc" and dtype.isbuiltin):
        return dtype.name
    raise RecordError(f"values of dtype {dtype} cannot be stored: only numbers, PRNG keys and text can")


@functools.lru_cache(maxsize=1024)
def dtype_of(name: str) -> np.dtype:
    """The dtype with this name in the manifest; for PRNG keys, the dtype of their words."""
    if name.startswith(_KEY):
        return np.dtype(np.uint32, metadata={KEY_IMPL: name.removeprefix(_KEY)})
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise RunFormatError(f"unknown dtype {name!r}: the run was written by another version of lox") from None


def encode(array: np.ndarray) -> np.ndarray:
    """The array as it is stored."""
    if array.dtype.metadata:
        return array.view(np.dtype(array.dtype.str))
    return array.view(f"u{array.dtype.itemsize}") if _is_extension(array.dtype) else array


@functools.lru_cache(maxsize=1024)
def stored_dtype(name: str) -> np.dtype:
    """The dtype in which values of the dtype with this name are stored."""
    return encode(np.empty(0, dtype_of(name))).dtype


def may_store(dtype: np.dtype, name: str) -> bool:
    """Whether a file of this dtype can hold values of the dtype with this name in the manifest. The file's dtype may be wider,
    if its writer was killed before it could update the manifest."""
    if dtype == stored_dtype(name):
        return True
    try:
        wider = name_of(dtype)
        return common({name, wider}) == wider
    except RecordError:
        return False


def decode(stored: np.ndarray, name: str) -> np.ndarray:
    """The array as it was, PRNG keys as their words."""
    dtype = dtype_of(name)
    if stored.dtype != stored_dtype(name):
        return stored  # a wider dtype: see `may_store`
    return stored if stored.dtype == dtype and not dtype.metadata else stored.view(dtype)


def restore(stored: np.ndarray, name: str) -> Any:
    """The array as it was, PRNG keys as keys."""
    if not name.startswith(_KEY):
        return decode(stored, name)
    import jax

    return jax.random.wrap_key_data(jax.numpy.asarray(stored), impl=name.removeprefix(_KEY))


def common(names: Collection[str]) -> str:
    """The name of a dtype that can hold the values of all. Raises a RecordError if there is none."""
    if len(names) == 1:
        return next(iter(names))
    dtypes = [dtype_of(name) for name in names]
    is_text = {dtype.kind in "US" for dtype in dtypes}  # numpy would turn numbers into text
    try:
        if len(is_text) > 1 or any(name.startswith(_KEY) for name in names):
            raise TypeError
        return name_of(np.result_type(*dtypes))
    except TypeError:
        raise RecordError(f"no dtype holds both {' and '.join(sorted(names))}") from None


def converted(array: np.ndarray, name: str) -> np.ndarray:
    """The array in a dtype that `common` found. Raises a RecordError if an integer would be rounded."""
    dtype = dtype_of(name)
    if array.dtype.kind in "iu" and dtype.kind not in "biu":
        digits = ml_dtypes.finfo(dtype).nmant + 1
        large = array[(array > 2**digits) | (array < -(2**digits))] if array.dtype.itemsize * 8 > digits else array[:0]
        for number in large.reshape(-1).tolist():
            if int(float(number)) != number:
                raise RecordError(f"{number} cannot be kept exactly as {name}")
    return array.astype(dtype)


def _is_extension(dtype: np.dtype) -> bool:
    return dtype.isbuiltin == 2 and hasattr(ml_dtypes, dtype.name)  # 2: registered with numpy by a library
