"""`WandbLogger`: a wandb run for each key, all open at the same time."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import wandb

from lox.loggers import Logger, LoggerState, Run, RunExistsError
from lox.loggers.backend import NameFormat, check_format, fill_format
from lox.loggers.kinds import Kinds
from lox.wandb._earlier import earlier_rows
from lox.wandb._errors import BACKEND, WandbError, WandbOptionError
from lox.wandb._options import (
    check_arguments,
    check_folder,
    check_login,
    effective,
    light_settings,
    resolve_mode,
    wandb_folder,
)
from lox.wandb._rows import check_names
from lox.wandb._runfile import find_run_files, read_info
from lox.wandb._summary import How, Summary
from lox.wandb._values import SUPPORTED_KINDS, ValueEncoder
from lox.wandb._writer import RunWriter, Upload

_BASE = {"if_exists", "on_error", "processes", "queue_size", "close_timeout", "name", "time"}
_GRACE = 30.0  # seconds for what is left to do after an upload has timed out
_OWN = _BASE | {"kinds", "summary", "sample_rate", "fps", "path"}


class WandbLogger(Logger):
    """Logs to Weights & Biases. Each key that you pass to `init` opens a run. All runs of a logger are in one group, unless you
    pass `group`.

    Scalars are curves over the step axis they were logged with, arrays are histograms, and nested values are `key/leaf`.

    Args:
      kinds: how to show values, by key pattern: `{"*/image": "image"}`. Kinds are scalar, histogram, image, text, audio,
        video, table, hparams (which go to the run's config), and skip, which leaves a value out.
      summary: what the run's summary keeps for a key, by key pattern: `{"loss": "min", "acc*": ("max", "last")}`. One or
        several of min, max, mean, last, first and none.
      sample_rate: the frames per second of values of the kind audio.
      fps: the frames per second of values of the kind video.
      path: the folder for files. wandb's name for it, `dir`, works too.
      group: the group of each run. Like `name`, it is a format string over its config, `lane`, `key` and `process`, such as
        `"lr={rate}"`, or a function of the `Run`.
      close_timeout: for how many seconds `close` waits for the upload of a run. After that there is an error with the
        command that uploads the rest from disk. None waits until it is done.
      options: the options of every logger (`if_exists`, `on_error`, `processes`, `queue_size`, `name`), and all arguments of
        `wandb.init`: `project`, `entity`, `config`, `mode`, `tags`, `settings`, ...

    >>> from lox.wandb import WandbLogger
    >>> with WandbLogger(project="docs", mode="offline") as logger:
    ...     logger.log(logger.init(jax.random.key(0), {"rate": 0.1}), {"loss": 0.25}, step=3)
    """

    def __init__(
        self,
        *,
        kinds: Mapping[str, str] | None = None,
        summary: How | Mapping[str, How] | None = None,
        sample_rate: int = 44100,
        fps: int = 8,
        path: str | os.PathLike[str] | None = None,
        group: str | Callable[[Run], str] | None = None,
        **options: Any,
    ) -> None:
        check_format(BACKEND, "group", group)
        self._group_format = group
        base = {name: options.pop(name) for name in _BASE & options.keys()}
        arguments = _with_folder(options, path)
        check_arguments(arguments, _OWN)
        self._kinds = Kinds(kinds, backend=BACKEND, supported=SUPPORTED_KINDS)
        self._summary = Summary(summary)
        self._rates = (_check_rate("sample_rate", sample_rate), _check_rate("fps", fps))
        self.mode = resolve_mode(arguments)
        if self.mode == "online":
            check_login(arguments)
        if self.mode != "disabled" and arguments.get("dir") is not None:
            check_folder(arguments["dir"])
        self._group = effective(arguments, "group") if group is None else None
        self._project = effective(arguments, "project")
        # Settle these now: wandb would use the environment at the time when its first run in this process began.
        settled = {name: effective(arguments, name) for name in ("dir", "entity", "project")}
        self._arguments = {**arguments, **settled}
        self._new_group = f"lox-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        if base.get("if_exists") == "resume":
            self._new_group = "lox"  # a resumed run must not change its group
        self._folder = wandb_folder(arguments)
        self._unreachable: WandbError | None = None
        self._process = os.getpid()
        self._writers: list[RunWriter] = []
        timeout = base.pop("close_timeout", 60.0)
        self._upload = Upload(timeout)
        if base.get("time") and base.get("if_exists") == "resume":
            raise WandbOptionError(
                f'{BACKEND}: time=True does not work with if_exists="resume", which compares all steps of a row. wandb keeps the '
                "time of each row as _runtime and _timestamp anyway."
            )
        # wandb itself observes the timeout and reports what is left, so the base class has to wait longer.
        is_number = isinstance(timeout, int | float) and timeout > 0
        super().__init__(**base, close_timeout=timeout + _GRACE if is_number else timeout)

    # The methods of a backend.

    def limit_close(self, timeout: float) -> None:
        self._upload.shorten(timeout)
        super().limit_close(timeout + _GRACE)

    def open(self, run: Run) -> RunWriter:
        before = self._files(run.name) if self.if_exists == "resume" else []
        opened = self._start(run, before)
        self.close_first_at_exit()  # wandb ends its runs at interpreter exit
        try:
            earlier = earlier_rows(opened, before) if before or opened.resumed else None
            encoder = ValueEncoder(*self._rates)
            writer = RunWriter(
                opened,
                kinds=self._kinds,
                summary=self._summary,
                encoder=encoder,
                upload=self._upload,
                earlier=earlier,
            )
            if run.config:
                writer.configure(run.plain_config)
        except BaseException:
            opened.finish(exit_code=1)
            raise
        self._writers = [open_writer for open_writer in self._writers if not open_writer.closed] + [writer]
        return writer

    def exists(self, name: str) -> bool:
        """Whether the run is on this disk. If only the server has it, wandb raises when the run is opened."""
        return bool(self._files(name))

    def remove(self, name: str) -> None:
        """Deletes the run's files. On the server, opening it again replaces it."""
        for file in self._files(name):
            shutil.rmtree(file.parent)

    def formats(self) -> dict[str, NameFormat | None]:
        return {"group": self._group_format}

    # What differs from other loggers.

    def init(self, key: jax.Array, config: Mapping[str, Any] | None = None) -> LoggerState:
        """Opens a run. Its name comes from the logger's option `name=`, or else from the key.

        Args:
          key: a PRNG key.
          config: the settings of this run, added to the `config` of the logger. Arrays may be traced: in
            `jax.vmap(logger.init)(keys, {"lr": rates})` each run gets its own rate.
        """
        self._unreachable = None
        return super().init(key, config)

    @property
    def runs(self) -> tuple[wandb.Run, ...]:  # type: ignore[override]
        """wandb's own objects of the open runs, in the order in which they were opened, for what lox does not cover."""
        return tuple(writer.run for writer in self._writers if not writer.closed)

    def flush(self) -> None:
        """Returns when every record logged so far is in its run's file on this disk."""
        super().flush()
        if os.getpid() == self._process:  # in a forked child, the runs belong to its parent
            for writer in self._writers:
                writer.settle()

    def check_names(self, keys: Iterable[str], axes: Iterable[str]) -> None:
        check_names(keys, axes)

    # Helpers.

    def _run_id(self, name: str) -> str:
        """An id that is the same for the same name and group. Different groups are different experiments."""
        experiment = self._group_format if isinstance(self._group_format, str) else self._group
        return _safe_id(name) if experiment is None else f"{_safe_id(experiment, 40)}-{_safe_id(name)}"

    def _files(self, name: str) -> list[Path]:
        """The run's files in wandb's folder. Runs of other projects may have the same id."""
        files = find_run_files(self._folder, self._run_id(name)) if self.mode != "disabled" else []
        if self._project is None:
            return files
        return [file for file in files if (info := read_info(file)) is None or info.project == self._project]

    def _start(self, run: Run, before: list[Path]) -> wandb.Run:
        if self._unreachable is not None:
            raise self._unreachable  # otherwise each of the other lanes would wait just as long
        group = self._group if self._group_format is None else fill_format(BACKEND, "group", self._group_format, run)
        own = {
            "mode": self.mode,
            "id": self._run_id(run.name),
            "name": run.name,
            "group": group or self._group_of(before) or self._new_group,
            "reinit": "create_new",
            "resume": self._resume(),
            "settings": light_settings(self._arguments.get("settings"), self._upload.timeout),
        }
        try:
            return wandb.init(**{**self._arguments, **own})
        except Exception as error:  # not every exception is a wandb.Error
            raise self._explained(run, error) from error

    def _resume(self) -> str | None:
        if self.mode != "online":
            return "allow" if self.if_exists == "resume" else None
        # Without this argument, wandb would restart a run with the same id on the server.
        return {"resume": "allow", "replace": None}.get(self.if_exists, "never")

    def _group_of(self, files: list[Path]) -> str | None:
        infos = [read_info(file) for file in files]
        return next((info.group for info in infos if info is not None and info.group), None)

    def _explained(self, run: Run, error: Exception) -> Exception:
        message = str(error)
        if "already exists" in message:
            return RunExistsError(
                f'{BACKEND}: the server already has a run {run.name!r}; pass if_exists="new", "replace" or "resume"'
            )
        if "is in use" in message:
            return RunExistsError(
                f"{BACKEND}: another logger of this process has the run {run.name!r} open; close that one first, or "
                "give this one a group"
            )
        if not isinstance(error, wandb.errors.CommError):
            return WandbError(f"{BACKEND}: wandb cannot open the run {run.name!r}: {type(error).__name__}: {message}")
        self._unreachable = WandbError(
            f'{BACKEND}: wandb cannot reach its server: {message}. Go offline with mode="offline" or '
            "WANDB_MODE=offline (`wandb sync` uploads such runs later)."
        )
        return self._unreachable


def _safe_id(text: str, longest: int = 64) -> str:
    """Text as a part of wandb's run id, different for different texts."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:longest]
    return safe if safe == text else f"{safe}-{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _with_folder(options: dict[str, Any], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    if path is None:
        return options
    if options.get("dir") is not None:
        both = f"path={path!r} and dir={options['dir']!r}"
        raise WandbOptionError(f"{BACKEND}: {both} are two names for one option. Give one.")
    if not isinstance(path, str | os.PathLike):
        raise WandbOptionError(f"{BACKEND}: path must be a path; got {path!r}")
    return {**options, "dir": os.fspath(path)}


def _check_rate(name: str, rate: int) -> int:
    if not isinstance(rate, int) or isinstance(rate, bool) or rate < 1:
        raise WandbOptionError(f"{BACKEND}: {name} must be a whole number of frames per second; got {rate!r}")
    return rate
