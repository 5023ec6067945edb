"""Derivative rules in ``jax.checkpoint`` with ``jax_remat3``.

A derivative runs the rule of a function instead of the function. In such a checkpoint, it does so only when values are
computed again, where nothing is recorded. The forward pass runs the function itself, so marks that only the rule has would
be lost.

So if a rule has its own marks, the forward pass also runs the program without the checkpoint, only for its marks: the same
marks, equally often and in the same order. The checkpoint itself then has no marks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from lox._errors import UnsupportedPrimitiveError, name_sites
from lox._jax import compat, hi_primitives, partial_eval

FUNCTIONS_WITH_RULES = frozenset(["custom_jvp_call", "custom_vjp_call", "CustomJVPTraced", "CustomVJPTraced"])


def record_beside(forward: Callable[..., Any]) -> Callable[..., Any]:
    """For reverse mode. ``forward(checkpoint, nonzero, *primals)`` returns results, residuals, and more."""

    def rule(checkpoint: Any, nonzero: Any, *primals: Any) -> Any:
        without_checkpoint, missing = _look_for_marks(forward, checkpoint, nonzero, primals)
        if missing:
            _refuse_writes(checkpoint, missing)
            compat.evaluator(partial_eval.effects_alone(without_checkpoint))(*primals)
            checkpoint = _like(checkpoint, _without_marks(checkpoint.jaxpr), checkpoint.policy)
        return forward(checkpoint, nonzero, *primals)

    return rule


def save_everything(linearize: Callable[..., Any]) -> Callable[..., Any]:
    """For ``jax.linearize``, which computes nothing again: marks of tangents stay in the linear part."""

    def rule(checkpoint: Any, nonzero: Any, *primals: Any) -> Any:
        _, missing = _look_for_marks(linearize, checkpoint, nonzero, primals)
        return linearize(_saving_everything(checkpoint) if missing else checkpoint, nonzero, *primals)

    return rule


def _look_for_marks(
    forward: Callable[..., Any], checkpoint: Any, nonzero: Any, primals: Sequence[Any]
) -> tuple[Any, Counter[Any]]:
    """The forward pass without the checkpoint, as a jaxpr without results, and its marks that the one with it lacks."""
    if not _may_have_marks(checkpoint):
        return None, Counter()
    saving = _saving_everything(checkpoint)
    jaxpr = jax.make_jaxpr(lambda *args: forward(saving, nonzero, *args)[:0])(*primals)
    return jaxpr, Counter(_marks(jaxpr)) - Counter(_marks(checkpoint.jaxpr))


def _refuse_writes(checkpoint: Any, missing: Counter[Any]) -> None:
    if compat.writes_refs(checkpoint.jaxpr):
        raise UnsupportedPrimitiveError(
            f"lox: a derivative rule has a mark of its own ({name_sites(map(str, missing))}), in a jax.checkpoint that also "
            "changes mutable arrays. With jax_remat3, JAX runs such a rule only when it computes the function again. Call "
            "lox.log in the function instead of its rule, or move the mutable arrays out of the checkpoint"
        )


def _may_have_marks(checkpoint: Any) -> bool:
    from lox._marks.mark import marks_are_wanted  # it stands above this folder

    if checkpoint.policy is jax.checkpoint_policies.everything_saveable:  # nothing is computed again
        return False
    is_traced_with_marks = marks_are_wanted() or any(map(compat.is_our_effect, checkpoint.jaxpr.effects))
    return is_traced_with_marks and any(_has_rules(eqn) for eqn in _equations(checkpoint.jaxpr))


def _has_rules(eqn: Any) -> bool:
    return hi_primitives.name_of(eqn) in FUNCTIONS_WITH_RULES


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations, at any depth."""
    for eqn in compat.open_jaxpr(jaxpr)[0].eqns:
        yield eqn
        for inner in compat.all_jaxprs_in_params(eqn.params):
            yield from _equations(inner)


def _marks(jaxpr: Any) -> Iterator[Any]:
    """What identifies each mark: its line. For a host call it is the target."""
    for eqn in _equations(jaxpr):
        if any(map(compat.is_our_effect, eqn.effects)) and not any(compat.all_jaxprs_in_params(eqn.params)):
            mark = eqn.params.get("mark")
            yield eqn.params.get("target", hi_primitives.name_of(eqn)) if mark is None else mark.site


def _saving_everything(checkpoint: Any) -> Any:
    return _like(checkpoint, checkpoint.jaxpr, jax.checkpoint_policies.everything_saveable)


def _like(checkpoint: Any, jaxpr: Any, policy: Any) -> Any:
    return type(checkpoint)(jaxpr, policy, checkpoint.prevent_cse)


def _without_marks(jaxpr: Any) -> Any:
    from lox._interpret.silent import without_forward_marks  # it stands above this folder

    return without_forward_marks(jaxpr)
