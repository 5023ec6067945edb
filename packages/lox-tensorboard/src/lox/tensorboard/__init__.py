"""The backend `tensorboard`: lox's records as TensorBoard event files, without TensorFlow."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time it is imported on demand, because this package is imported whenever runs are read
    from lox.tensorboard._logger import TensorBoardLogger as TensorBoardLogger

__all__ = ["TensorBoardLogger"]


def __getattr__(name: str) -> Any:
    if name != "TensorBoardLogger":
        raise AttributeError(f"module 'lox.tensorboard' has no attribute {name!r}")
    from lox.tensorboard._logger import TensorBoardLogger

    return TensorBoardLogger


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
