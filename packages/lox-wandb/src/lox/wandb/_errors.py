"""The errors of lox.wandb. Every error is a `lox.LoxError`, and so a `ValueError`."""

from __future__ import annotations

from lox import LoxError
from lox.loggers import RecordError

BACKEND = "WandbLogger"  # the name in messages


class WandbError(LoxError):
    """wandb could not do what was asked of it."""


class WandbOptionError(WandbError, TypeError):
    """An option that `WandbLogger` or `wandb.init` does not take, or a value that it refuses."""


class WandbLoginError(WandbError):
    """An online run needs an API key, and there is none."""


class WandbKeyError(WandbError, RecordError):
    """A key or step axis has a name that wandb reserves, or two things have the same name."""


class WandbFinishedError(WandbError):
    """Something was logged to a run that is finished."""
