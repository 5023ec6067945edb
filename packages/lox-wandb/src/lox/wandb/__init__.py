"""Weights & Biases as a backend of lox: one run for each key, no row lost."""

from lox.wandb._errors import WandbError as WandbError
from lox.wandb._errors import WandbFinishedError as WandbFinishedError
from lox.wandb._errors import WandbKeyError as WandbKeyError
from lox.wandb._errors import WandbLoginError as WandbLoginError
from lox.wandb._errors import WandbOptionError as WandbOptionError
from lox.wandb._logger import WandbLogger as WandbLogger
