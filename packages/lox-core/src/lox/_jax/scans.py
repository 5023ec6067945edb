"""The equations of ``jax.lax.scan``: a primitive, and with ``jax_scan3`` an object."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lox._jax import compat, hi_primitives
from lox._types import Array


def is_scan(eqn: Any) -> bool:
    return hi_primitives.name_of(eqn) in ("scan", "Scan3")


@dataclasses.dataclass(frozen=True)
class Scan:
    """Either kind. What an object carries is in references, which are among its constants."""

    jaxpr: Any
    length: Any
    reverse: bool
    unroll: int
    num_carry: int
    _num_consts: int
    _scanned: tuple[bool, ...] | None = None  # by operand, for objects: their constants need not come first

    @classmethod
    def of(cls, eqn: Any) -> Scan:
        prim = hi_primitives.primitive_of(eqn.params)
        if prim is not None:
            scanned = tuple(prim.extensives)
            return cls(prim.jaxpr, prim.length, prim.reverse, prim.unroll, 0, scanned.count(False), scanned)
        num_consts, num_carry = compat.scan_arities(eqn.params)
        fixed = (eqn.params[name] for name in ("jaxpr", "length", "reverse", "unroll"))
        return cls(*fixed, num_carry, num_consts)

    def split(self, operands: Sequence[Array]) -> tuple[list[Array], list[Array], list[Array]]:
        """The constants, what is carried at first, and what is scanned over."""
        if self._scanned is None:
            end = self._num_consts + self.num_carry
            return [*operands[: self._num_consts]], [*operands[self._num_consts : end]], [*operands[end:]]
        pairs = list(zip(operands, self._scanned, strict=True))
        return [value for value, over in pairs if not over], [], [value for value, over in pairs if over]

    def arguments(self, consts: Sequence[Array], carried: Sequence[Array], x: Sequence[Array]) -> list[Array]:
        """The arguments of the body in one iteration."""
        if self._scanned is None:
            return [*consts, *carried, *x]
        rest, slices = iter(consts), iter(x)
        return [next(slices if over else rest) for over in self._scanned]
