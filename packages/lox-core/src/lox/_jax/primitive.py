"""The class of lox's own primitives that have an effect."""

from __future__ import annotations

from typing import Any

from lox._jax import backports, compat, once


class EffectfulPrimitive(compat.Primitive):  # type: ignore[misc]
    """A primitive that runs once under differentiation. The first one that is bound installs what lox changes in JAX."""

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        once.run_once(self)

    def bind(self, *args: Any, **params: Any) -> Any:
        backports.install()
        return super().bind(*args, **params)  # type: ignore[no-untyped-call]
