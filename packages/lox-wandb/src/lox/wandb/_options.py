"""The options of `WandbLogger`, checked when the logger is created and not when the first run opens.

Whatever is known to fail later is an error here: arguments that `wandb.init` does not take, values that wandb's settings
refuse, an online run without an API key. Nothing here uses the network.
"""

from __future__ import annotations

import inspect
import netrc
import os
import tempfile
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wandb

from lox.wandb._errors import BACKEND, WandbLoginError, WandbOptionError

MODES = ("online", "offline", "disabled")
_ALIASES = {"dryrun": "offline", "run": "online"}

# Settings for many runs in one process: what wandb does once for a script, it would do for each of them.
_LIGHT = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "x_disable_stats": True,
    "x_disable_machine_info": True,
    # How many seconds a row may stay in the memory of wandb's process before it is in the run's file.
    "x_transaction_log_flush_interval": 0.1,
}

# Arguments of wandb.init that cannot be the same for all runs of a logger.
_MANAGED = {
    "id": "lox gives each run its own id, which is always the same for the same key",
    "resume": 'pass if_exists="resume", "new", "replace" or "error"',
    "reinit": "all runs of a logger are open at the same time, and so are your own runs",
    "resume_from": 'say if_exists="resume"',
    "fork_from": "fork single runs with wandb itself",
}

# The settings of arguments of wandb.init that have another name.
_SETTING_OF = {
    "dir": "root_dir",
    "group": "run_group",
    "job_type": "run_job_type",
    "name": "run_name",
    "notes": "run_notes",
    "tags": "run_tags",
}


def check_arguments(arguments: Mapping[str, Any], own: set[str]) -> None:
    """Raises an error for arguments that `wandb.init` would refuse, or misunderstand.

    Args:
      own: the logger's own options.
    """
    known = set(inspect.signature(wandb.init).parameters) - _MANAGED.keys()
    for name, value in arguments.items():
        if name in _MANAGED:
            raise WandbOptionError(f"{BACKEND}: {name}={value!r} cannot be given: {_MANAGED[name]}.")
        if name not in known:
            close = get_close_matches(name, known | own, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise WandbOptionError(f"{BACKEND}: neither WandbLogger nor wandb.init takes {name!r}.{hint}")
    settings = _user_settings(arguments.get("settings"))
    for name, value in arguments.items():
        field = _SETTING_OF.get(name, name)
        if value is not None and name not in ("settings", "mode") and field in type(settings).model_fields:
            _try(lambda field=field, value=value: setattr(settings, field, value), f"{name}={value!r}")


def _user_settings(settings: Any) -> wandb.Settings:
    if settings is None:
        return wandb.Settings()
    if isinstance(settings, wandb.Settings):
        return settings.model_copy()
    if isinstance(settings, Mapping):
        return _try(lambda: wandb.Settings(**settings), "settings")
    raise WandbOptionError(f"{BACKEND}: settings must be a dict or wandb.Settings; got {type(settings).__name__}")


def _try(action: Any, what: str) -> Any:
    try:
        return action()
    except (wandb.Error, ValueError, TypeError) as error:
        raise WandbOptionError(f"{BACKEND}: wandb refuses {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The reason in a report of pydantic: the report has many lines and a web address around it."""
    found = getattr(error, "errors", None)
    if not callable(found):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in found())


def light_settings(settings: wandb.Settings | Mapping[str, Any] | None, finish_timeout: float | None) -> wandb.Settings:
    """The user's settings. Where neither they nor the environment set a value, it is that of a light run."""
    merged = _user_settings(settings)
    limits = {"finish_timeout": finish_timeout or 0.0, "finish_timeout_raises": True}
    for name, value in {**_LIGHT, **limits}.items():
        if name in type(merged).model_fields and name not in merged.model_fields_set and not _in_environment(name):
            setattr(merged, name, value)
    return merged


def _in_environment(setting: str) -> bool:
    variables = [f"WANDB_{setting.upper()}"]
    if setting.startswith("x_"):
        variables.append(f"WANDB__{setting[2:].upper()}")
    return any(variable in os.environ for variable in variables)


def effective(arguments: Mapping[str, Any], argument: str) -> Any:
    """The value that wandb will use for an argument: the given one, or that of the environment, or that of wandb's settings.

    The environment is read now, because wandb itself reads it only once in a process.
    """
    if arguments.get(argument) is not None:
        return arguments[argument]
    field = _SETTING_OF.get(argument, argument)
    settings = _user_settings(arguments.get("settings"))
    if field in settings.model_fields_set:
        return getattr(settings, field)
    variable = {"run_group": "WANDB_RUN_GROUP", "root_dir": "WANDB_DIR"}.get(field, f"WANDB_{argument.upper()}")
    return os.environ.get(variable) or getattr(wandb.setup().settings, field, None)


def resolve_mode(arguments: Mapping[str, Any]) -> str:
    mode = effective(arguments, "mode")
    mode = _ALIASES.get(mode, mode)
    if mode not in MODES:
        raise WandbOptionError(f"{BACKEND}: mode={mode!r}; it must be one of {', '.join(map(repr, MODES))}.")
    return mode


def check_login(arguments: Mapping[str, Any]) -> None:
    """Raises an error if an online run would find no API key. wandb would ask for one on the terminal, or fail later."""
    url = str(effective(arguments, "base_url"))
    shared = wandb.setup().settings
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return
    if _user_settings(arguments.get("settings")).api_key:
        return
    if shared.base_url == url and (shared.api_key or getattr(shared, "identity_token_file", None)):
        return
    if not _in_netrc(url):
        raise WandbLoginError(
            f"{BACKEND}: no API key for {url}. Log in with `wandb login`, set WANDB_API_KEY, or stay offline "
            'with mode="offline" or WANDB_MODE=offline (`wandb sync` uploads such runs later).'
        )


def _in_netrc(url: str) -> bool:
    # wandb's own host has had two names, and a key that was stored for one works for the other.
    hosts = {urlsplit(url).netloc, "api.wandb.ai"} if url == wandb.Settings().base_url else {urlsplit(url).netloc}
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            entries = netrc.netrc(str(path.expanduser()))
        except (OSError, netrc.NetrcParseError):
            continue
        if any(host and entries.authenticators(host) for host in hosts):
            return True
    return False


def wandb_folder(arguments: Mapping[str, Any]) -> Path:
    """The folder in which wandb creates a folder for each run."""
    settings = wandb.setup().settings.model_copy()
    root = effective(arguments, "dir")
    if root is not None:
        settings.root_dir = str(root)
    return Path(settings.wandb_dir)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raises an error if the folder is not writable. wandb would use a temporary folder instead."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # permissions do not show this (read-only disks, root), so try a file
            pass
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        problem = "it, or a folder above it, is a file" if is_file else error
        raise WandbOptionError(
            f"{BACKEND}: cannot write to {os.fspath(folder)!r}: {problem}. Choose a writable folder."
        ) from error
