"""Single values as TensorBoard's summaries: histograms, images, audio and text."""

from __future__ import annotations

import io
import wave

import numpy as np
import numpy.typing as npt
from tensorboardX import summary
from tensorboardX.proto.summary_pb2 import HistogramProto, Summary

from lox.loggers import Histogram, kinds
from lox.loggers.kinds import Column, KindError, decode_text

Array = npt.NDArray[np.generic]

BACKEND = "TensorBoardLogger"
_BINS = 64
_IMAGE_LAYOUTS = {2: "HW", 3: "HWC", 4: "NHWC"}


class ValueEncoder:
    """Turns one record of a column into summary values."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._images_seen: set[str] = set()

    def __call__(self, column: Column, record: int) -> list[Summary.Value]:
        value = column.values[record]
        if column.kind == "scalar":
            return [_scalar(column.name, value)]
        if column.kind == "histogram":
            return _histogram(column.name, value)
        if column.kind == "binned":
            return _binned(column.name, value)
        if column.kind == "image":
            return [self._image(column.name, value)]
        if column.kind == "audio":
            return [self._audio(column.name, value)]
        return [_named(column.name, summary.text(column.name, decode_text(np.asarray(value), column.name, BACKEND)))]

    def _image(self, name: str, value: Array) -> Summary.Value:
        layout = _IMAGE_LAYOUTS.get(value.ndim)
        if layout is None or 0 in value.shape or (value.ndim > 2 and value.shape[-1] not in (1, 3, 4)):
            raise KindError(
                f"{BACKEND}: {name!r} cannot be an image: a record has shape {value.shape}. An image is height x "
                "width, height x width x channels, or several of the latter; channels are 1, 3 or 4."
            )
        pixels = kinds.pixels(value, name, BACKEND, check=name not in self._images_seen)
        self._images_seen.add(name)
        return _named(name, summary.image(name, pixels, dataformats=layout))

    def _audio(self, name: str, value: Array) -> Summary.Value:
        frames = value[:, None] if value.ndim == 1 else value
        if frames.ndim != 2 or frames.shape[1] not in (1, 2) or not len(frames):
            raise KindError(
                f"{BACKEND}: {name!r} cannot be audio: a record has shape {value.shape}. Audio is frames, or frames x "
                "channels; channels are 1 or 2."
            )
        file = io.BytesIO()
        with wave.open(file, "wb") as sound:
            sound.setnchannels(frames.shape[1])
            sound.setsampwidth(2)
            sound.setframerate(self._sample_rate)
            sound.writeframes(kinds.samples(frames, name, BACKEND).tobytes())
        audio = Summary.Audio(
            sample_rate=self._sample_rate,
            num_channels=frames.shape[1],
            length_frames=len(frames),
            encoded_audio_string=file.getvalue(),
            content_type="audio/wav",
        )
        return Summary.Value(tag=name, audio=audio)


def as_float32(values: Array) -> npt.NDArray[np.float32]:
    """Numbers as TensorBoard stores scalars. Numbers beyond float32 become infinite, as with TensorBoard's own writer."""
    if values.dtype != np.float64:
        return values.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _scalar(name: str, value: Array) -> Summary.Value:
    return Summary.Value(tag=name, simple_value=float(as_float32(value)))


def _histogram(name: str, value: Array) -> list[Summary.Value]:
    if not value.size:
        raise KindError(f"{BACKEND}: {name!r} has shape {value.shape}: a histogram needs at least one number.")
    numbers = value.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    shown = []
    if finite.size:
        shown.append(_named(name, summary.histogram(name, finite, _BINS)))
    if finite.size < numbers.size:
        # A histogram cannot hold them. A curve of their number shows when they began.
        shown.append(_scalar(f"{name}/nonfinite", np.asarray(numbers.size - finite.size)))
    return shown


def _binned(name: str, value: Histogram) -> list[Summary.Value]:
    counts, edges = value.filled()
    shown = []
    if len(counts):
        middles = (edges[:-1] + edges[1:]) / 2
        proto = HistogramProto(
            min=edges[0],
            max=edges[-1],
            num=counts.sum(),
            sum=counts @ middles,
            sum_squares=counts @ middles**2,
            bucket_limit=edges[1:],  # TensorBoard uses the least value as the left end of the first bucket
            bucket=counts,
        )
        shown.append(Summary.Value(tag=name, histo=proto))
    # What a histogram cannot hold is shown as curves.
    apart = {"below": value.below, "above": value.above, "nonfinite": value.nan + value.inf}
    return shown + [_scalar(f"{name}/{what}", np.asarray(number)) for what, number in apart.items() if number]


def _named(name: str, made: Summary) -> Summary.Value:
    """The only value of a tensorboardX summary, with the logged name: tensorboardX changes some characters."""
    (value,) = made.value
    value.tag = name
    return value
