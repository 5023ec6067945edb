"""`TensorBoardLogger`: runs as folders of event files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lox.loggers import Logger, LoggerOptionError, Run, RunExistsError, RunLock
from lox.loggers.backend import config_in, refuse_links, remove_config, write_config
from lox.loggers.kinds import Kinds
from lox.tensorboard._files import event_files, is_ours
from lox.tensorboard._hparams import check_hparams, of_config
from lox.tensorboard._lanes import LaneEncoder
from lox.tensorboard._values import BACKEND
from lox.tensorboard._writer import TensorBoardWriter

SUPPORTED_KINDS = ("scalar", "histogram", "binned", "image", "text", "audio", "hparams")


class TensorBoardLogger(Logger):
    """Logs to TensorBoard: each run is a folder below `path`.

    Scalars are shown as scalars, arrays and `lox.loggers.Histogram`s as histograms, strings as text, and
    nested values as `key/leaf`.

    Args:
      path: the folder to pass to `tensorboard --logdir`. TensorBoard's name for it, `logdir`, works too.
      kinds: how to show values, by key pattern: `{"*/image": "image"}`. Kinds are scalar, histogram, image, text, audio,
        hparams, and skip, which leaves a value out.
      step_axis: the step axis to use as TensorBoard's step. If you give several, each key uses the first one that it has. A
        key with just one other axis uses that. Other axes become scalars. For a key without steps, records are counted.
      hparams: hyperparameters of all runs, for the HPARAMS tab. Pass those of single runs to `init`, or log them with the
        kind hparams.
      sample_rate: the frames per second of values of the kind audio.
      options: the options of every logger: `if_exists`, `on_error`, `processes`, `queue_size`.

    >>> from lox.tensorboard import TensorBoardLogger
    >>> with TensorBoardLogger("runs") as logger:
    ...     logger.log(logger.init(jax.random.key(0)), {"loss": 0.25}, step=3)
    """

    # Every write already reaches the operating system, and syncing a thousand files each second would only cost time.
    flush_interval = None
    keys_apart = True

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        logdir: str | os.PathLike[str] | None = None,
        kinds: Mapping[str, str] | None = None,
        step_axis: str | Sequence[str] = "step",
        hparams: Mapping[str, Any] | None = None,
        sample_rate: int = 44100,
        **options: Any,
    ) -> None:
        self._kinds = Kinds(kinds, backend=BACKEND, supported=SUPPORTED_KINDS)
        self._step_axes = _check_step_axis(step_axis)
        self._lanes = LaneEncoder(self._kinds)
        self._hparams = check_hparams(hparams)
        self._sample_rate = _check_sample_rate(sample_rate)
        self.path = _check_path(path, logdir)
        super().__init__(**options)

    def open(self, run: Run) -> TensorBoardWriter:
        folder = self.path / run.name
        refuse_links(self.path, folder)
        try:
            # The process that creates the folder owns the name. Another one may be opening a run with the same key.
            folder.mkdir(parents=True, exist_ok=run.resume or self.if_exists == "replace")
        except FileExistsError as error:
            raise RunExistsError(
                f'{BACKEND}: {folder} already exists. Delete it, or pass if_exists="new", "replace" or "resume".'
            ) from error
        write_config(config_in(folder), run)
        return TensorBoardWriter(
            folder,
            kinds=self._kinds,
            step_axes=self._step_axes,
            hparams={**self._hparams, **of_config(run)},
            sample_rate=self._sample_rate,
            resume=run.resume,
            lanes=self._lanes,
        )

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def existing(self) -> list[str]:
        return sorted({file.parent.relative_to(self.path).as_posix() for file in self.path.rglob("*tfevents*")})

    def lock(self, name: str) -> RunLock:
        return RunLock(self.path, name)

    def remove(self, name: str) -> None:
        """Deletes the event files and the config that lox wrote, and nothing else in the run's folder."""
        refuse_links(self.path, self.path / name)
        for path in filter(is_ours, event_files(self.path / name)):
            path.unlink()
        remove_config(config_in(self.path / name))
        with contextlib.suppress(OSError):
            (self.path / name).rmdir()


def _check_path(path: str | os.PathLike[str] | None, logdir: str | os.PathLike[str] | None) -> Path:
    if path is not None and logdir is not None:
        raise LoggerOptionError(f"{BACKEND}: path and logdir are two names for one option. Give one of them")
    given = "logdir" if path is None and logdir is not None else "path"
    where = path if path is not None else logdir if logdir is not None else "runs"
    if not isinstance(where, str | os.PathLike):
        raise LoggerOptionError(f"{BACKEND}: {given} must be a path; got {where!r}")
    if "://" in str(where):
        raise LoggerOptionError(
            f"{BACKEND}: {given}={str(where)!r} is not a local folder. Write to a local folder and copy it"
        )
    folder = Path(where).expanduser().absolute()  # still right after os.chdir
    try:
        # The folder is created with the first run. Permissions do not show whether that will work (read-only disks, root), so
        # try to create a file.
        with tempfile.TemporaryFile(dir=next(above for above in (folder, *folder.parents) if above.exists())):
            pass
    except OSError as error:
        problem = "it, or a folder above it, is a file" if isinstance(error, NotADirectoryError) else error
        raise LoggerOptionError(
            f"{BACKEND}: cannot write to {given}={str(folder)!r}: {problem}. Choose a writable folder."
        ) from error
    return folder


def _check_step_axis(step_axis: str | Sequence[str]) -> tuple[str, ...]:
    axes = (step_axis,) if isinstance(step_axis, str) else tuple(step_axis) if isinstance(step_axis, Sequence) else ()
    if not axes or not all(isinstance(axis, str) and axis for axis in axes):
        raise LoggerOptionError(f"{BACKEND}: step_axis must be the name of a step axis, or several; got {step_axis!r}")
    return axes


def _check_sample_rate(sample_rate: int) -> int:
    if not isinstance(sample_rate, int) or isinstance(sample_rate, bool) or sample_rate < 1:
        raise LoggerOptionError(
            f"{BACKEND}: sample_rate must be a whole number of frames per second; got {sample_rate!r}"
        )
    return sample_rate
