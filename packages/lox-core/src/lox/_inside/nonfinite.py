"""``lox.find_nonfinite``: where the first nan or inf of a program arises.

A verdict is carried through the program as a store. Operations are checked in runs: the operations between two calls,
loops or branches. At the end of a run, one flag tells whether any of its results is not finite (``propagation``). The first
time it is raised, a branch that is otherwise not taken looks at the results of each operation. Nothing is computed twice:
the branch gets the values.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._calls import explain_options
from lox._inside import propagation
from lox._inside.explorer import CountingExplorer, Visit, check_traceable
from lox._inside.propagation import is_float
from lox._inside.regions import Node, Region, is_function
from lox._inside.report import OPERANDS, Report, Site, Sites
from lox._interpret import program
from lox._interpret.collect import Frame
from lox._interpret.rules import shard_map
from lox._jax import compat, hi_primitives, sharding
from lox._marks.primitives import detach

P = ParamSpec("P")
R = TypeVar("R")
Array = Any
Verdict = dict[str, Array]

# The number of the store. Counters have numbers from 0.
VERDICT = -1


@explain_options({})
def find_nonfinite(fun: Callable[P, R], ignore_masked: bool = False) -> Callable[P, tuple[R, Report]]:
    """Transform ``fun`` into a function that returns ``(out, report)``.

    The report says whether a nan or inf arose. For the first one, it has the operation that made it from finite operands: its
    source line, scope and pass, the iterations of the surrounding loops, and the ranges of its operands. A nan made from an
    inf, as in ``inf - inf``, counts too. ``fun`` runs once, compiled. ``vmap(find_nonfinite(f))`` returns a report for each
    lane. ``find_nonfinite(grad(f))`` checks both passes, ``grad(find_nonfinite(f), has_aux=True)`` only the forward pass.

    Args:
      fun: the function, jitted or not.
      ignore_masked: ignore a nan or inf that does not leave the body of its loop, branch or function, as in ``where(x > 0,
        log(x), 0.0)``, or that reaches no output.

    >>> def f(x):
    ...     return jnp.log(x - 1.0).sum()
    >>> y, report = lox.find_nonfinite(f)(jnp.array([2.0, 1.0]))
    >>> report.primitive, report.backward, report.operands
    ('log', False, ((0.0, 1.0),))
    """
    check_traceable(fun, "lox.find_nonfinite")
    return program.transform(
        fun,
        ("find_nonfinite", bool(ignore_masked)),
        functools.partial(_interpreter, bool(ignore_masked)),
        lambda out, report: (out, report),
        context=contextlib.nullcontext,  # marks are left to the transformations outside
        compiled=True,
        results=lambda out: (out, None),
    )


def _interpreter(ignore_masked: bool, traced: program.Traced) -> Callable[[list[Array], list[Array]], Any]:
    sites = Sites()
    watcher = Watcher(traced, sites, ignore_masked)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        del operands
        outs, frame = watcher.explore(traced.jaxpr, arrays, {VERDICT: watcher.nothing()})
        return outs, Report(**frame.state[VERDICT], sites=sites)

    return interpret


class _Evaluated(NamedTuple):
    eqn: Any
    invals: list[Array]
    outs: Sequence[Array]


class WatchVisit(Visit):
    """What was evaluated since the last look.

    Attributes:
      before: the verdict when the region was entered.
      infinite: variables that hold an inf on purpose.
    """

    def __init__(self, region: Region, before: Verdict) -> None:
        super().__init__(region)
        self.before = before
        self.run: list[_Evaluated] = []
        self.infinite: set[Any] = set()
        self.refs: dict[Any, Array] = {}  # mutable arrays that the body was given, and uses
        self._given = {var for var in region.body.invars if compat.is_ref_type(var.aval)}

    def given_refs(self, eqn: Any, invals: list[Array]) -> dict[Any, Array]:
        if not self._given:
            return {}
        operands = zip(eqn.invars, invals, strict=True)
        return {atom: value for atom, value in operands if not isinstance(atom, compat.Literal) and atom in self._given}


class Watcher(CountingExplorer):
    """Checks the results of every operation."""

    carried = frozenset([VERDICT])

    def __init__(self, traced: program.Traced, sites: Sites, ignore_masked: bool) -> None:
        super().__init__(traced)
        self._sites = sites
        self._ignore_masked = ignore_masked
        self._computes: dict[Node, bool] = {}
        self._infinite: dict[Node, list[bool]] = {}  # which operands hold an inf on purpose
        self._depth = max(map(_depth, self.root.regions()))

    def nothing(self) -> Verdict:
        """The verdict at the start."""
        verdict = {
            "found": jnp.bool_(False),
            "nan": jnp.bool_(False),
            "site": jnp.int32(0),
            "line": jnp.int32(0),
            "counters": jnp.zeros(self._depth, jnp.int32),
            "low": jnp.zeros(OPERANDS, jnp.float32),
            "high": jnp.zeros(OPERANDS, jnp.float32),
            "device": jnp.int32(-1),
        }
        around = sharding.manual_axes_here()
        return {name: sharding.vary_over(value, around) for name, value in verdict.items()} if around else verdict

    def enters(self, node: Node) -> bool:
        if node not in self._computes:
            self._computes[node] = any(map(self._has_floats, node.regions()))
        return self._computes[node]

    def _has_floats(self, region: Region) -> bool:
        return any(
            self.enters(region.nodes[id(eqn)])
            if id(eqn) in region.nodes
            else any(is_float(var.aval) for var in eqn.outvars)
            for eqn in region.body.eqns
        )

    def start(self, region: Region, frame: Frame) -> WatchVisit:
        visit = WatchVisit(region, frame.state[VERDICT])
        node = frame.place
        if is_function(node.eqn) and any(region is body for body in node.regions()):
            given = zip(region.body.invars, self._infinite[node], strict=True)
            visit.infinite = {var for var, infinite in given if infinite}
        return visit

    def entering(self, visit: WatchVisit, node: Node, frame: Frame) -> None:
        self._look(visit, frame)
        self._infinite[node] = [propagation.is_infinite(atom, visit.infinite) for atom in node.eqn.invars]

    def evaluated(self, visit: WatchVisit, eqn: Any, invals: list[Array], outs: Sequence[Array], frame: Frame) -> None:
        del frame
        visit.refs.update(visit.given_refs(eqn, invals))
        node = visit.region.nodes.get(id(eqn))
        if node is None or not self.enters(node):
            visit.run.append(_Evaluated(eqn, invals, outs))

    def finish(self, visit: WatchVisit, outs: list[Array], frame: Frame) -> None:
        self._look(visit, frame)
        if self._ignore_masked:
            left = [*outs, *(ref[...] for ref in visit.refs.values())]  # what leaves the body
            bad = _any([_is_bad(value) for value in left if is_float(jax.typeof(value))])
            frame.state[VERDICT] = _choose(bad, frame.state[VERDICT], visit.before)

    def take_apart(self, node: Node, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        if eqn.primitive.name != "shard_map":
            return super().take_apart(node, eqn, invals, frame)
        # Each device has its own verdict. Afterwards, the first device that found something decides for all.
        sizes, before = shard_map.mesh_sizes(eqn), frame.state[VERDICT]
        frame.state[VERDICT] = {name: jnp.broadcast_to(v, sizes + v.shape) for name, v in before.items()}
        outs = super().take_apart(node, eqn, invals, frame)
        each = {name: v.reshape(-1, *before[name].shape) for name, v in frame.state[VERDICT].items()}
        first = jnp.argmax(each["found"]).astype(jnp.int32)
        verdict = {name: v[first] for name, v in each.items()}
        arose = verdict["found"] & ~before["found"]
        frame.state[VERDICT] = {**verdict, "device": jnp.where(arose, first, before["device"])}
        return outs

    # --- a run of operations -------------------------------------------------------------------------------------

    def _look(self, visit: WatchVisit, frame: Frame) -> None:
        run = [one for one in visit.run if any(is_float(var.aval) for var in one.eqn.outvars)]
        visit.run = []
        if not run:
            return
        verdict = frame.state[VERDICT]
        suspicious = self._flag(visit, run)
        values = _Values(run)
        arrays = detach(values.arrays)

        def look(verdict: Verdict) -> Verdict:
            found = self._first(visit.region, run, values.table(arrays), frame.env)
            found["device"] = verdict["device"]
            return _choose(found["found"], found, verdict)

        frame.state[VERDICT] = jax.lax.cond(suspicious & ~verdict["found"], look, lambda verdict: verdict, verdict)

    def _flag(self, visit: WatchVisit, run: list[_Evaluated]) -> Array:
        eqns = [one.eqn for one in run]
        visit.infinite = propagation.infinite_on_purpose(eqns, visit.infinite)
        computed = {var: out for one in run for var, out in zip(one.eqn.outvars, one.outs, strict=True)}
        checked = propagation.to_check(eqns, visit.infinite)
        flags = [
            _has_nan(out) if var in visit.infinite else _is_bad(out) for var, out in computed.items() if var in checked
        ]
        return _any(flags)

    def _first(self, region: Region, run: list[_Evaluated], values: Any, counters: Sequence[Array]) -> Verdict:
        """The verdict on a run in which something is not finite; nothing is found if that came in from outside."""
        low, high, ins, outs = values
        bad, nan = ~(jnp.isfinite(low) & jnp.isfinite(high)), jnp.isnan(low) | jnp.isnan(high)
        made_bad = bad[outs].any(1) & ~bad[ins].any(1)
        made_nan = nan[outs].any(1) & ~nan[ins].any(1)
        made = made_bad | made_nan
        first = jnp.argmax(made)
        numbers = np.array([self._number(region, one.eqn) for one in run], np.int32)
        lines = np.array([self._sites[number].line.line for number in numbers], np.int32)
        here = list(counters)[: self._depth]
        operands = jnp.asarray(ins)[first, :OPERANDS]
        return {
            "found": made.any(),
            "nan": nan[outs].any(1)[first],
            "site": jnp.asarray(numbers)[first],
            "line": jnp.asarray(lines)[first],
            "counters": jnp.zeros(self._depth, jnp.int32).at[: len(here)].set(jnp.array(here, jnp.int32)),
            "low": low[operands],
            "high": high[operands],
        }

    def _number(self, region: Region, eqn: Any) -> int:
        place = region.place_of(eqn)
        site = Site(
            hi_primitives.name_of(eqn),
            region.line_of(eqn),
            "/".join(place.path),
            place.backward,
            region.loops,
            min(sum(is_float(atom.aval) for atom in eqn.invars), OPERANDS),
            any(compat.all_jaxprs_in_params(eqn.params)),
        )
        return self._sites.number((region, id(eqn)), site)


class _Values:
    """The floats of a run of operations, each once, and which of them are operands and results of each operation."""

    def __init__(self, run: list[_Evaluated]) -> None:
        self.arrays: list[Array] = []
        self._places: dict[int, int] = {}
        ins = [
            [self._place(v) for v, atom in zip(one.invals, one.eqn.invars, strict=True) if is_float(atom.aval)]
            for one in run
        ]
        outs = [
            [self._place(v) for v, var in zip(one.outs, one.eqn.outvars, strict=True) if is_float(var.aval)]
            for one in run
        ]
        self.ins, self.outs = _table(ins, len(self.arrays), OPERANDS), _table(outs, len(self.arrays), 1)

    def _place(self, value: Array) -> int:
        if id(value) not in self._places:
            self._places[id(value)] = len(self.arrays)
            self.arrays.append(value)
        return self._places[id(value)]

    def table(self, arrays: Sequence[Array]) -> Any:
        """Ranges of all values, and the rows of each operation."""
        lows, highs = zip(*map(_range, arrays), strict=True)
        filler = np.zeros(1, np.float32)
        return lax.concatenate([*lows, filler], 0), lax.concatenate([*highs, filler], 0), self.ins, self.outs


def _table(rows: list[list[int]], filler: int, width: int) -> np.ndarray:
    width = max([width, *map(len, rows)])
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows], np.int32).reshape(len(rows), width)


# These are traced for each value of a program, so they use single operations: functions of jax.numpy are calls of jitted
# functions, which take several times as long to trace.


def _range(value: Array) -> tuple[Array, Array]:
    """The smallest and the largest element, as rows of length 1; both are nan if an element is."""
    parts = _parts(value)
    if not parts[0].size:
        return np.zeros(1, np.float32), np.zeros(1, np.float32)
    everywhere = tuple(range(parts[0].ndim))
    low = functools.reduce(lax.min, [lax.reduce_min(part, everywhere) for part in parts])
    high = functools.reduce(lax.max, [lax.reduce_max(part, everywhere) for part in parts])
    return _row(low), _row(high)


def _row(value: Array) -> Array:
    limit = np.finfo(np.float32).max
    if jnp.finfo(value.dtype).max > limit:  # a finite float64 stays finite
        with compat.mode_for([value.dtype]):
            clipped = lax.clamp(np.asarray(-limit, value.dtype), value, np.asarray(limit, value.dtype))
            value = lax.select(lax.is_finite(value), clipped, value)
    return lax.broadcast_in_dim(lax.convert_element_type(value, np.float32), (1,), ())


def _parts(value: Array) -> list[Array]:
    """A float as it is; the two parts of a complex number."""
    x = value if isinstance(value, jax.Array) else jnp.asarray(value)
    return [lax.real(x), lax.imag(x)] if jnp.issubdtype(x.dtype, jnp.complexfloating) else [x]


def _is_bad(value: Array) -> Array:
    parts = _parts(value)
    everywhere = tuple(range(parts[0].ndim))
    finite = [lax.reduce_and(lax.is_finite(part), everywhere) for part in parts]
    return lax.bitwise_not(functools.reduce(lax.bitwise_and, finite))


def _has_nan(value: Array) -> Array:
    parts = _parts(value)
    everywhere = tuple(range(parts[0].ndim))
    return _any([lax.reduce_or(lax.ne(part, part), everywhere) for part in parts])


def _any(flags: list[Array]) -> Array:
    return functools.reduce(lax.bitwise_or, flags) if flags else jnp.bool_(False)


def _choose(condition: Array, new: Verdict, old: Verdict) -> Verdict:
    def one(a: Array, b: Array) -> Array:
        return sharding.vary_like(jnp.where(condition, a, b), b)

    return {name: one(new[name], old[name]) for name in old}


def _depth(region: Region) -> int:
    inner = [_depth(below) for node in region.nodes.values() for below in node.regions()]
    return max([len(region.loops), *inner])
