"""The backend `wandb`: a Weights & Biases run for each key, without losing a row."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time they are imported on demand, because this package is imported whenever runs are read
    from lox.wandb._errors import WandbError as WandbError
    from lox.wandb._errors import WandbFinishedError as WandbFinishedError
    from lox.wandb._errors import WandbKeyError as WandbKeyError
    from lox.wandb._errors import WandbLoginError as WandbLoginError
    from lox.wandb._errors import WandbOptionError as WandbOptionError
    from lox.wandb._logger import WandbLogger as WandbLogger

_PLACES = {
    **dict.fromkeys(
        ("WandbError", "WandbFinishedError", "WandbKeyError", "WandbLoginError", "WandbOptionError"), "_errors"
    ),
    "WandbLogger": "_logger",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _PLACES:
        raise AttributeError(f"module 'lox.wandb' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lox.wandb.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
