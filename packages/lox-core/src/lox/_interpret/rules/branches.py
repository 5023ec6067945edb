"""``cond`` and ``switch``: every branch returns the same rows, or puts its own into the stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from lox._interpret.collect import Collector, Frame
from lox._interpret.survey import Survey, Usages, in_branches
from lox._storage.rows import Rows

Array = Any


def cond_usages(eqn: Any, survey: Survey) -> Usages:
    return in_branches([survey(branch).usages for branch in eqn.params["branches"]])


def run_cond(collector: Collector, frame: Frame, eqn: Any, invals: list[Array]) -> list[Array]:
    index, *operands = invals
    branches = eqn.params["branches"]
    numbers = frozenset[int]().union(*(collector.stores_in(branch, folds=True) for branch in branches))
    collector.settle(frame, numbers)
    shapes: list[Rows] = []
    looped = {key for key, usage in cond_usages(eqn, collector.survey).items() if usage.looped}

    def make(i: int) -> Callable[..., Any]:
        def branch(state: Any, *args: Array) -> Any:
            alive = frame.alive & (index == i) if collector.tracks_lanes else frame.alive
            inner = Frame(frame.context(numbers, state=state, alive=alive))
            outs = collector.body(branches[i], list(args), inner)
            rows = inner.rows.stack(looped).flat()
            shapes.append(rows)
            # Plain lists: the branches must agree in structure, also where their keys share steps differently.
            return outs, inner.state, {key: rows[key][0].arrays() for key in sorted(rows)}

        return branch

    outs, state, arrays = jax.lax.switch(
        index, [make(i) for i in range(len(branches))], frame.context(numbers).state, *operands
    )
    frame.state.update(state)
    frame.rows.extend(Rows({key: (chunk.replace(arrays[key], chunk.lengths),) for key, (chunk,) in shapes[0].items()}))
    return outs
