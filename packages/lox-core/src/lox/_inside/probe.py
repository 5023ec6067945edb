"""``lox.probe``: marks that are added by pattern."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax

from lox._calls import explain_options
from lox._inside.candidates import PRIMITIVE, Candidate, Candidates, keys_of_marks
from lox._inside.explorer import CountingExplorer, Visit, check_traceable
from lox._inside.findings import Finding, Findings
from lox._inside.patterns import Patterns
from lox._inside.regions import Node, Region
from lox._inside.summary import can_be_summarised, summarise
from lox._interpret import program
from lox._interpret.collect import Frame
from lox._marks.mark import Mark, Record, marks_are_wanted
from lox._marks.primitives import bind_record

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Array = Any
Wanted = str | Iterable[str] | bool | None


class Probed(Protocol[P, R_co]):
    """A function that also has marks."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def found(self, *args: P.args, **kwargs: P.kwargs) -> Findings:
        """What the patterns match when the function is called with these arguments. Without any pattern, everything that
        could be asked for, except single primitives. The function is traced, not run."""


@dataclasses.dataclass(frozen=True)
class ProbeOptions:
    patterns: Patterns
    prefix: str
    explicit: bool
    summary: bool


@explain_options({"argnames": "select by path, with names=, functions=, scopes= or primitives=."})
def probe(
    fun: Callable[P, R],
    names: Wanted = None,
    functions: Wanted = None,
    scopes: Wanted = None,
    primitives: Wanted = None,
    loops: Wanted = False,
    prefix: str = "",
    explicit: bool = False,
    summary: bool = False,
) -> Probed[P, R]:
    """Transform ``fun`` into the same function with added marks, chosen by pattern.

    ``lox.spool``, ``lox.tap`` and loggers treat them like those of ``lox.log``. Keys are paths, such as ``scan/layer2/h``. The
    step axes ``step``, ``step_2``, ... count the iterations of the surrounding loops. Without a transformation around it, the
    result is ``fun`` itself.

    Each of the first five options takes a pattern, several patterns, or True for everything. A pattern is compared with the
    end of the path, part by part: ``"h"`` matches at any depth, ``"layer*/h"`` only directly inside something whose name
    begins with layer.

    Args:
      names: values that ``jax.ad_checkpoint.checkpoint_name`` has named.
      functions: results of jitted functions, and of functions with custom derivatives, by their name.
      scopes: what leaves a ``jax.named_scope``. Each Flax linen module is one.
      primitives: results of primitives, such as ``"dot_general"``.
      loops: a record for each iteration of a loop, with its number.
      prefix: put before every key.
      explicit: if True, the marks are recorded only when ``argnames`` or ``tags`` selects them.
      summary: record ``mean``, ``rms``, ``min``, ``max``, the share of ``zeros`` and the number of ``nonfinite`` elements
        instead of the values.

    ``lox.probe(f, ...).found(*args)`` lists what the patterns match, or, without patterns, what can be probed.

    >>> def f(xs):
    ...     def step(c, x):
    ...         with jax.named_scope("layer"):
    ...             c = jnp.tanh(c + x)
    ...         return c, None
    ...     return jax.lax.scan(step, 0.0, xs)[0]
    >>> y, logs = lox.spool(lox.probe(f, scopes="layer"))(jnp.zeros(3))
    >>> print(logs, logs.step["scan/layer"])
    {'scan/layer': [0., 0., 0.]} [0 1 2]
    """
    check_traceable(fun, "lox.probe")
    patterns = Patterns.of(names=names, functions=functions, scopes=scopes, primitives=primitives, loops=loops)
    options = ProbeOptions(patterns, prefix, bool(explicit), bool(summary))
    marked = program.transform(fun, ("probe", options), functools.partial(_interpreter, options), lambda out, _: out)

    @functools.wraps(fun)
    def probed(*args: P.args, **kwargs: P.kwargs) -> R:
        return marked(*args, **kwargs) if marks_are_wanted() else fun(*args, **kwargs)

    def found(*args: P.args, **kwargs: P.kwargs) -> Findings:
        prober = Prober(options, program.trace_call(fun, args, kwargs))
        everything = [candidate for candidate in prober.candidates.found if candidate.kind != PRIMITIVE]
        chosen = prober.chosen if patterns.any() else everything or prober.candidates.found
        return Findings([Finding.of(candidate) for candidate in chosen])

    probed.found = found  # type: ignore[attr-defined]
    return cast(Probed[P, R], probed)


def _interpreter(options: ProbeOptions, traced: program.Traced) -> Callable[[list[Array], list[Array]], Any]:
    prober = Prober(options, traced)
    options.patterns.warn(prober.candidates.found, prober.chosen)

    def interpret(operands: list[Array], arrays: list[Array]) -> Any:
        del operands
        return prober.explore(traced.jaxpr, arrays, {})[0], ()

    return interpret


class ProbeVisit(Visit):
    """Keeps results until they are marked together with others."""

    def __init__(self, region: Region) -> None:
        super().__init__(region)
        self.kept: dict[tuple[int, int], Array] = {}


class Prober(CountingExplorer):
    """Adds a mark for each candidate that was chosen."""

    def __init__(self, options: ProbeOptions, traced: program.Traced) -> None:
        super().__init__(traced)
        self.options = options
        self.candidates = Candidates(options.prefix, set(keys_of_marks(traced.jaxpr)))
        self.chosen: list[Candidate] = []
        self._marks: dict[Region, dict[int | None, list[Candidate]]] = {}
        self._wanted: dict[Region, set[tuple[int, int]]] = {}
        self._entered: dict[Node, bool] = {}
        self._seen_late: set[Region] = set()
        for region in self.root.regions():
            self._choose(region)

    def _choose(self, region: Region) -> None:
        chosen = self.options.patterns.choose(self.candidates.visit(region))
        self.chosen += chosen
        for candidate in chosen:
            self._marks.setdefault(candidate.region, {}).setdefault(candidate.at, []).append(candidate)
            self._wanted.setdefault(candidate.region, set()).update(candidate.values)

    def enters(self, node: Node) -> bool:
        if node not in self._entered:
            self._entered[node] = any(map(self._is_probed, node.regions()))
        return self._entered[node]

    def _is_probed(self, region: Region) -> bool:
        return region in self._marks or any(map(self.enters, region.nodes.values()))

    def start(self, region: Region, frame: Frame) -> ProbeVisit:
        if self._is_late(frame.place, region):
            self._choose(region)
        visit = ProbeVisit(region)
        self._mark_those(visit, None, frame)
        return visit

    def _is_late(self, node: Node, region: Region) -> bool:
        """Whether it is the body of a derivative rule, which is traced after candidates were chosen."""
        if region in self._seen_late or any(region is known for known in node.regions()):
            return False
        self._seen_late.add(region)
        return True

    def evaluated(self, visit: ProbeVisit, eqn: Any, invals: list[Array], outs: Sequence[Array], frame: Frame) -> None:
        del invals
        wanted = self._wanted.get(visit.region, ())
        if wanted:
            visit.kept.update({(id(eqn), i): out for i, out in enumerate(outs) if (id(eqn), i) in wanted})
        self._mark_those(visit, id(eqn), frame)

    def _mark_those(self, visit: ProbeVisit, at: int | None, frame: Frame) -> None:
        if not marks_are_wanted():  # a derivative rule that is run outside the transformation
            return
        counters = list(frame.env)
        for candidate in self._marks.get(visit.region, {}).get(at, ()):
            values = [visit.kept[value] for value in candidate.values] or counters[-1:]
            self._bind(candidate, values, counters)

    def _bind(self, candidate: Candidate, values: list[Array], counters: list[Array]) -> None:
        recorded = [summarise(v) if self.options.summary and can_be_summarised(v) else v for v in values]
        leaves, tree = jax.tree.flatten(recorded[0] if len(recorded) == 1 else tuple(recorded))
        axes = tuple("step" if depth == 0 else f"step_{depth + 1}" for depth in range(len(counters)))
        mark = Mark(
            site=str(candidate.line),
            keys=(candidate.key,),
            trees=(tree,),
            axes=axes,
            tags=(),
            reduce=None,
            explicit=self.options.explicit,
            masked=False,
        )
        record = Record(mark, None, dict(zip(axes, counters, strict=True)), {candidate.key: leaves})
        bind_record(record, mark.keys)
