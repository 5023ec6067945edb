"""A snapshot of JAX: every function, every method, every table of rules and every set of effects in its modules."""

from __future__ import annotations

import sys
import types
from typing import Any

import jax
import jax.export
import jax.extend
import jax.numpy as jnp


def load_all() -> None:
    """Let JAX import what it imports late, so that none of it is taken for a change."""
    jax.grad(jax.checkpoint(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0]))(1.0)
    jax.vmap(jax.jit(lambda x: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)))(jnp.zeros(2))


def modules() -> list[str]:
    """The modules of JAX that are loaded."""
    return sorted(name for name in sys.modules if name == "jax" or name.startswith("jax."))


def snapshot(names: list[str] | None = None) -> dict[str, Any]:
    """``place -> what is there``, in these modules; by default, in all that are loaded."""
    found: dict[str, Any] = {}
    for name in modules() if names is None else names:
        module = sys.modules[name]
        if module is not None:
            for attribute, value in list(vars(module).items()):
                found.update(_entries(f"{name}.{attribute}", value))
    return found


def _entries(place: str, value: Any) -> dict[str, Any]:
    if isinstance(value, types.ModuleType):
        return {}
    if isinstance(value, type) and value.__module__.startswith("jax."):
        methods = {name: part for name, part in vars(value).items() if callable(part)}
        return {place: value, **{f"{place}.{name}": part for name, part in methods.items()}}
    if isinstance(value, dict):
        return _rules(place, value)
    if type(value).__name__ == "EffectTypeSet":
        return {f"{place}: {kind.__module__}.{kind.__name__}": True for kind in value._effect_types}
    return {place: value} if callable(value) else {}


def _rules(place: str, table: dict[Any, Any]) -> dict[str, Any]:
    """A table of rules, by primitive, or one such table for each platform."""
    found: dict[str, Any] = {}
    for key, rule in list(table.items()):
        if isinstance(key, jax.extend.core.Primitive):
            found[f"{place}[{key}]"] = rule
        elif isinstance(rule, dict):
            found.update(_rules(f"{place}[{key}]", rule))
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The places that are new, gone, and changed."""
    changed = [place for place in before.keys() & after.keys() if before[place] is not after[place]]
    return sorted(after.keys() - before.keys()), sorted(before.keys() - after.keys()), sorted(changed)
