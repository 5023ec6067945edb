"""A scan in ``jax.checkpoint`` with everything left in its loop.

JAX's own rule moves what is the same in every iteration out of the loop, including its marks. This one splits the scan in
the same way (the known part, and the part that is computed again for the backward pass), but moves nothing: values that
the policy saves are saved for each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._jax import compat, hi_primitives, partial_eval


def take_apart(saveable: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Any) -> Any:
    """A rule for ``partial_eval_jaxpr_custom_rules``."""
    groups = _Groups(eqn)
    unknown, known_jaxpr, staged_jaxpr, unknown_outs, instantiated_outs, saved = _split(saveable, unknown, eqn, groups)
    known_invars = [atom for atom, later in zip(eqn.invars, unknown, strict=True) if not later]
    known_outvars = [var for var, later in zip(eqn.outvars, unknown_outs, strict=True) if not later]
    staged_outvars = [var for var, there in zip(eqn.outvars, instantiated_outs, strict=True) if there]

    run = _scan(known_jaxpr, groups.of([not later for later in unknown]), eqn.params)
    known_call = jax.make_jaxpr(run)(*(atom.aval for atom in known_invars))
    residuals = [partial_eval.new_variable(aval) for aval in known_call.out_avals[len(known_outvars) :]]
    staged_body = _residuals_last(staged_jaxpr, saved)

    missing = [
        atom
        for atom, there in zip(eqn.invars, instantiated, strict=True)
        if not there and not isinstance(atom, compat.Literal)
    ]
    return (
        partial_eval.equation(
            eqn,
            partial_eval.closed_call_p,
            {"call_jaxpr": known_call},
            known_call.effects,
            known_invars,
            [*known_outvars, *residuals],
        ),
        partial_eval.equation(
            eqn,
            eqn.primitive,
            partial_eval.scan_over_more(eqn.params, staged_body, saved),
            staged_body.effects,
            [*eqn.invars, *residuals],
            staged_outvars,
        ),
        unknown_outs,
        instantiated_outs,
        [*missing, *residuals],
    )


class _Groups:
    """Which operands of a scan are constants, carried, and scanned over."""

    def __init__(self, eqn: Any) -> None:
        self.consts, self.carry = compat.scan_arities(eqn.params)

    def of(self, which: Sequence[bool]) -> tuple[int, int]:
        """How many constants and carried values there are among these operands."""
        return sum(which[: self.consts]), sum(which[self.consts : self.consts + self.carry])


def _split(saveable: Any, unknown: Sequence[bool], eqn: Any, groups: _Groups) -> Any:
    """Split the body. A carried value that is unknown after an iteration is unknown before it too."""
    place = slice(groups.consts, groups.consts + groups.carry)
    unknown = list(unknown)
    while True:
        others = [False] * (len(eqn.outvars) - groups.carry)
        parts = partial_eval.split_for_checkpoint(eqn.params["jaxpr"], unknown, [*unknown[place], *others], saveable)
        carried = parts[2][: groups.carry]
        if carried == unknown[place]:
            return unknown, *parts
        unknown[place] = [before or after for before, after in zip(unknown[place], carried, strict=True)]


def _residuals_last(jaxpr: Any, number: int) -> Any:
    """Moves the residuals to the end: partial evaluation puts them first, but what a scan slices comes last."""
    evaluate = compat.evaluator(jaxpr)
    avals = [*jaxpr.in_avals[number:], *jaxpr.in_avals[:number]]
    return jax.make_jaxpr(lambda *args: evaluate(*args[len(args) - number :], *args[: len(args) - number]))(*avals)


def _scan(jaxpr: Any, groups: tuple[int, int], params: dict[str, Any]) -> Callable[..., Any]:
    """A scan of ``jaxpr`` as a function of its operands."""
    evaluate = compat.evaluator(jaxpr)
    num_consts, num_carry = groups

    def run(*operands: Any) -> list[Any]:
        consts, init, xs = operands[:num_consts], operands[num_consts:][:num_carry], operands[num_consts + num_carry :]

        def body(carry: Any, x: Any) -> Any:
            outs = evaluate(*consts, *carry, *x)
            return tuple(outs[:num_carry]), tuple(outs[num_carry:])

        length = None if xs else params["length"]
        carry, ys = hi_primitives.scan(
            body, tuple(init), xs, length=length, reverse=params["reverse"], unroll=params["unroll"]
        )
        return [*carry, *ys]

    return run
