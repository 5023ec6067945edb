"""SPEC's laws, each checked on one program.

A law is a function of a ``Case`` that raises ``Broken``. ``applies`` says where a law makes no statement.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.fuzz import expect
from tests.fuzz.build import build
from tests.fuzz.compare import Broken, Options, check_delivered, check_logs, close, needs_option, require, same_tree
from tests.fuzz.expect import Uses, survey
from tests.fuzz.interpret import evaluate
from tests.fuzz.oracle import Row, Run, execute
from tests.fuzz.program import BACKWARD, FORWARD, Call, LogGrad, Program, walk

Input = tuple[float, tuple[float, float], int]
INPUTS: tuple[Input, ...] = ((2.0, (1.0, -3.0), 3), (-1.0, (4.0, 2.0), 3))


def as_arrays(x: float, xs: tuple[float, float], n: int) -> tuple[Any, Any, Any]:
    return np.float32(x), np.array(xs, np.float32), np.int32(n)


@dataclasses.dataclass
class Case:
    """A program, its JAX function, and what the oracle says of it."""

    program: Program
    turn: int = 0  # where a law has several forms: which of them
    inputs: tuple[Input, ...] = INPUTS

    def __post_init__(self) -> None:
        self.sink: list[lox.logdict] = []
        self.f = build(self.program, self.sink)
        self.args = as_arrays(*self.inputs[0])
        xs, vs, _ = zip(*(as_arrays(*given) for given in self.inputs), strict=True)
        self.lanes = (np.stack(xs), np.stack(vs), self.args[2])  # the counter is the same in all lanes

    @functools.cached_property
    def run(self) -> Run:
        return execute(self.program, *self.inputs[0])

    @functools.cached_property
    def lane_runs(self) -> list[Run]:
        return [self.run, *(execute(self.program, x, xs, self.inputs[0][2]) for x, xs, _ in self.inputs[1:])]

    @functools.cached_property
    def gradient_run(self) -> Run:
        return execute(self.program, *self.inputs[0], differentiate=True)

    @functools.cached_property
    def uses(self) -> Uses:
        return survey(self.program.body)

    @functools.cached_property
    def gradient_uses(self) -> Uses:
        return survey(self.program.body, differentiated=True)

    @property
    def bounds(self) -> Options:
        """What the program needs to be spooled at all."""
        return Options(capacity=3) if needs_option(self.uses) else Options()

    @property
    def gradient_bounds(self) -> Options:
        return Options(capacity=3) if needs_option(self.gradient_uses) else Options()

    @functools.cached_property
    def spooled(self) -> tuple[Any, lox.logdict]:
        return evaluate(lox.spool(self.f, **self.bounds.arguments()), *self.args)

    @property
    def differentiable(self) -> bool:
        """Marks of backward passes inside a differentiation inside another one are not modelled."""
        inner = [s for s in self.program.statements() if isinstance(s, Call) and s.how in BACKWARD + FORWARD]
        marked = any(_marks_backward(part) for s in inner for part in walk(s.body))
        return self.program.reversible and not marked

    def one_of(self, *forms: Any) -> list[Any]:
        return [forms[self.turn % len(forms)]]

    def check_output(self, out: Any, run: Run, what: str) -> None:
        require(close(out["y"], run.result["y"]), f"{what}: the result differs", out["y"], run.result["y"])
        require(close(out["v"], run.result["v"]), f"{what}: the result differs", out["v"], run.result["v"])


def _marks_backward(s: Any) -> bool:
    return isinstance(s, LogGrad) or (isinstance(s, Call) and "rule" in dict(s.options))


# --- laws ------------------------------------------------------------------------------------------------------------


def unchanged(case: Case) -> None:
    """The program without a transformation: no marks, the same result, and the inner taps deliver."""
    case.sink.clear()
    case.check_output(evaluate(case.f, *case.args), case.run, "f")
    check_inner_taps(case, case.run)


def check_inner_taps(case: Case, run: Run) -> None:
    expected: dict[str, list[Any]] = {}
    by_call: dict[Any, list[Row]] = {}
    for tap, row in run.tapped:
        if not (row.explicit or tap.explicit_only):
            # In a vmap, each lane makes a call of its own.
            by_call.setdefault((tap.number, tap.options, row.key), []).append(row)
    for (_, options, key), rows in by_call.items():
        interval = dict(options).get("interval", 1)
        expected.setdefault(key, []).extend(expect.gather_lanes(rows)[::interval])
    check_delivered(list(case.sink), expected, "inner tap", ordered=False)


def spool_rows(case: Case) -> None:
    """Rows in execution order, the result unchanged; an error where the number of records is not known."""
    if needs_option(case.uses):
        try:
            evaluate(lox.spool(case.f), *case.args)
        except lox.LoxError as error:
            text = str(error)
            require("capacity" in text and "reduce" in text and "tap" in text, "the error names no way out", text)
            require("build.py:" in text, "the error names no site", text)
        else:
            raise Broken("spool of a dynamic number of records raised nothing")
    out, logs = case.spooled
    case.check_output(out, case.run, "spool")
    check_logs(logs, case.uses, case.run.rows, case.bounds, "spool")


def jit_inside(case: Case) -> None:
    """spool(jit(f)), with plain calls before and after."""
    jitted = jax.jit(case.f)
    before = str(jax.make_jaxpr(jitted)(*case.args))
    require("lox_log" not in before, "a mark in the plain program")
    out, logs = evaluate(lox.spool(jitted, **case.bounds.arguments()), *case.args)
    case.check_output(out, case.run, "spool(jit)")
    check_logs(logs, case.uses, case.run.rows, case.bounds, "spool(jit)")
    require(str(jax.make_jaxpr(jitted)(*case.args)) == before, "spool changed the jitted function")


def bounded(case: Case) -> None:
    """capacity and interval."""
    for options in case.one_of(Options(capacity=2), Options(capacity=2, interval=2), Options(capacity=1, interval=3)):
        out, logs = evaluate(lox.spool(case.f, **options.arguments()), *case.args)
        case.check_output(out, case.run, "spool(capacity)")
        check_logs(logs, case.uses, case.run.rows, options, f"spool({options.arguments()})")


def reductions(case: Case) -> None:
    """spool(f, reduce=r) is numpy's reduction of the rows, and that of the finished logs."""
    names: Any = ("mean", "sum", "std", "first", "last", "count")
    if not any("complex64" in use.dtypes for use in case.uses.values()):
        names = (*names, "min", "max")
    bounds = case.bounds.capacity
    for options in case.one_of(
        Options(reduce=names), Options(reduce="mean", interval=2), Options(reduce=("append", "sum"), capacity=bounds)
    ):
        out, logs = evaluate(lox.spool(case.f, **options.arguments()), *case.args)
        case.check_output(out, case.run, "spool(reduce)")
        check_logs(logs, case.uses, case.run.rows, options, f"spool({options.arguments()})")
    if not needs_option(case.uses):
        kept = lambda key: case.uses[key].key.reduce is None  # noqa: E731
        finished = evaluate(lambda *args: lox.spool(case.f)(*args)[1].filter(kept).reduce(names), *case.args)
        uses = {key: use for key, use in case.uses.items() if kept(key)}
        check_logs(finished, uses, case.run.rows, Options(reduce=names), "logs.reduce")


def lanes_outside(case: Case) -> None:
    """vmap(spool(f)), whatever the lanes do."""
    for options in case.one_of(case.bounds, Options(reduce="last"), Options(capacity=2)):
        spooled = jax.vmap(lox.spool(case.f, **options.arguments()), in_axes=(0, 0, None))
        outs, logs = evaluate(spooled, *case.lanes)
        for lane, run in enumerate(case.lane_runs):
            mine = jax.tree.map(lambda x, lane=lane: x[lane], logs)
            case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, "vmap(spool)")
            check_logs(mine, case.uses, run.rows, options, f"vmap(spool), lane {lane}")


def lanes_inside(case: Case) -> None:
    """spool(vmap(f)): the lane axis comes after the record axis."""
    if not case.program.lane_safe:
        return
    mapped = jax.vmap(case.f, in_axes=(0, 0, None))
    outs, logs = evaluate(lox.spool(mapped, **case.bounds.arguments()), *case.lanes)
    for lane, run in enumerate(case.lane_runs):
        case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, "spool(vmap)")
        check_logs(_lane_of(logs, lane), case.uses, run.rows, case.bounds, f"spool(vmap), lane {lane}")


def _lane_of(logs: lox.logdict, lane: int) -> lox.logdict:
    def take(key: str, leaf: Any) -> Any:
        return leaf[:, lane] if key in logs.stacked else leaf[lane]

    def value(key: str) -> Any:
        if "count" in key:  # a number of records has no lanes
            return _take_but_counts(logs[key], lambda leaf: take(key, leaf))
        return jax.tree.map(lambda leaf: take(key, leaf), logs[key])

    values = {key: value(key) for key in logs}
    steps = {axis: {key: take(key, leaf) for key, leaf in by_key.items()} for axis, by_key in logs.steps.items()}
    return lox.logdict(values, steps, logs.counts, logs.stacked)


def _take_but_counts(value: Any, take: Callable[[Any], Any]) -> Any:
    return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) == 0 else take(leaf), value)


def gradients(case: Case) -> None:
    """grad(spool(f)) and spool(grad(f)) both give grad(f), and each record once."""
    if not case.differentiable:
        return
    gradient = jax.grad(lambda *args: case.f(*args)["y"])
    plain = evaluate(gradient, *case.args)
    require(
        close(plain, case.gradient_run.gradient, 1e-4),
        "the oracle's gradient differs",
        plain,
        case.gradient_run.gradient,
    )
    options = case.gradient_bounds
    inner, logs = evaluate(lox.spool(gradient, **options.arguments()), *case.args)
    require(close(inner, plain), "spool(grad): the gradient differs", inner, plain)
    check_logs(logs, case.gradient_uses, case.gradient_run.rows, options, "spool(grad)")
    if case.program.has(LogGrad) or any(map(_marks_backward, case.program.statements())):
        return

    def loss(*args: Any) -> Any:
        out, logs = lox.spool(case.f, **case.bounds.arguments())(*args)
        return out["y"], logs

    outer, logs = evaluate(jax.grad(loss, has_aux=True), *case.args)
    require(close(outer, plain), "grad(spool): the gradient differs", outer, plain)
    check_logs(logs, case.uses, case.run.rows, case.bounds, "grad(spool)")


def taps(case: Case) -> None:
    """tap delivers the rows of spool; so do its batches, and its intervals those of spool's."""
    found = expect.rows_by_key(case.run.rows)
    for options in ({}, *case.one_of({"batch": 2}, {"interval": 2}, {"interval": 2, "batch": 2})):
        got: list[lox.logdict] = []
        out = evaluate(lox.tap(case.f, got.append, **options), *case.args)
        case.check_output(out, case.run, f"tap({options})")
        interval = options.get("interval", 1)
        expected = {key: expect.gather_lanes(rows)[::interval] for key, rows in found.items()}
        # The buffers of several calls of lox.log are sent when each of them is full.
        ordered = {key: "batch" not in options or len(case.uses[key].sites) == 1 for key in found}
        check_delivered(got, expected, f"tap({options})", ordered)


def tap_lanes(case: Case) -> None:
    """vmap(tap(f)) delivers the rows of each lane, and nothing for lanes that were not there."""
    expected: dict[str, list[Any]] = {}
    for run in case.lane_runs:
        for key, rows in expect.rows_by_key(run.rows).items():
            expected.setdefault(key, []).extend(expect.gather_lanes(rows))
    for options in case.one_of({}, {"batch": 2}):
        got: list[lox.logdict] = []
        outs = evaluate(jax.vmap(lox.tap(case.f, got.append, **options), in_axes=(0, 0, None)), *case.lanes)
        for lane, run in enumerate(case.lane_runs):
            case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, "vmap(tap)")
        check_delivered(got, expected, f"vmap(tap({options}))", ordered=False)


def tap_in_control_flow(case: Case) -> None:
    """vmap of a branch, or of a loop, with tap(f) in it: a lane delivers the rows of f as often as it is there."""
    got: list[lox.logdict] = []
    tapped = lox.tap(case.f, got.append)

    def in_a_branch(times: Any, run: Callable[[], Any], nothing: Any) -> Any:
        return jax.lax.cond(times > 0, run, lambda: nothing)

    def in_a_loop(times: Any, run: Callable[[], Any], nothing: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < times, lambda c: (c[0] + 1, run()), (0, nothing))[1]

    (place,) = case.one_of(in_a_branch, in_a_loop)

    def f(times: Any, *args: Any) -> Any:
        nothing = jax.tree.map(lambda aval: jnp.zeros(aval.shape, aval.dtype), jax.eval_shape(case.f, *args))
        return place(times, lambda: jax.tree.map(lambda x, y: x.astype(y.dtype), tapped(*args), nothing), nothing)

    times = np.arange(len(case.lane_runs)) * (1 if place is in_a_branch else 2)
    evaluate(jax.vmap(f, in_axes=(0, 0, 0, None)), times, *case.lanes)
    expected: dict[str, list[Any]] = {}
    for number, run in zip(times, case.lane_runs, strict=True):
        for key, rows in expect.rows_by_key(run.rows).items():
            expected.setdefault(key, []).extend(expect.gather_lanes(rows) * int(number))
    expected = {key: rows for key, rows in expected.items() if rows}
    check_delivered(got, expected, f"vmap of {place.__name__}", ordered=False)


def tap_gradients(case: Case) -> None:
    """tap(grad(f)) and grad(tap(f)) deliver each record once."""
    if not case.differentiable:
        return
    loss = lambda f: lambda *args: f(*args)["y"]  # noqa: E731
    found = expect.rows_by_key(case.gradient_run.rows)
    expected = {key: expect.gather_lanes(rows) for key, rows in found.items()}
    got: list[lox.logdict] = []
    gradient = evaluate(lox.tap(jax.grad(loss(case.f)), got.append), *case.args)
    require(close(gradient, case.gradient_run.gradient, 1e-4), "tap(grad): the gradient differs")
    check_delivered(got, expected, "tap(grad)")
    if any(map(_marks_backward, case.program.statements())):
        return
    got.clear()
    gradient = evaluate(jax.grad(loss(lox.tap(case.f, got.append))), *case.args)
    require(close(gradient, case.gradient_run.gradient, 1e-4), "grad(tap): the gradient differs")
    check_delivered(got, expected, "grad(tap)")


def forwards(case: Case) -> None:
    """linearize(tap(f)) and jvp(spool(f)) deliver each record once."""
    calls = [s for s in case.program.statements() if isinstance(s, Call)]
    if any(s.how == "custom_vjp" or "rule" in dict(s.options) for s in calls):
        return  # not defined, or with marks that only derivatives make
    x, *rest = case.args
    got: list[lox.logdict] = []

    def tangent(x: Any) -> Any:
        return jax.linearize(lambda x: lox.tap(case.f, got.append)(x, *rest)["y"], x)[1](np.float32(1))

    evaluate(tangent, x)
    found = expect.rows_by_key(case.run.rows)
    expected = {key: expect.gather_lanes(rows) for key, rows in found.items()}
    check_delivered(got, expected, "linearize(tap)", ordered=False)

    def spooled(x: Any) -> Any:
        out, logs = lox.spool(case.f, **case.bounds.arguments())(x, *rest)
        return out["y"], logs

    _, _, logs = evaluate(lambda x: jax.jvp(spooled, (x,), (np.float32(1),), has_aux=True), x)
    check_logs(logs, case.uses, case.run.rows, case.bounds, "jvp(spool)")


def nesting(case: Case) -> None:
    """Marks are consumed by a spool, kept by keep_logs and tap, and gone after nolog."""
    case.one_of(_keep_logs, _consume, _spool_of_tap, _nolog)[0](case, case.bounds.arguments())


def _keep_logs(case: Case, given: dict[str, Any]) -> None:
    (_, inner), outer = evaluate(lox.spool(lox.spool(case.f, keep_logs=True, **given), **given), *case.args)
    check_logs(inner, case.uses, case.run.rows, case.bounds, "spool(keep_logs)")
    check_logs(outer, case.uses, case.run.rows, case.bounds, "spool(spool(keep_logs))")


def _consume(case: Case, given: dict[str, Any]) -> None:
    _, nothing = evaluate(lox.spool(lox.spool(case.f, **given)), *case.args)
    require(not nothing, "spool(spool): marks were not consumed", nothing)


def _spool_of_tap(case: Case, given: dict[str, Any]) -> None:
    got: list[lox.logdict] = []
    _, logs = evaluate(lox.spool(lox.tap(case.f, got.append), **given), *case.args)
    check_logs(logs, case.uses, case.run.rows, case.bounds, "spool(tap)")
    found = expect.rows_by_key(case.run.rows)
    check_delivered(got, {key: expect.gather_lanes(rows) for key, rows in found.items()}, "spool(tap)")


def _nolog(case: Case, given: dict[str, Any]) -> None:
    out, nothing = evaluate(lox.spool(lox.nolog(case.f)), *case.args)
    case.check_output(out, case.run, "nolog")
    require(not nothing, "spool(nolog): marks are left", nothing)


def selections(case: Case) -> None:
    """argnames, tags, explicit marks, prefix."""
    choices: list[tuple[dict[str, Any], expect.Select]] = [
        ({"argnames": ["f*", "p/*"]}, lambda name, tags, explicit: name.startswith(("f", "p/"))),
        ({"tags": "eval"}, lambda name, tags, explicit: "eval" in tags),
        (
            {"argnames": "*0/*", "tags": ("train", "other")},
            lambda name, tags, explicit: "0/" in name and "train" in tags,
        ),
    ]
    for arguments, select in case.one_of(*choices):
        uses = survey(case.program.body, select)
        options = Options(capacity=3 if needs_option(uses) else None, select=select, prefix="all/")
        _, logs = evaluate(lox.spool(case.f, **arguments, **options.arguments()), *case.args)
        check_logs(logs, uses, case.run.rows, options, f"spool({arguments})")


def sequence(case: Case) -> None:
    """spool(g after f) == spool(f) + spool(g)."""
    if needs_option(case.uses) or any(use.key.reduce is not None for use in case.uses.values()):
        return

    def after(x: Any, xs: Any, n: Any) -> Any:
        first = case.f(x, xs, n)
        return case.f(first["y"], xs, n)

    def apart(x: Any, xs: Any, n: Any) -> Any:
        first, logs = lox.spool(case.f)(x, xs, n)
        second, more = lox.spool(case.f)(first["y"], xs, n)
        return second, logs + more

    together, apart_logs = evaluate(lambda *args: (lox.spool(after)(*args), apart(*args)), *case.args)
    same_tree(together[0], apart_logs[0], "g after f")
    _same_logs(together[1], apart_logs[1], "spool(g after f)")


def _same_logs(a: lox.logdict, b: lox.logdict, what: str) -> None:
    require(set(a) == set(b) and a.stacked == b.stacked, f"{what}: keys differ", a, b)
    for key in a:
        same_tree(a[key], b[key], f"{what}: {key}")
        require(int(a.counts[key]) == int(b.counts[key]), f"{what}: counts of {key} differ")
        for axis, by_key in a.steps.items():
            require((key in by_key) == (key in b.steps[axis]), f"{what}: steps of {key} differ")
            if key in by_key:
                same_tree(by_key[key], b.steps[axis][key], f"{what}: steps of {key}")


def compiled(case: Case) -> None:
    """The same through XLA: jit(spool(f)), an eager call, jit(tap(f)), and a plain call that nothing disturbed."""
    given = case.bounds.arguments()
    jitted = jax.jit(case.f)
    args = tuple(map(jnp.asarray, case.args))
    out, logs = jax.jit(lox.spool(jitted, **given))(*args)
    case.check_output(out, case.run, "jit(spool(jit))")
    check_logs(logs, case.uses, case.run.rows, case.bounds, "jit(spool(jit))")
    for _ in range(2):
        out, logs = lox.spool(case.f, **given)(*args)
        case.check_output(out, case.run, "eager spool")
        check_logs(logs, case.uses, case.run.rows, case.bounds, "eager spool")
    got: list[lox.logdict] = []
    tapped = jax.jit(lox.tap(jitted, got.append, ordered=case.turn % 2 == 1))
    case.check_output(tapped(*args), case.run, "jit(tap)")
    jax.effects_barrier()
    found = expect.rows_by_key(case.run.rows)
    expected = {key: expect.gather_lanes(rows) for key, rows in found.items()}
    check_delivered(got, expected, "jit(tap)", ordered=False)
    case.sink.clear()
    case.check_output(jitted(*args), case.run, "jit")
    jax.effects_barrier()
    check_inner_taps(case, case.run)


LAWS: tuple[Callable[[Case], None], ...] = (
    unchanged,
    spool_rows,
    jit_inside,
    bounded,
    reductions,
    lanes_outside,
    lanes_inside,
    gradients,
    taps,
    tap_lanes,
    tap_in_control_flow,
    tap_gradients,
    forwards,
    nesting,
    selections,
    sequence,
)
