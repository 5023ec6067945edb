"""What a program of the corpus is: a function of one float32 vector, and what it logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

# Chosen so that conditionals on `x[0] > 0` go both ways over the lanes, and so that no two records are alike.
X = np.array([0.5, -1.0, 2.0], np.float32)
LANES = np.stack([X, X + 1.0, -X])

Expected = Callable[[np.ndarray], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function ``x -> scalar`` with marks in it.

    Attributes:
      expected: ``x -> {key: value}``. A list is several records along axis 0, anything else one record without the axis.
      steps: ``x -> {axis: {key: steps}}``, laid out in the same way.
      backward: what ``spool(grad(f))`` records besides: marks of backward rules and of ``log_grad``.
      dynamic: the number of records is not static, so that spool needs ``capacity`` or ``reduce``.
      bounded: rows are compacted (``where``): ``expected`` is what is left after ``trim``.
      batched_control: under vmap a ``cond`` or a ``where`` differs between lanes, or a rule of ``custom_vmap`` makes records of
        its own for all lanes, so that only ``vmap(spool(f))`` can know them.
      differentiable: reverse-mode differentiation works.
    """

    name: str
    fun: Callable[[Any], Any]
    expected: Expected
    steps: Expected | None = None
    backward: Expected | None = None
    dynamic: bool = False
    bounded: bool = False
    batched_control: bool = False
    differentiable: bool = True

    @property
    def options(self) -> dict[str, Any]:
        """What spool needs to run it."""
        return {"capacity": 16} if self.dynamic else {}

    def __repr__(self) -> str:
        return self.name


class Corpus:
    """Collects programs by decoration: ``@corpus(expected=...)``."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def __call__(self, expected: Expected, **traits: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def register(fun: Callable[..., Any]) -> Callable[..., Any]:
            self.programs.append(Program(fun.__name__, fun, expected, **traits))
            return fun

        return register


def running_sums(x: np.ndarray) -> list[np.float32]:
    return list(np.cumsum(x, dtype=np.float32))
