"""``cond``, ``switch`` and ``platform_dependent``: all branches return the same rows, or put their rows into the stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lox._interpret import answers
from lox._interpret.collect import Collector, Frame
from lox._interpret.survey import Survey, Usages, in_branches
from lox._jax import sharding
from lox._storage.rows import Rows
from lox._types import Array

# The platforms of each branch; None for the default, which comes last.
Platforms = tuple[tuple[str, ...] | None, ...]


def cond_usages(eqn: Any, survey: Survey) -> Usages:
    platforms = eqn.params.get("branches_platforms")
    return in_branches([survey(branch).usages for branch in eqn.params["branches"]], _describe(platforms))


def _describe(platforms: Platforms | None) -> list[str] | None:
    """The branches of a ``platform_dependent``, in words."""
    if platforms is None:
        return None
    return [f"the branch for {'other platforms' if names is None else ' and '.join(names)}" for names in platforms]


def run_cond(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    index, *operands = invals
    branches, platforms = eqn.params["branches"], eqn.params.get("branches_platforms")
    numbers = frozenset[int]().union(*(collector.stores_in(branch, folds=True) for branch in branches))
    collector.settle(frame, numbers)
    alone = answers.answer(frame, eqn.invars[0], index)
    # Varied inside a branch, JAX could not batch the branch: it varies all that goes in.
    before = sharding.vary_like(frame.alive, alone) if isinstance(frame.alive, jax.Array) else frame.alive
    shapes: list[Rows] = []
    looped = {key for key, usage in cond_usages(eqn, collector.survey).items() if usage.looped}

    def make(i: int) -> Callable[..., Any]:
        def branch(state: Any, *args: Array) -> Any:
            # All lanes are on one platform.
            follows = collector.tracks_lanes and platforms is None
            alive = before & (alone == i) if follows else frame.alive
            inner = Frame(frame.context(numbers, state=state, alive=alive))
            with collector.in_branch(inner, branches, i):
                outs = collector.body(branches[i], list(args), inner)
            if alone is not index:
                inner.state = answers.select_state(alone == i, inner.state, state)
            rows = inner.rows.stack(looped).flat()
            shapes.append(rows)
            # Plain lists, because the branches must agree in structure even if their keys share steps differently.
            return outs, inner.state, {key: rows[key][0].arrays() for key in sorted(rows)}

        return branch

    made, state = [make(i) for i in range(len(branches))], frame.context(numbers).state
    if platforms is None:
        outs, state, arrays = jax.lax.switch(index, made, state, *operands)
    else:
        outs, state, arrays = _on_platforms(platforms, made, state, *operands)
    frame.state.update(state)
    frame.rows.extend(Rows({key: (chunk.replace(arrays[key], chunk.lengths),) for key, (chunk,) in shapes[0].items()}))
    return outs


def _on_platforms(platforms: Platforms, branches: list[Callable[..., Any]], *operands: Any) -> Any:
    by_name = {name: branch for names, branch in zip(platforms, branches, strict=True) for name in names or ()}
    default = branches[-1] if platforms[-1] is None else None
    return jax.lax.platform_dependent(*operands, default=default, **by_name)
