"""The contents of event files as logs: scalars, text and summaries of histograms. Hyperparameters become the config.

TensorBoard has one step, so the axis is always called `step`, whatever its name was when it was logged. The axis `time` is the
time of the events, in seconds since the first one. Files do not store whether a value had a step: a tag with a single value
at step 0, in a run whose other tags have later steps, is read as one without steps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.proto.summary_pb2 import Summary

import lox
from lox.loggers import Recording, RunFormatError, StoredRun
from lox.loggers.backend import config_in, describe_histogram, read_config
from lox.tensorboard import _crc
from lox.tensorboard._files import Shown, is_ours

_LENGTH = struct.Struct("<Q")
_HEADER, _FOOTER = 12, 4
_LONG = 4096  # records of at least this many bytes are checked one by one
_BLOCK = 1 << 20  # bytes that are checked at once
_HPARAMS = "_hparams_/"

# TensorFlow's DataType numbers: the dtype, and the field that holds the numbers of a small tensor.
_TENSORS: dict[int, tuple[Any, str]] = {
    1: (np.float32, "float_val"),
    2: (np.float64, "double_val"),
    3: (np.int32, "int_val"),
    4: (np.uint8, "int_val"),
    5: (np.int16, "int_val"),
    6: (np.int8, "int_val"),
    9: (np.int64, "int64_val"),
    10: (np.bool_, "bool_val"),
    14: (np.uint16, "half_val"),  # bfloat16: the upper half of a float32
    17: (np.uint16, "int_val"),
    19: (np.float16, "half_val"),
    22: (np.uint32, "uint32_val"),
    23: (np.uint64, "uint64_val"),
}
_STRING, _BFLOAT16, _HALF = 7, 14, 19


class Taken(NamedTuple):
    """A value, or the kind of a value that is not read."""

    wall_time: float
    value: Any
    kind: str = ""


def read_run(run: StoredRun) -> Recording:
    plugins: dict[str, str] = {}
    config: dict[str, Any] = {}

    def take(event: Event, value: Summary.Value) -> Taken:
        if value.HasField("metadata") and value.metadata.plugin_data.plugin_name:
            plugins[value.tag] = (
                value.metadata.plugin_data.plugin_name
            )  # TensorFlow writes it only with the first value
        if plugins.get(value.tag) == "hparams" or value.tag.startswith(_HPARAMS):
            config.update(_hparams(value))
            return Taken(event.wall_time, None, "hparams")
        kept, kind = _value(value, plugins.get(value.tag, ""))
        return Taken(event.wall_time, kept, kind)

    shown = Shown(run.files, take, read_checked)
    values = {tag: items for tag, items in shown.values.items() if items and items[0][1].kind != "hparams"}
    left_out = {tag: items[0][1].kind for tag, items in values.items() if any(item.kind for _, item in items)}
    if any(map(is_ours, run.files)):  # lox also writes config.json, because the HPARAMS tab has no lists and no None
        config = read_config(config_in(run.files[0].parent)) or config
    return Recording(_logs(values, left_out), config, left_out=left_out)


def _logs(values: dict[str, list[tuple[int, Taken]]], left_out: dict[str, str]) -> lox.logdict:
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {"step": {}, "time": {}}
    began = min((item.wall_time for items in values.values() for _, item in items), default=0.0)
    longest = max(map(len, values.values()), default=0)
    for tag, items in values.items():
        if tag in left_out:
            continue
        try:
            data[tag] = _column([item.value for _, item in items])
        except ValueError:
            left_out[tag] = "records of different shapes"
            continue
        if len(items) > 1 or longest == 1 or items[0][0] != 0:
            steps["step"][tag] = np.asarray([step for step, _ in items], np.int64)
            steps["time"][tag] = np.asarray([item.wall_time for _, item in items]) - began
    return lox.logdict(data, steps={axis: by_key for axis, by_key in steps.items() if by_key}, stacked=list(data))


def _column(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {name: np.asarray([value[name] for value in values]) for name in values[0]}
    return np.stack([np.asarray(value) for value in values])


# Values.


def _value(value: Summary.Value, plugin: str) -> tuple[Any, str]:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return np.float32(value.simple_value), ""
    if kind == "histo":
        return _histogram(value.histo), ""
    if kind == "tensor":
        return _of_tensor(value.tensor, plugin)
    return None, kind or "nothing"


def _histogram(histogram: Any) -> dict[str, float]:
    number = histogram.num or float("nan")
    mean = histogram.sum / number
    deviation = np.sqrt(max(histogram.sum_squares / number - mean**2, 0.0))
    return {
        "mean": mean,
        "std": float(deviation),
        "min": histogram.min,
        "max": histogram.max,
        "count": float(histogram.num),
    }


def _of_tensor(tensor: Any, plugin: str) -> tuple[Any, str]:
    if plugin in ("images", "audio", "graphs", "graph_keras_model", "pr_curves", "mesh"):
        return None, plugin
    if tensor.dtype == _STRING:
        texts = [text.decode(errors="replace") for text in tensor.string_val]
        return np.asarray(texts[0] if len(texts) == 1 else texts), ""
    array = _array(tensor)
    if array is None:
        return None, plugin or "a tensor"
    if plugin == "histograms" and array.ndim == 2 and array.shape[-1] == 3:
        if not len(array):
            return describe_histogram(np.empty(0), np.zeros(1)), ""
        return describe_histogram(array[:, 2], np.append(array[:, 0], array[-1, 1])), ""
    return array, ""


def _array(tensor: Any) -> np.ndarray | None:
    if tensor.dtype not in _TENSORS:
        return None
    dtype, field = _TENSORS[tensor.dtype]
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    if tensor.tensor_content:
        numbers = np.frombuffer(tensor.tensor_content, dtype)
    else:
        stored = np.asarray(getattr(tensor, field))
        numbers = stored.astype(np.uint16).view(np.float16) if tensor.dtype == _HALF else stored.astype(dtype)
        size = int(np.prod(shape))
        if len(numbers) < size and len(numbers):  # the last number stands for all that follow
            numbers = np.append(numbers, np.full(size - len(numbers), numbers[-1]))
    if tensor.dtype == _BFLOAT16:
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.reshape(shape)


def _hparams(value: Summary.Value) -> dict[str, Any]:
    try:
        found = HParamsPluginData.FromString(value.metadata.plugin_data.content)
    except Exception:  # an error of protobuf: the data has another version
        return {}
    if found.WhichOneof("data") != "session_start_info":
        return {}
    return {name: _plain(stored) for name, stored in found.session_start_info.hparams.items()}


def _plain(stored: Any) -> Any:
    kind = stored.WhichOneof("kind")
    if kind == "number_value":  # the format has no integers
        number = stored.number_value
        return int(number) if number == int(number) and abs(number) < 2**53 else number
    return getattr(stored, kind) if kind in ("string_value", "bool_value") else None


# Files.


def read_checked(path: Path) -> Iterator[Event]:
    """The events of a file, without an incomplete record at its end. A wrong checksum is an error."""
    data = path.read_bytes()
    frames = list(_frames(path, data))
    _check(path, data, frames)
    for start, length in frames:
        try:
            yield Event.FromString(data[start : start + length])
        except Exception as error:  # an error of protobuf, whose types are not public
            raise _damaged(path, start) from error


def _frames(path: Path, data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _HEADER <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        if data[at + 8 : at + _HEADER] != _length_checksum(length):
            raise _damaged(path, at)
        start = at + _HEADER
        at = start + length + _FOOTER
        if at > len(data):
            return
        yield start, length


@lru_cache(maxsize=4096)
def _length_checksum(length: int) -> bytes:
    return _stored(np.array([_crc.crc32c(_LENGTH.pack(length))], np.uint32)).tobytes()


def _check(path: Path, data: bytes, frames: Sequence[tuple[int, int]]) -> None:
    """Checks all checksums, with records of the same length together."""
    everything = np.frombuffer(data, np.uint8)
    by_length: dict[int, list[int]] = {}
    for start, length in frames:
        by_length.setdefault(length, []).append(start)
    for length, starts in by_length.items():
        if length < 4:  # too short to hold anything
            continue
        rows = max(1, _BLOCK // length)
        for first in range(0, len(starts), rows):
            begin = np.asarray(starts[first : first + rows])
            expected = everything[begin[:, None] + length + np.arange(_FOOTER)]
            wrong = (_checksums(everything, begin, length) != expected).any(1)
            if wrong.any():
                raise _damaged(path, int(begin[wrong][0]))


def _checksums(data: npt.NDArray[np.uint8], begin: npt.NDArray[np.intp], length: int) -> npt.NDArray[np.uint8]:
    if length > _LONG:
        each = [_crc.crc32c(data[start : start + length].tobytes()) for start in begin]
        return _stored(np.array(each, np.uint32))
    records = data[begin[:, None] + np.arange(length)]
    records[:, :4] ^= 0xFF
    return _stored(_crc.xor_of(_tables(length), records) ^ np.uint32(0xFFFFFFFF))


@lru_cache(maxsize=64)
def _tables(length: int) -> npt.NDArray[np.uint32]:
    return _crc.tables(np.arange(length - 1, -1, -1))


def _stored(crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    return _crc.masked(crc).astype("<u4")[:, None].view(np.uint8)


def _damaged(path: Path, at: int) -> RunFormatError:
    return RunFormatError(f"{path} is damaged: the data at byte {at} is not an event")
