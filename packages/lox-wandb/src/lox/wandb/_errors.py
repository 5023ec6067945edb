"""The errors of lox.wandb: all of them are `lox.LoxError`s, hence `ValueError`s."""

from __future__ import annotations

from lox import LoxError
from lox.loggers import RecordError

BACKEND = "WandbLogger"  # what messages call it


class WandbError(LoxError):
    """wandb could not do what was asked of it."""


class WandbOptionError(WandbError, TypeError):
    """An option that `WandbLogger` or `wandb.init` does not take, or a value that it refuses."""


class WandbLoginError(WandbError):
    """An online run needs an API key, and there is none."""


class WandbKeyError(WandbError, RecordError):
    """A key or step axis that wandb keeps for itself, or one name for two things."""


class WandbFinishedError(WandbError):
    """Something was logged to a run that is finished."""
