"""The one loop over equations, shared by every transformation.

``Collector.run`` evaluates a jaxpr in the current trace, equation by equation, and never edits one. An equation without
marks is bound as it is. One with marks inside is rebuilt by its rule (``rules``) through JAX's public API, around a
Python function that evaluates the inner jaxpr with this same loop.

While a function body is evaluated, a ``Frame`` holds what its marks have left so far. The subclass decides what happens
to a mark: ``lox.spool`` collects rows and states, ``lox.tap`` calls the host.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax

from lox._interpret import answers, lanes, table
from lox._interpret.pacing import AS_A_WHOLE, Pace
from lox._interpret.survey import Survey
from lox._jax import compat
from lox._marks.mark import Record, marking, marks_are_wanted
from lox._marks.primitives import bind_record, detach, log_p, watch_p
from lox._storage.packing import NO_PACKING, Packing
from lox._storage.rows import Rows
from lox._types import Alive, Array

State = dict[int, Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Context:
    """What a function body is entered with. It is a pytree, and passes into ``jit`` and the like as an argument.

    Attributes:
      state: bounded stores by number, carried through loops and branches.
      alive: under ``vmap``, whether the lane really runs this body: it took the branches and is still in the loops.
      lanes: which lanes of the vmaps inside the transformation are still in the surrounding loops; None for all.
      env: arrays that must be available at every mark (the operands of a receiver).
      mesh: names and sizes of the mesh axes of the surrounding shard_maps.
      devices: their mesh, if its devices are known while tracing.
      certain: the keys that every device records equally often in these shard_maps; None outside them.
      later: the stores that a surrounding loop sends between its chunks.
      asks: whether a record that may not be due is sent under a condition; otherwise the host is told whether it is.
      place: where this is in the program, for collectors that have a map of it (``lox._inside``).
    """

    state: State
    alive: Alive = True
    lanes: Array | None = None
    env: Any = ()
    mesh: tuple[tuple[str, int], ...] = dataclasses.field(default=(), metadata={"static": True})
    devices: Any = dataclasses.field(default=None, metadata={"static": True})
    certain: frozenset[str] | None = dataclasses.field(default=None, metadata={"static": True})
    later: frozenset[int] = dataclasses.field(default=frozenset(), metadata={"static": True})
    asks: bool = dataclasses.field(default=True, metadata={"static": True})
    place: Any = dataclasses.field(default=None, metadata={"static": True})


class Frame:
    """A context, and what the marks of one function body have left in it so far.

    Attributes:
      rows: records that are not yet in a store.
      waiting: records that are not yet sent.
      goes_on: whether another record of the same host call follows.
      own: for variables that depend on other lanes of a ``vmap``, what a lane would have by itself (``answers``).
      nested: False in the outermost body, where gradients are stopped by the caller.
      visit: what a collector with a map keeps while it evaluates this body.
      index: in the body of a scan, the place along the scanned axis, for collectors that ask for it.
    """

    def __init__(self, context: Context, nested: bool = True) -> None:
        self.state = dict(context.state)
        self.alive, self.lanes, self.env = context.alive, context.lanes, context.env
        self.mesh, self.devices, self.certain = context.mesh, context.devices, context.certain
        self.later, self.asks, self.place = context.later, context.asks, context.place
        self.visit: Any = None
        self.index: Array | None = None
        self.rows = Rows()
        self.waiting: list[Any] = []
        self.goes_on = False
        self.own: dict[Any, Array] = {}
        self.nested = nested

    def context(self, numbers: frozenset[int], **changes: Any) -> Context:
        """What an inner body is entered with: this context, with these stores."""
        state = {number: self.state[number] for number in sorted(numbers)}
        here = Context(
            state,
            self.alive,
            self.lanes,
            self.env,
            self.mesh,
            self.devices,
            self.certain,
            self.later,
            self.asks,
            self.place,
        )
        return dataclasses.replace(here, **changes)


class Collector:
    """Evaluates jaxprs with marks in them.

    Args:
      survey: what is in the jaxprs.
      keep: whether recorded marks stay in the program.
      packing: how much travels packed.
    """

    # Whether `Frame.alive` must follow conditionals and loops.
    tracks_lanes = False
    # Whether records leave a function with its results. A function that runs only for derivatives then cannot record.
    returns_records = False
    # Whether the body of a scan gets its place along the scanned axis.
    wants_index = False

    def __init__(self, survey: Survey, keep: bool, packing: Packing = NO_PACKING) -> None:
        self.survey = survey
        self.packing = packing
        self.keep = keep
        # Rebuilt functions by jaxpr, so that a function called twice is traced once.
        self.memo: dict[Any, Any] = {}

    # --- for subclasses ------------------------------------------------------------------------------------------

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        """A mark was reached; these of its keys are selected."""
        raise NotImplementedError

    def settle(self, frame: Frame, numbers: frozenset[int]) -> None:
        """Put pending rows into these stores, because a body that updates the stores comes next or has ended."""

    def stores_in(self, jaxpr: Any, folds: bool) -> frozenset[int]:
        """The stores that evaluating ``jaxpr`` updates; none, unless a subclass has some.

        Args:
          folds: whether it is a body at whose end rows are put into stores.
        """
        return frozenset()

    def in_branch(self, frame: Frame, jaxprs: Sequence[Any], i: int) -> Any:
        """The context in which one of several branches is run."""
        del frame, jaxprs, i
        return contextlib.nullcontext()

    def pace(self, eqn: Any, later: frozenset[int]) -> Pace:
        """In which chunks a scan is taken, if surrounding loops send these stores."""
        return AS_A_WHOLE

    def before_chunks(self, frame: Frame, pace: Pace) -> None:
        """The first chunk of a scan begins."""

    def after_chunk(self, frame: Frame, pace: Pace, iterations: int, before: State) -> None:
        """A chunk of a scan has ended; the last one can have fewer iterations.

        Args:
          before: the state when it began.
        """

    def rule_context(self) -> Any:
        """The context in which derivative rules are traced."""
        return marking(True)

    def backward_context(self) -> Any:
        """The context in which backward rules run. Their marks belong to the transformation outside, if any."""
        return contextlib.nullcontext()

    # --- evaluation ----------------------------------------------------------------------------------------------

    def run(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        body, consts = compat.open_jaxpr(jaxpr)
        env: dict[Any, Array] = dict(zip(body.constvars, map(_value_of, consts), strict=False))
        env.update(zip(body.invars, args, strict=True))
        before = _enclosing.set((*_enclosing.get(), env))
        try:
            return self._evaluate(body, env, frame)
        finally:
            _enclosing.reset(before)

    def _evaluate(self, body: Any, env: dict[Any, Array], frame: Frame) -> list[Array]:
        name_stack = compat.current_name_stack()
        # Neighbouring equations were mostly traced under the same settings.
        for settings, eqns in itertools.groupby(body.eqns, key=lambda eqn: eqn.ctx):
            with settings.manager:
                for eqn in eqns:
                    invals = [atom.val if isinstance(atom, compat.Literal) else env[atom] for atom in eqn.invars]
                    if eqn.primitive is log_p:
                        self._mark(eqn, invals, frame)
                        continue
                    with compat.source_context(eqn, name_stack):
                        outs = self._step(eqn, invals, frame)
                        answers.follow(frame, eqn, invals)
                    if len(eqn.outvars) == 1:
                        (env[eqn.outvars[0]],) = outs
                    else:
                        env.update(zip(eqn.outvars, outs, strict=True))
        return [atom.val if isinstance(atom, compat.Literal) else env[atom] for atom in body.outvars]

    def _step(self, eqn: Any, invals: list[Array], frame: Frame) -> Sequence[Array]:
        if eqn.primitive is watch_p and not marks_are_wanted():
            return invals[: len(eqn.outvars)]
        if self.must_rebuild(eqn):
            return table.find(eqn).run(self, frame, eqn, invals)
        return compat.bind_eqn(eqn, invals)

    def must_rebuild(self, eqn: Any) -> bool:
        return self.survey.concerns(eqn)

    def _mark(self, eqn: Any, invals: list[Array], frame: Frame) -> None:
        # A constant operand is a literal of the jaxpr.
        operands = [
            value if isinstance(value, jax.Array) else compat.constant(value, atom.aval.dtype)
            for value, atom in zip(invals, eqn.invars, strict=True)
        ]
        mark = eqn.params["mark"]
        keys = self.survey.selected(mark)
        if keys:
            self.record(frame, _within(frame, Record.of(mark, detach(operands) if frame.nested else operands)), keys)
        left = mark.keys if self.keep else tuple([key for key in mark.keys if key not in keys])
        if left and marks_are_wanted():
            bind_record(_within(frame, Record.of(mark, operands)), left)

    def body(self, jaxpr: Any, args: Sequence[Array], frame: Frame) -> list[Array]:
        """Run a loop body or a branch, and put its rows into the stores at the end."""
        outs = self.run(jaxpr, args, frame)
        self.settle(frame, self.stores_in(jaxpr, folds=True))
        return outs


class Unrecorded(Collector):
    """Evaluates, inside another collector, what runs only for derivatives. It records nothing."""

    def __init__(self, around: Collector, keep: bool) -> None:
        super().__init__(around.survey, keep, around.packing)
        self.rule_context = around.rule_context  # type: ignore[method-assign]
        self.backward_context = around.backward_context  # type: ignore[method-assign]

    def record(self, frame: Frame, record: Record, keys: tuple[str, ...]) -> None:
        del frame, record, keys


# The variables of the bodies that are being evaluated, the outermost first.
_enclosing: contextvars.ContextVar[tuple[dict[Any, Array], ...]] = contextvars.ContextVar("_enclosing", default=())


def _value_of(const: Any) -> Any:
    """A constant of a body. A custom_jvp function may close over values that were being traced. Differentiated in a loop, a
    branch or a jitted function, it makes JAX keep tracers as constants there (jax-ml/jax, as of 0.12). They stand for variables
    of a body around this one."""
    if not isinstance(const, compat.Tracer):
        return const
    variable = compat.variable_of(const)
    return next((env[variable] for env in reversed(_enclosing.get()) if variable in env), const)


def _within(frame: Frame, record: Record) -> Record:
    """The record, limited to the lanes that are in the surrounding loops."""
    return record if frame.lanes is None else record._replace(where=lanes.both(frame.lanes, record.where))
