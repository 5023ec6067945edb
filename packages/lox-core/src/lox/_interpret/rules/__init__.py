"""The rule for each primitive that can hold marks, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lox._interpret.rules import branches, calls, derivatives, hi_primitives, lanes, loops, shard_map, solvers
from lox._interpret.table import RULES, Folding, Transparent
from lox._jax import hi_primitives as hi


def _param(name: str) -> Callable[[Any], Any]:
    return lambda eqn: eqn.params[name]


RULES.update(
    {
        "jit": Transparent(_param("jaxpr"), calls.run_jit),
        "closed_call": Transparent(_param("call_jaxpr"), calls.run_inline(_param("call_jaxpr"))),
        "core_call": Transparent(_param("call_jaxpr"), calls.run_inline(_param("call_jaxpr"))),
        "core_closed_call": Transparent(_param("call_jaxpr"), calls.run_inline(_param("call_jaxpr"))),
        "eval_jaxpr": Transparent(_param("call_jaxpr"), calls.run_inline(_param("call_jaxpr"))),
        "remat_opt": Transparent(_param("fwd_jaxpr"), calls.run_inline(_param("fwd_jaxpr"))),
        "remat2": Transparent(_param("jaxpr"), calls.run_checkpoint),
        "checkpoint": Transparent(_param("jaxpr"), calls.run_checkpoint),
        "custom_jvp_call": Transparent(_param("call_jaxpr"), derivatives.run_custom_jvp),
        "custom_vjp_call": Transparent(_param("call_jaxpr"), derivatives.run_custom_vjp),
        "custom_vmap_call": Transparent(_param("call"), lanes.run_custom_vmap),
        "scan": Folding(loops.scan_usages, loops.run_scan),
        "while": Folding(loops.while_usages, loops.run_while),
        "cond": Folding(branches.cond_usages, branches.run_cond),
        "custom_linear_solve": Transparent(solvers.linear_solve_jaxpr, solvers.run_linear_solve),
        "CustomRoot": Transparent(solvers.custom_root_jaxpr, solvers.run_custom_root),
        "_RootLinearMap": Transparent(solvers.linear_map_jaxpr, calls.run_inline(solvers.linear_map_jaxpr)),
        "shard_map": Folding(shard_map.usages, shard_map.run),
    }
)

if hi.ARE_SETTLED:
    RULES.update(
        {
            "RematTraced": Transparent(hi_primitives.checkpoint_jaxpr, hi_primitives.run_checkpoint),
            "CustomJVPTraced": Transparent(hi_primitives.primal_jaxpr, hi_primitives.run_custom_jvp),
            "CustomVJPTraced": Transparent(hi_primitives.primal_jaxpr, hi_primitives.run_custom_vjp),
            "Scan3": Folding(loops.scan_usages, loops.run_scan),
        }
    )
