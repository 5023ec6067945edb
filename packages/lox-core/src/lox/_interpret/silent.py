"""Programs that are computed a second time, for a derivative or for their records: without marks, or without calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lox._host.executions import number_p, say_p
from lox._host.primitive import deliver_p
from lox._interpret import marked_rules
from lox._interpret.collect import Collector, Context, Frame
from lox._interpret.survey import Survey
from lox._jax import compat, once
from lox._marks.mark import marking
from lox._marks.primitives import LogEffect
from lox._types import Array


def without_marks(jaxpr: Any) -> Any:
    """What a closed jaxpr computes, traced again without its marks and host calls, and without those of derivative rules."""
    return _evaluated(_RepetitionSilencer(), jaxpr)


def without_forward_marks(jaxpr: Any) -> Any:
    """The same for a program that is differentiated next. Cotangents are still recorded: by backward rules, and by
    ``lox.log_grad`` in any rule."""
    return _evaluated(_ForwardSilencer(), jaxpr)


def for_its_records(jaxpr: Any) -> Any:
    """A program with its marks that calls nobody: neither for a transformation inside it, nor for its author. JAX would not run
    it at all."""
    if all(isinstance(effect, LogEffect) for effect in jaxpr.effects):
        return jaxpr
    with marking(True):
        return _evaluated(_CallSilencer(), jaxpr)


def _evaluated(silencer: Collector, jaxpr: Any) -> Any:
    def evaluate(*args: Array) -> list[Array]:
        return silencer.run(jaxpr, args, Frame(Context({})))

    return jax.make_jaxpr(evaluate)(*jaxpr.in_avals)


class _HostCallSilencer(Collector):
    """Drops every host call whose result is not used."""

    also = frozenset([deliver_p.name, number_p.name, say_p.name])

    def __init__(self, survey: type[Survey] = Survey) -> None:
        super().__init__(survey(lambda mark, key: False, also=self.also), keep=False)

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Any:
        if eqn.primitive is say_p:
            return []
        if eqn.primitive is number_p:
            return [np.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars]
        if eqn.primitive is not deliver_p:
            return super()._step(eqn, invals, frame)
        return invals[: len(eqn.outvars)] if once.passes_on(eqn) else compat.bind_eqn(eqn, invals)


class _CallSilencer(_HostCallSilencer):
    """Drops the callbacks of JAX too, if nothing needs what they return."""

    callbacks = frozenset(["debug_callback", "debug_print", "io_callback"])
    also = _HostCallSilencer.also | callbacks

    def __init__(self) -> None:
        super().__init__()
        self._used: set[int] = set()  # ids of variables

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        body, _ = compat.open_jaxpr(jaxpr)
        self._used.update(id(atom) for atoms in (body.outvars, *(eqn.invars for eqn in body.eqns)) for atom in atoms)
        return super().run(jaxpr, args, frame)

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Any:
        if eqn.primitive.name not in self.callbacks:
            return super()._step(eqn, invals, frame)
        is_needed = any(id(var) in self._used for var in eqn.outvars)
        return compat.bind_eqn(eqn, invals) if is_needed else [None] * len(eqn.outvars)


class _RepetitionSilencer(_HostCallSilencer):
    """Drops every mark too."""

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        del eqn, invals, frame

    def rule_context(self) -> Any:
        return marking(None)

    backward_context = rule_context


class _ForwardSilencer(_RepetitionSilencer):
    rule_context = Collector.rule_context
    backward_context = Collector.backward_context

    def __init__(self) -> None:
        super().__init__(_SurveyOfRules)


class _SurveyOfRules(Survey):
    """Sees marks that only the derivative rule of a function has."""

    def concerns(self, eqn: Any) -> bool:
        return super().concerns(eqn) or marked_rules.rule_has_marks(eqn)
