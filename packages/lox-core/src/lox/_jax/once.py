"""The rule for lox's own primitives, marks and host calls, in ``jax.checkpoint``."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.interpreters import partial_eval as _pe

from lox._jax.compat import Literal


def run_once(primitive: Any) -> None:
    """Keep equations of ``primitive`` from being computed again for the backward pass."""
    _pe.partial_eval_jaxpr_custom_rules[primitive] = _checkpoint


def _checkpoint(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
    """In ``jax.checkpoint``, JAX saves the results of equations with an effect. A token need not be saved, and in a while loop
    it cannot be: where everything is computed again, it is the token that came in."""
    del saveable
    number = len(eqn.outvars)
    variables = [(atom, there) for atom, there in zip(eqn.invars, instantiated, strict=True) if _is_variable(atom)]
    if any(unknown):
        return None, eqn, [True] * number, [True] * number, [atom for atom, there in variables if not there]
    if not (number and passes_on(eqn)):
        return eqn, None, [False] * number, [False] * number, []
    token = eqn.invars[0]
    passed = eqn.replace(invars=[token], primitive=jax.lax.copy_p, params={}, effects=set())
    return eqn, passed, [False], [True], [atom for atom, there in variables[:1] if atom is token and not there]


def _is_variable(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def passes_on(eqn: Any) -> bool:
    """Whether the results are the first operands: none at all, or the token that orders calls of the host."""
    return len(eqn.outvars) == int(eqn.params.get("has_token", False))
