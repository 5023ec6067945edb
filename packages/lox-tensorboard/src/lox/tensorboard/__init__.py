"""The backend `tensorboard`: lox's records as TensorBoard event files, without TensorFlow."""

from lox.tensorboard._logger import TensorBoardLogger as TensorBoardLogger

__all__ = ["TensorBoardLogger"]
