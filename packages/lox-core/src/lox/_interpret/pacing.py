"""Loops in which a tap knows beforehand when a batch is full. It sends between chunks of iterations, and asks nothing in
the loop.

This is for GPUs, which wait for the host at every condition (``lox._storage.packing``). On a CPU it gains nothing.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lox._interpret.survey import Survey
from lox._jax import compat
from lox._marks.primitives import log_p


class Pace(NamedTuple):
    """How a scan is taken.

    Attributes:
      size: so many iterations fill a batch.
      stores: the numbers of the stores that are full then, and at no other time.
    """

    size: int
    stores: frozenset[int]


# If iterations are left at the end, what the loop returns is joined with what they return, which is a copy.
_MAX_COPIED_BYTES = 2**24


def can_be_chunked(eqn: Any, size: int) -> bool:
    params = eqn.params
    if params["unroll"] != 1 or not isinstance(params["length"], int):
        return False
    _, num_carry = compat.scan_arities(params)
    returned = sum(math.prod(var.aval.shape) * var.aval.dtype.itemsize for var in eqn.outvars[num_carry:])
    return params["length"] % size == 0 or returned <= _MAX_COPIED_BYTES


def steady_loops(survey: Survey, jaxpr: Any, size: int) -> dict[int, frozenset[str]]:
    """For scans, by the id of their body: the keys of which each iteration makes one record, and nobody else any."""
    whole = survey(jaxpr).usages
    found: dict[int, frozenset[str]] = {}

    def is_steady(key: str, usage: Any, length: int) -> bool:
        only = usage.is_certain and usage.records == 1 and len(usage.uses) == 1 and not usage.uses[0].lanes
        return only and whole[key].is_certain and whole[key].records == length and len(whole[key].uses) == 1

    def visit(jaxpr: Any) -> None:
        for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
            if eqn.primitive is log_p or not survey.has_marks(eqn):
                continue
            if eqn.primitive.name == "scan" and can_be_chunked(eqn, size):
                body, length = eqn.params["jaxpr"], eqn.params["length"]
                steady = [key for key, usage in survey(body).usages.items() if is_steady(key, usage, length)]
                if steady:
                    found[id(compat.open_jaxpr(body)[0])] = frozenset(steady)
            for inner in compat.all_jaxprs_in_params(eqn.params):
                visit(inner)

    visit(jaxpr)
    return found
