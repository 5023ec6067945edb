"""The parts of JAX's partial evaluation that ``backports`` needs: splitting a jaxpr, and making equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import config as _config
from jax._src import core as _core
from jax._src.interpreters import partial_eval as _pe

from lox._jax.compat import close, open_jaxpr, our_effects


def staged_part(jaxpr: Any, unknown: Sequence[bool], instantiate: Any = False) -> tuple[Any, list[bool]]:
    """The part that partial evaluation stages for later, and which results belong to it."""
    # As in JAX itself, the parts may pass Refs to each other.
    with _config.mutable_array_checks(False):
        _, staged, unknown_outs, _ = _pe.partial_eval_jaxpr_nounits(jaxpr, unknown, instantiate)
    return staged, list(unknown_outs)


def marks_depend_on(jaxpr: Any, inputs: Sequence[bool]) -> bool:
    """Whether the operands of a mark, or whether it is reached, depend on these inputs."""
    staged, _ = staged_part(jaxpr, inputs)
    return any(isinstance(effect, tuple(our_effects)) for effect in staged.effects)


def effects_alone(jaxpr: Any) -> Any:
    """Of a closed jaxpr, what its effects need."""
    return _pe.dce_jaxpr(jaxpr, False, True)[0]


def is_staged(value: Any) -> bool:
    return isinstance(value, _pe.JaxprTracer) and not value.pval.is_known()


def split_for_checkpoint(jaxpr: Any, unknown: Sequence[bool], unknown_outs: Sequence[bool], saveable: Any) -> Any:
    """Split a closed jaxpr by a policy of ``jax.checkpoint``.

    Returns the known part, the part that is computed later from residuals and all operands, which results are unknown,
    which are in the later part, and the number of residuals. JAX < 0.11 takes open jaxprs.
    """
    body, consts = open_jaxpr(jaxpr)
    known, staged, *rest = _pe.partial_eval_jaxpr_custom(body, unknown, True, unknown_outs, True, saveable)
    if hasattr(jaxpr, "jaxpr") and jaxpr.jaxpr is not jaxpr:
        known, staged = close(known, consts), close(staged, consts)
    return known, staged, *map(_as_list, rest)


def _as_list(value: Any) -> Any:
    return value if isinstance(value, int) else list(value)


def scan_over_more(params: dict[str, Any], jaxpr: Any, number: int) -> dict[str, Any]:
    """The parameters of a scan whose body takes ``number`` more slices, after all others."""
    params = {**params, "jaxpr": jaxpr}
    if "linear" in params:  # JAX < 0.10 has a flag for each operand
        params["linear"] = (*params["linear"], *[False] * number)
    if "ft_in" not in params:  # JAX >= 0.11 has a tree of the operands
        return params
    from jax._src import flattree

    consts, carry, xs = params["ft_in"].unpack()
    return {**params, "ft_in": flattree.pack((consts, carry, (xs, flattree.nones(number))))}


def new_variable(aval: Any) -> Any:
    return _core.Var(aval)


def equation(
    like: Any, primitive: Any, params: dict[str, Any], effects: Any, invars: Sequence[Any], outvars: Sequence[Any]
) -> Any:
    """A new equation, at the place of another one."""
    return _core.new_jaxpr_eqn(list(invars), list(outvars), primitive, params, effects, like.source_info, like.ctx)


closed_call_p = _core.closed_call_p
