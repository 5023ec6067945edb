"""Images, audio and video as wandb's media.

The conventions are those of the other backends: images are height x width (x channels), floats from 0 to 1 or integers
from 0 to 255; audio is frames (x channels), floats from -1 to 1 or int16; video is frames x an image.
"""

from __future__ import annotations

import io
import itertools
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import wandb

from lox.loggers import kinds
from lox.loggers.kinds import KindError
from lox.wandb._errors import BACKEND, WandbError


class MediaEncoder:
    def __init__(self, sample_rate: int, fps: int) -> None:
        self._sample_rate = sample_rate
        self._fps = fps
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._numbers = itertools.count()

    def image(self, name: str, record: np.ndarray) -> Any:
        if record.ndim not in (2, 3, 4) or 0 in record.shape or (record.ndim > 2 and record.shape[-1] not in (1, 3, 4)):
            raise KindError(
                f"{BACKEND}: {name!r} cannot be an image: a record has shape {record.shape}. An image is height x "
                "width, height x width x channels, or several of the latter; channels are 1, 3 or 4."
            )
        pixels = kinds.pixels(record, name, BACKEND)
        if record.ndim == 4:
            return [make(wandb.Image, name, _picture(name, image)) for image in pixels]
        return make(wandb.Image, name, _picture(name, pixels))

    def audio(self, name: str, record: np.ndarray) -> Any:
        frames = record[:, None] if record.ndim == 1 else record
        if frames.ndim != 2 or frames.shape[1] not in (1, 2) or not len(frames):
            raise KindError(
                f"{BACKEND}: {name!r} cannot be audio: a record has shape {record.shape}. Audio is frames, or frames x "
                "channels; channels are 1 or 2."
            )
        path = self._new_file("wav")  # from an array, wandb would need another package
        with wave.open(str(path), "wb") as sound:
            sound.setnchannels(frames.shape[1])
            sound.setsampwidth(2)
            sound.setframerate(self._sample_rate)
            sound.writeframes(kinds.samples(frames, name, BACKEND).tobytes())
        return make(wandb.Audio, name, str(path))

    def video(self, name: str, record: np.ndarray) -> Any:
        if record.ndim not in (3, 4) or 0 in record.shape or (record.ndim == 4 and record.shape[-1] not in (1, 3)):
            raise KindError(
                f"{BACKEND}: {name!r} cannot be a video: a record has shape {record.shape}. A video is frames x height "
                "x width, or frames x height x width x channels; channels are 1 or 3."
            )
        return make(wandb.Video, name, _gif(name, kinds.pixels(record, name, BACKEND), self._fps), format="gif")

    def forget_files(self) -> None:
        """Deletes the temporary files. Call it when every value made here is logged, because wandb has then copied them."""
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()

    def _new_file(self, suffix: str) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="lox-wandb-")
        return Path(self._folder.name, f"{next(self._numbers)}.{suffix}")


def make(media: Any, name: str, *args: Any, **options: Any) -> Any:
    """A media object of wandb. Some need packages that wandb does not depend on."""
    try:
        return media(*args, **options)
    except (ImportError, wandb.Error) as error:
        raise WandbError(f"{BACKEND}: wandb cannot make a {media.__name__} of {name!r}: {error}") from error


def _picture(name: str, pixels: np.ndarray) -> Any:
    """An image from pillow. Some versions of wandb would rescale the pixels of an array."""
    try:
        from PIL import Image
    except ImportError as error:
        raise WandbError(f"{BACKEND}: showing {name!r} needs pillow: pip install pillow") from error
    return Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)


def _gif(name: str, frames: np.ndarray, fps: int) -> io.BytesIO:
    first, *others = [_picture(name, frame) for frame in frames]
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=1000 / fps, loop=0)
    file.seek(0)
    return file
