"""What lox changes in JAX, why, and until when.

``import lox`` changes nothing. The first mark or host call that is bound installs the table below, all of it or nothing.
Each place is looked up by name, and there is an error if one is gone. Every replacement leaves programs without marks to
the rule of JAX that it replaces.

``docs/seam.md`` has the table with the JAX issue behind each line, until when it is needed, and what fails without it.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from lox._errors import IncompatibleJaxError
from lox._jax import checkpointed_rules, checkpointed_scan, compat, hi_primitives, partial_eval

# --- the places ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Attribute:
    """``module.name``, where the name may be that of a method: ``Class.method``."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def find(self) -> Any:
        owner, name = self._owner()
        return vars(owner)[name]  # without what a class inherits

    def replace(self, value: Any) -> None:
        owner, name = self._owner()
        setattr(owner, name, value)

    def _owner(self) -> tuple[Any, str]:
        owner, (*path, name) = importlib.import_module(self.module), self.name.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, name


@dataclasses.dataclass(frozen=True)
class TableEntry:
    """The rule of a primitive in a table of JAX."""

    table: Attribute
    primitive: Attribute

    def __str__(self) -> str:
        return f"{self.table}[{self.primitive}]"

    def find(self) -> Any:
        return self.table.find()[self.primitive.find()]

    def replace(self, value: Any) -> None:
        self.table.find()[self.primitive.find()] = value


@dataclasses.dataclass(frozen=True)
class Backport:
    """One replacement: ``wrap(original)`` takes the place of what is at ``place``.

    Attributes:
      name: what it is called in the docs and by ``scripts/ablation.py``.
      reason: what JAX does there that would lose or repeat marks.
      since: the first JAX that needs it.
      until: the first JAX that no longer needs it; None if none is known.
    """

    name: str
    place: Attribute | TableEntry
    wrap: Callable[[Any], Any]
    reason: str
    since: tuple[int, ...] = ()
    until: tuple[int, ...] | None = None

    def is_needed(self) -> bool:
        return self.since <= jax.__version_info__ and (self.until is None or jax.__version_info__ < self.until)


def _holds_ours(params: dict[str, Any]) -> bool:
    return compat.holds_effect(params, tuple(compat.our_effects))


# --- scan: hoisting --------------------------------------------------------------------------------------------------


def _hoist_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    def hoist(jaxpr: Any, consts: Any, num_residuals: int, *rest: Any) -> Any:
        if any(map(compat.is_our_effect, jaxpr.effects)):
            return jaxpr, consts, [False] * num_residuals, []
        return original(jaxpr, consts, num_residuals, *rest)

    return hoist


def _hoist_nothing_in_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        take_apart = checkpointed_scan.take_apart if _holds_ours(eqn.params) else original
        return take_apart(saveable, unknown, instantiated, eqn)

    return rule


# --- while: the known part runs, and the whole loop is staged for the rest -------------------------------------------


def _run_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _holds_ours(params):
            return original(trace, *tracers, **params)
        if not _marks_are_known(tracers, params):
            tracers = tuple(map(trace.instantiate_const, tracers))
        handles = list(trace.effect_handles)
        outs = original(trace, *tracers, **params)
        _forget_repetition(trace, handles, outs)
        return outs

    return rule


def _marks_are_known(tracers: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the known part of a while loop has all of its marks."""
    unknown = [not tracer.is_known() for tracer in tracers]
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    consts, carry = unknown[num_cond:][:num_body], unknown[num_cond + num_body :]
    while True:
        staged, carry_out = partial_eval.staged_part(params["body_jaxpr"], consts + carry, carry)
        if carry_out == carry:
            break
        carry = [a or b for a, b in zip(carry, carry_out, strict=True)]
    staged_cond, _ = partial_eval.staged_part(params["cond_jaxpr"], unknown[:num_cond] + carry)
    return not any(map(compat.is_our_effect, {*staged.effects, *staged_cond.effects}))


def _forget_repetition(trace: Any, handles: list[Any], outs: Sequence[Any]) -> None:
    """A loop was run for its known results and staged for the others: take the marks out of the staged one."""
    unknown = [out for out in outs if partial_eval.is_staged(out)]
    if len(unknown) == len(outs):
        return
    trace.effect_handles[:] = handles
    if not unknown:  # it was staged only for its effect
        return
    eqn = unknown[0].recipe
    silent = eqn._replace(params=_silent(eqn.params), effects=_others(eqn.effects))  # a recipe, not an equation
    for out in unknown:
        out.recipe = silent


def _run_once_in_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is computed again for the backward pass has no marks."""

    def rule(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, staged, *rest = original(saveable, unknown, instantiated, eqn)
        if known is not None and _holds_ours(eqn.params):
            staged = staged.replace(params=_silent(staged.params), effects=_others(staged.effects))
        return known, staged, *rest

    return rule


def _others(effects: Any) -> Any:
    return frozenset(effect for effect in effects if not compat.is_our_effect(effect))


def _silent(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a while loop, without its marks."""
    return {name: _without_marks(value) if hasattr(value, "eqns") else value for name, value in params.items()}


def _without_marks(jaxpr: Any) -> Any:
    """The same jaxpr, evaluated without marks and traced again. Nothing is edited."""
    from lox._interpret.silent import without_marks  # it stands above this folder

    return without_marks(jaxpr)


# --- jax.checkpoint with jax_remat3 ------------------------------------------------------------------------------------


def _compute_again_in_silence(original: Callable[..., Any]) -> Callable[..., Any]:
    def compute_again(jaxpr: Any, *args: Any) -> Any:
        return original(_without_marks(jaxpr) if any(map(compat.is_our_effect, jaxpr.effects)) else jaxpr, *args)

    return compute_again


# --- host calls in branches and loops, under vmap --------------------------------------------------------------------


def _ask_lanes(primitive: Attribute) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        from lox._interpret.gate import gated  # it stands above this folder

        return gated(primitive.find(), original)

    return wrap


# --- the table -------------------------------------------------------------------------------------------------------

_PE = "jax._src.interpreters.partial_eval"
_LOOPS = "jax._src.lax.control_flow.loops"
_AD_CHECKPOINT = "jax._src.ad_checkpoint"
_SCAN, _WHILE, _COND = (Attribute("jax.lax", f"{name}_p") for name in ("scan", "while", "cond"))
_PARTIAL_EVAL = Attribute(_PE, "custom_partial_eval_rules")
_CHECKPOINT = Attribute(_PE, "partial_eval_jaxpr_custom_rules")
_BATCHING = Attribute("jax._src.interpreters.batching", "fancy_primitive_batchers")

BACKPORTS = (
    Backport(
        "scan",
        Attribute(_LOOPS, "_scan_known_hoisting"),
        _hoist_nothing,
        "Differentiating a scan moves what is the same in every iteration out of the loop: a mark would run once, not n times.",
    ),
    Backport(
        "scan in checkpoint",
        TableEntry(_CHECKPOINT, _SCAN),
        _hoist_nothing_in_checkpoint,
        "The rule for scans in jax.checkpoint hoists in code of its own.",
    ),
    Backport(
        "while",
        TableEntry(_PARTIAL_EVAL, _WHILE),
        _run_once,
        "For its derivative, a while loop is run for what is known, and run whole once more for the rest, with its marks.",
    ),
    Backport(
        "while in checkpoint",
        TableEntry(_CHECKPOINT, _WHILE),
        _run_once_in_checkpoint,
        "In jax.checkpoint a while loop is computed again for the backward pass, with its marks.",
    ),
    Backport(
        "checkpoint",
        Attribute(_AD_CHECKPOINT, "_dced"),
        _compute_again_in_silence,
        "With jax_remat3, what is computed again for the backward pass has its marks again.",
        since=(0, 11),
    ),
    Backport(
        "rules in checkpoint",
        Attribute(_AD_CHECKPOINT, "RematTraced.vjp_fwd"),
        checkpointed_rules.record_beside,
        "With jax_remat3, derivative rules run only in what is computed again: marks that only a rule has would be lost.",
        since=(0, 11),
    ),
    Backport(
        "rules in linearized checkpoint",
        Attribute(_AD_CHECKPOINT, "RematTraced.lin"),
        checkpointed_rules.save_everything,
        "The same for jax.linearize.",
        since=(0, 11),
    ),
    Backport(
        "lanes of cond",
        TableEntry(_BATCHING, _COND),
        _ask_lanes(_COND),
        "vmap runs both branches for all lanes: a host call must know which lanes took the branch.",
    ),
    Backport(
        "lanes of while",
        TableEntry(_BATCHING, _WHILE),
        _ask_lanes(_WHILE),
        "vmap runs a loop until the last lane is done: a host call must know which lanes are still in it.",
    ),
    Backport(
        "lanes of scan",
        TableEntry(_BATCHING, _SCAN),
        _ask_lanes(_SCAN),
        "A scan can ask all lanes whether any of them still wants an iteration (bounded loops of equinox): a host call must "
        "know which.",
    ),
)


# --- installing ------------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_installed = False


def install() -> None:
    """Make the changes in the table, once in a process."""
    global _installed
    if _installed:
        return
    with _lock:
        if not _installed:
            compat.register_effects()
            replacements = [(port.place, port.wrap(_find(port))) for port in BACKPORTS if port.is_needed()]
            for place, replacement in replacements:
                place.replace(replacement)
            _installed = True


def install_early() -> None:
    """Before a function is traced with its marks. With ``jax_remat3``, the first mark of a process can be in a derivative
    rule in a checkpoint that was entered before."""
    if hi_primitives.checkpoints_are_objects():
        install()


def _find(port: Backport) -> Any:
    try:
        return port.place.find()
    except (ImportError, AttributeError, KeyError) as error:
        raise IncompatibleJaxError(
            f"lox: JAX {jax.__version__} has no {port.place}, which lox needs so that no lox.log call is lost or repeated "
            f"under differentiation and vmap; lox was tested with JAX {', '.join(compat.TESTED_JAX)}: install one of "
            "these, or upgrade lox"
        ) from error
