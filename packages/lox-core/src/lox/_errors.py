"""The error family of lox.

Every error explains what is wrong, where (the file:line of the ``lox.log`` calls it is about), and what to do next.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable

import jax

_NOT_THE_CALLER = tuple(os.path.dirname(os.path.abspath(module)) + os.sep for module in (__file__, jax.__file__))


class LoxError(ValueError):
    """The base of every error that lox raises."""


class LogTypeError(LoxError, TypeError):
    """An argument has a type that cannot be logged, or that the option does not accept."""


class OptionError(LoxError):
    """An option has a value that is not allowed."""


class UnknownOptionError(OptionError, TypeError):
    """A function was given an option that it does not have."""


class MissingKeyError(LoxError, KeyError):
    """The logs have no such key."""

    __str__ = Exception.__str__  # that of KeyError shows the message as a quoted string


class ConflictError(LoxError):
    """Two ``lox.log`` calls log one key with different shapes, structures, step axes or reductions."""


class DynamicCountError(LoxError):
    """The number of records is not known when the program is traced, and no bound was given."""


class BranchMismatchError(DynamicCountError):
    """The branches of a conditional record different things."""


class UnsupportedPrimitiveError(LoxError):
    """A mark inside a higher-order primitive that lox does not know."""


class IncompatibleJaxError(LoxError):
    """The installed JAX lacks something that lox needs."""


class LaneError(LoxError):
    """The transformation is outside a ``vmap``, but lanes are known only inside it: write ``vmap(spool(f))``."""


class ChangedArgumentError(LoxError):
    """A function changes an argument in place, and the change would be lost."""


class OrderError(LoxError):
    """``ordered=True`` where JAX cannot promise an order."""


def name_sites(sites: Iterable[str]) -> str:
    """``a.py:3, a.py:7`` with each site once, in order."""
    return ", ".join(dict.fromkeys(sites))


def warn_caller(message: str) -> None:
    """Warn, and point at the line of the caller's code that called into lox."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_CALLER):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
