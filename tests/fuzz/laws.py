"""SPEC's laws, each checked on one program.

A law is a function of a ``Case`` that raises ``Broken``. Tracing takes nearly all of the time, so laws share traces. A ``Case``
has the program jitted, spooled and tapped, each jitted once: JAX traces it at the first law that needs it, and batches or
differentiates that trace for the others. A law that has several forms (options, jitted or not) takes one of them for each
program, by its ``turn``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lox
from tests.fuzz import expect
from tests.fuzz.build import build, jit_options
from tests.fuzz.compare import (
    Broken,
    Options,
    check_delivered,
    check_logs,
    close,
    is_wide,
    needs_option,
    require,
    same_tree,
)
from tests.fuzz.expect import Uses, survey
from tests.fuzz.interpret import evaluate
from tests.fuzz.oracle import Row, Run, execute
from tests.fuzz.program import BACKWARD, FORWARD, Call, Program, has_own_rule, marks_rules, marks_tangents, walk

Input = tuple[float, tuple[float, float], int]
INPUTS: tuple[Input, ...] = ((2.0, (1.0, -3.0), 3), (-1.0, (4.0, 2.0), 3))
# One for each of four devices.
MORE_INPUTS: tuple[Input, ...] = (*INPUTS, (3.0, (-2.0, 1.0), 3), (0.0, (5.0, -1.0), 3))


def as_arrays(x: float, xs: tuple[float, float], n: int) -> tuple[Any, Any, Any]:
    return np.float32(x), np.array(xs, np.float32), np.int32(n)


@dataclasses.dataclass
class Case:
    """A program, its JAX function, and what the oracle says of it."""

    program: Program
    turn: int = 0  # where a law has several forms: which of them
    inputs: tuple[Input, ...] = INPUTS

    def __post_init__(self) -> None:
        self.sink: list[lox.logdict] = []  # what taps inside the program deliver
        self.got: list[lox.logdict] = []  # what a tap of the program delivers
        self.f = build(self.program, self.sink)
        self.args = as_arrays(*self.inputs[0])
        self.lanes = self.stack(self.inputs)

    def stack(self, inputs: tuple[Input, ...]) -> tuple[Any, Any, Any]:
        xs, vs, _ = zip(*(as_arrays(*given) for given in inputs), strict=True)
        return np.stack(xs), np.stack(vs), self.args[2]  # the counter is the same in all lanes

    @functools.cached_property
    def run(self) -> Run:
        return execute(self.program, *self.inputs[0])

    @functools.cached_property
    def lane_runs(self) -> list[Run]:
        return [self.run, *(execute(self.program, x, xs, self.inputs[0][2]) for x, xs, _ in self.inputs[1:])]

    @functools.cached_property
    def device_runs(self) -> list[Run]:
        more = MORE_INPUTS[len(self.inputs) :]
        return [*self.lane_runs, *(execute(self.program, x, xs, self.inputs[0][2]) for x, xs, _ in more)]

    @functools.cached_property
    def gradient_run(self) -> Run:
        return execute(self.program, *self.inputs[0], differentiate=True)

    @functools.cached_property
    def uses(self) -> Uses:
        return survey(self.program.body)

    @functools.cached_property
    def gradient_uses(self) -> Uses:
        return survey(self.program.body, differentiated=True)

    @functools.cached_property
    def reductions(self) -> tuple[str, ...]:
        """Half of them; complex numbers have no order."""
        ordered = not any("complex64" in use.dtypes for use in self.uses.values())
        extremes = ("min", "max") if ordered else ("first", "count")
        return self.one_of(("mean", "sum", "last", extremes[0]), ("std", "first", "count", extremes[1]))[0]

    @property
    def bounds(self) -> Options:
        """What the program needs to be spooled at all."""
        return Options(capacity=3) if needs_option(self.uses) else Options()

    @property
    def gradient_bounds(self) -> Options:
        return Options(capacity=3) if needs_option(self.gradient_uses) else Options()

    @functools.cached_property
    def jitted(self) -> Callable[..., Any]:
        return jax.jit(self.f, **jit_options(self.one_of(None, "keep_unused", "placed")[0]))

    @functools.cached_property
    def mapped(self) -> Callable[..., Any]:
        return jax.vmap(self.f, in_axes=(0, 0, None))

    @functools.cached_property
    def gradient(self) -> Callable[..., Any]:
        return jax.grad(lambda *args: self.f(*args)["y"])

    def watch(self, fun: Callable[..., Any], options: Options) -> Callable[..., Any]:
        """``fun``, which also returns its logs and delivers its records, so that one trace shows both; on every third program
        ``spool(fun)`` and ``tap(fun)`` apart."""
        tapped = lox.tap(fun, self.got.append)
        if self.turn % 3:
            return lox.spool(tapped, **options.arguments())
        spooled = lox.spool(fun, **options.arguments())
        return lambda *args: (tapped(*args), spooled(*args)[1])

    @functools.cached_property
    def watched(self) -> Callable[..., Any]:
        """What vmaps and derivatives of ``spool(f)`` and ``tap(f)`` are taken of."""
        watched = self.watch(self.f, self.bounds)
        return watched if self.turn % 4 == 0 else jax.jit(watched)

    @functools.cached_property
    def spool(self) -> Callable[..., tuple[Any, lox.logdict]]:
        spooled = lox.spool(self.f, **self.bounds.arguments())
        return spooled if self.turn % 2 == 0 else jax.jit(spooled)

    @functools.cached_property
    def tap(self) -> Callable[..., Any]:
        tapped = lox.tap(self.f, self.got.append)
        return tapped if self.turn % 4 == 1 else jax.jit(tapped)

    def loss(self, *args: Any) -> tuple[Any, lox.logdict]:
        out, logs = self.watched(*args)
        return out["y"], logs

    def delivered(self) -> list[lox.logdict]:
        """What the tap has delivered since the last time."""
        got = list(self.got)
        self.got.clear()
        return got

    @functools.cached_property
    def spooled(self) -> tuple[Any, lox.logdict]:
        return evaluate(self.spool, *self.args)

    def plain_program(self) -> Any:
        """The jitted program without a transformation: what JAX remembers of it."""
        (call,) = jax.make_jaxpr(self.jitted)(*self.args).eqns
        return call.params["jaxpr"]

    @property
    def differentiable(self) -> bool:
        """Marks of backward passes inside a differentiation inside another one are not modelled."""
        inner = [s for s in self.program.statements() if isinstance(s, Call) and s.how in BACKWARD + FORWARD]
        marked = any(marks_rules(part) or has_own_rule(part) for s in inner for part in walk(s.body))
        return self.program.reversible and not marked

    @property
    def derivatives_record_more(self) -> bool:
        """Whether derivatives record what the function does not: ``grad(spool(f))`` cannot return it."""
        return any(marks_rules(s) or marks_tangents(s) for s in self.program.statements())

    def one_of(self, *forms: Any) -> list[Any]:
        return [forms[self.turn % len(forms)]]

    def check_output(self, out: Any, run: Run, what: str) -> None:
        require(close(out["y"], run.result["y"]), f"{what}: the result differs", out["y"], run.result["y"])
        require(close(out["v"], run.result["v"]), f"{what}: the result differs", out["v"], run.result["v"])


# --- laws ------------------------------------------------------------------------------------------------------------


def unchanged(case: Case) -> None:
    """The program without a transformation: no marks, the same result, and the inner taps deliver."""
    case.sink.clear()
    case.check_output(evaluate(case.jitted, *case.args), case.run, "f")
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
    """spool(jit(f), reduce=r) is numpy's reduction of the rows. The jitted function itself stays what it was."""
    before = case.plain_program()
    require(not any("Log" in str(effect) for effect in before.effects), "a mark in the plain program", before)
    for options in case.one_of(
        Options(reduce=case.reductions),
        case.bounds,
        Options(reduce="mean", interval=2),
        Options(reduce=("append", "sum"), capacity=case.bounds.capacity),
    ):
        out, logs = evaluate(lox.spool(case.jitted, **options.arguments()), *case.args)
        case.check_output(out, case.run, "spool(jit)")
        check_logs(logs, case.uses, case.run.rows, options, f"spool(jit, {options.arguments()})")
    require(case.plain_program() is before, "spool changed the jitted function")


def reductions(case: Case) -> None:
    """Finished logs are reduced to the same: numpy's reduction of the rows."""
    if needs_option(case.uses):
        return
    # Outside x64 mode, the wide values of a part that is in it cannot be arguments.
    kept = lambda key: case.uses[key].key.reduce is None and not is_wide(case.uses[key])  # noqa: E731
    finished = evaluate(lambda logs: logs.reduce(case.reductions), case.spooled[1].filter(kept))
    uses = {key: use for key, use in case.uses.items() if kept(key)}
    check_logs(finished, uses, case.run.rows, Options(reduce=case.reductions), "logs.reduce")


def bounded(case: Case) -> None:
    """capacity, interval and reduce, alone and under vmap."""
    for options in case.one_of(
        Options(capacity=2),
        Options(capacity=2, interval=2),
        Options(capacity=1, interval=3),
        Options(reduce="last"),
        Options(reduce=case.reductions),
    ):
        spooled = lox.spool(case.f, **options.arguments())
        if case.turn % 2:
            check_lanes(case, spooled, options, f"vmap(spool({options.arguments()}))")
        else:
            out, logs = evaluate(spooled, *case.args)
            case.check_output(out, case.run, "spool(capacity)")
            check_logs(logs, case.uses, case.run.rows, options, f"spool({options.arguments()})")


def lanes_outside(case: Case) -> None:
    """vmap(spool(f)), whatever the lanes do."""
    check_lanes(case, case.spool, case.bounds, "vmap(spool)")


def together(runs: list[Run], interval: int = 1) -> dict[str, list[Any]]:
    """The records of several runs, or every nth of each."""
    expected: dict[str, list[Any]] = {}
    for run in runs:
        for key, rows in expect.rows_by_key(run.rows).items():
            expected.setdefault(key, []).extend(expect.gather_lanes(rows)[::interval])
    return expected


def check_lanes(case: Case, spooled: Callable[..., Any], options: Options, what: str) -> None:
    outs, logs = evaluate(jax.vmap(spooled, in_axes=(0, 0, None)), *case.lanes)
    for lane, run in enumerate(case.lane_runs):
        mine = jax.tree.map(lambda x, lane=lane: x[lane], logs)
        case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, what)
        check_logs(mine, case.uses, run.rows, options, f"{what}, lane {lane}")


def lanes_inside(case: Case) -> None:
    """spool(vmap(f)): the lane axis comes after the record axis, and each lane has the records of its own loops. tap(vmap(f)):
    one call with all lanes, which tells what lanes are in the loops around."""
    if not case.program.lane_safe:
        return
    outs, logs = evaluate(case.watch(case.mapped, case.bounds), *case.lanes)
    got = case.delivered()
    for lane, run in enumerate(case.lane_runs):
        case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, "spool(vmap)")
        check_logs(_lane_of(logs, lane), case.uses, run.rows, case.bounds, f"spool(vmap), lane {lane}")
        mine = [_lane_of(each, lane) for each in got]
        there = [each.filter(lambda key, each=each: each.counts[key] > 0) for each in mine]
        check_delivered(there, together([run]), f"tap(vmap), lane {lane}")


def _lane_of(logs: lox.logdict, lane: int) -> lox.logdict:
    def take(key: str, leaf: Any) -> Any:
        return leaf[:, lane] if key in logs.stacked else leaf[lane]

    def value(key: str) -> Any:
        if "count" in key:  # a number of records has no lanes
            return _take_but_counts(logs[key], lambda leaf: take(key, leaf))
        return jax.tree.map(lambda leaf: take(key, leaf), logs[key])

    values = {key: value(key) for key in logs}
    steps = {axis: {key: take(key, leaf) for key, leaf in by_key.items()} for axis, by_key in logs.steps.items()}
    counts = {key: count[lane] if np.ndim(count) else count for key, count in logs.counts.items()}
    return lox.logdict(values, steps, counts, logs.stacked)


def _take_but_counts(value: Any, take: Callable[[Any], Any]) -> Any:
    return jax.tree.map(lambda leaf: leaf if np.ndim(leaf) == 0 else take(leaf), value)


# --- devices ---------------------------------------------------------------------------------------------------------

DEVICES = len(MORE_INPUTS)


@functools.cache
def _mesh() -> Any:
    return jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])


def on_each_device(fun: Callable[..., Any]) -> Callable[..., Any]:
    """``fun`` on four devices, with an argument for each. (Types that tell what differs between devices are not for programs
    that carry constants through loops: JAX refuses them.)"""

    def one(x: Any, xs: Any, n: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], fun(x[0], xs[0], n))

    return jax.shard_map(one, mesh=_mesh(), in_specs=(P("d"), P("d"), P()), out_specs=P("d"), check_vma=False)


def devices(case: Case) -> None:
    """Transformations inside and outside a shard_map: each device has its own records, whatever the others do."""
    (law,) = case.one_of(_spool_on_devices, _spool_of_devices, _tap_of_devices)
    law(case, case.stack(MORE_INPUTS), evaluate)


def _spool_on_devices(case: Case, args: Any, evaluate: Any) -> None:
    outs, logs = evaluate(on_each_device(lox.spool(case.f, **case.bounds.arguments())), *args)
    _check_devices(case, outs, lambda device: jax.tree.map(lambda x: x[device], logs), "shard_map(spool)")


def _spool_of_devices(case: Case, args: Any, evaluate: Any) -> None:
    outs, logs = evaluate(lox.spool(on_each_device(case.f), **case.bounds.arguments()), *args)
    _check_devices(case, outs, lambda device: _lane_of(logs, device), "spool(shard_map)")


def _tap_of_devices(case: Case, args: Any, evaluate: Any) -> None:
    """Where all devices make the same records, they come together; otherwise each comes with a mesh axis of size 1."""
    got: list[lox.logdict] = []
    interval = 1 + case.turn // 3 % 2  # a third of the turns come here
    outs = evaluate(lox.tap(on_each_device(case.f), got.append, interval=interval), *args)
    jax.effects_barrier()
    _check_devices(case, outs, None, "tap(shard_map)")
    apart = [_lane_of(logs, i) for logs in got for i in range(len(jax.tree.leaves(logs)[0]))]
    check_delivered(apart, together(case.device_runs, interval), f"tap(shard_map, interval={interval})", ordered=False)


def _check_devices(case: Case, outs: Any, logs_of: Callable[[int], Any] | None, what: str) -> None:
    for device, run in enumerate(case.device_runs):
        case.check_output(jax.tree.map(lambda x, device=device: x[device], outs), run, what)
        if logs_of is not None:
            check_logs(logs_of(device), case.uses, run.rows, case.bounds, f"{what}, device {device}")


def compiled_on_devices(case: Case) -> None:
    """The same through XLA; and lanes that are split between the devices, with results that lie where they do without lox."""
    if any(isinstance(s, Call) and dict(s.options).get("jit") == "placed" for s in case.program.statements()):
        return  # JAX refuses a part that is placed on one device in a program for four
    args = case.stack(MORE_INPUTS)
    for law in case.one_of(_spool_on_devices, _spool_of_devices, _tap_of_devices):
        law(case, args, lambda fun, *args: jax.jit(fun)(*args))
    split = NamedSharding(_mesh(), P("d"))
    placed = (*(jax.device_put(arg, split) for arg in args[:2]), args[2])
    axes = (0, 0, None)
    plain = jax.jit(jax.vmap(case.f, in_axes=axes))(*placed)
    spooled = jax.vmap(lox.spool(case.f, **case.bounds.arguments()), in_axes=axes)
    outs, logs = jax.jit(spooled)(*placed)
    _check_devices(case, outs, lambda device: jax.tree.map(lambda x: x[device], logs), "lanes on devices")
    found, expected = ([(x.dtype, x.sharding) for x in jax.tree.leaves(out)] for out in (outs, plain))
    require(found == expected, "lanes on devices: results lie elsewhere", found, expected)


# --- derivatives -----------------------------------------------------------------------------------------------------


def gradients(case: Case) -> None:
    """spool(grad(f)), tap(grad(f)), grad(spool(f)) and grad(tap(f)) give the gradient, and each record once."""
    if not case.differentiable:
        return
    run, options = case.gradient_run, case.gradient_bounds
    inner, logs = evaluate(case.watch(case.gradient, options), *case.args)
    require(close(inner, run.gradient, 1e-4), "spool(grad): the gradient differs", inner, run.gradient)
    check_logs(logs, case.gradient_uses, run.rows, options, "spool(grad)")
    check_delivered(case.delivered(), together([run]), "tap(grad)")
    if case.derivatives_record_more:
        return

    outer, logs = evaluate(jax.grad(case.loss, has_aux=True), *case.args)
    require(close(outer, run.gradient, 1e-4), "grad(spool): the gradient differs", outer, run.gradient)
    check_logs(logs, case.uses, case.run.rows, case.bounds, "grad(spool)")
    check_delivered(case.delivered(), together([run]), "grad(tap)")


def forwards(case: Case) -> None:
    """Derivatives forwards of spool(f) and tap(f) have each record once."""
    calls = [s for s in case.program.statements() if isinstance(s, Call)]
    if any(s.how == "custom_vjp" or marks_rules(s) or has_own_rule(s) for s in calls):
        return  # not defined, or with marks that only derivatives make
    x, *rest = case.args
    one = np.float32(1)

    def jvp(x: Any) -> Any:
        return jax.jvp(lambda x: case.loss(x, *rest), (x,), (one,), has_aux=True)

    def linearize(x: Any) -> Any:
        y, tangent, logs = jax.linearize(lambda x: case.loss(x, *rest), x, has_aux=True)
        return y, tangent(one), logs

    (derivative,) = case.one_of(jvp, linearize)
    y, _, logs = evaluate(derivative, x)
    require(close(y, case.run.result["y"]), f"{derivative.__name__}: the result differs", y)
    check_logs(logs, case.uses, case.run.rows, case.bounds, f"{derivative.__name__}(spool)")
    check_delivered(case.delivered(), together([case.run]), f"{derivative.__name__}(tap)", ordered=False)


# --- taps ------------------------------------------------------------------------------------------------------------


def taps(case: Case) -> None:
    """tap delivers the rows of spool; so do its batches, and its intervals those of spool's."""
    found = expect.rows_by_key(case.run.rows)
    for options in ({}, *case.one_of({"batch": 2}, {"interval": 2}, {"interval": 2, "batch": 2})):
        tapped = lox.tap(case.f, case.got.append, **options) if options else case.tap
        out = evaluate(tapped, *case.args)
        case.check_output(out, case.run, f"tap({options})")
        interval = options.get("interval", 1)
        expected = {key: expect.gather_lanes(rows)[::interval] for key, rows in found.items()}
        # The buffers of several calls of lox.log are sent when each of them is full.
        ordered = {key: "batch" not in options or len(case.uses[key].sites) == 1 for key in found}
        check_delivered(case.delivered(), expected, f"tap({options})", ordered)


def tap_in_control_flow(case: Case) -> None:
    """vmap(tap(f)) in a loop or a branch: a lane delivers the rows of f as often as it is there, whatever the lanes do in f.
    In the first iteration all lanes are there; a branch is taken by one of them."""
    tapped = case.tap if case.turn // 2 % 4 else lox.tap(case.f, case.got.append, batch=2)

    def in_a_branch(times: Any, run: Callable[[], Any], nothing: Any) -> Any:
        return jax.lax.cond(times > 0, run, lambda: nothing)

    def in_a_loop(times: Any, run: Callable[[], Any], nothing: Any) -> Any:
        return jax.lax.while_loop(lambda c: c[0] < times, lambda c: (c[0] + 1, run()), (0, nothing))[1]

    (place,) = case.one_of(in_a_branch, in_a_loop)

    def f(times: Any, *args: Any) -> Any:
        nothing = jax.tree.map(lambda aval: jnp.zeros(aval.shape, aval.dtype), jax.eval_shape(case.jitted, *args))
        return place(times, lambda: jax.tree.map(lambda x, y: x.astype(y.dtype), tapped(*args), nothing), nothing)

    times = np.array([1, 2] if place is in_a_loop else ([0, 1], [1, 0], [1, 1])[case.turn % 3])
    outs = evaluate(jax.vmap(f, in_axes=(0, 0, 0, None)), times, *case.lanes)
    for lane, (number, run) in enumerate(zip(times, case.lane_runs, strict=True)):
        if number:
            case.check_output(jax.tree.map(lambda x, lane=lane: x[lane], outs), run, f"vmap of {place.__name__}")
    often = [run for number, run in zip(times, case.lane_runs, strict=True) for _ in range(number)]
    check_delivered(case.delivered(), together(often), f"vmap of {place.__name__}", ordered=False)


def nesting(case: Case) -> None:
    """Marks are consumed by a spool, kept by keep_logs and tap, and gone after nolog."""
    case.one_of(_keep_logs, _consume, _nolog)[0](case, case.bounds.arguments())


def _keep_logs(case: Case, given: dict[str, Any]) -> None:
    (_, inner), outer = evaluate(lox.spool(lox.spool(case.f, keep_logs=True, **given), **given), *case.args)
    check_logs(inner, case.uses, case.run.rows, case.bounds, "spool(keep_logs)")
    check_logs(outer, case.uses, case.run.rows, case.bounds, "spool(spool(keep_logs))")


def _consume(case: Case, given: dict[str, Any]) -> None:
    _, nothing = evaluate(lox.spool(lox.spool(case.f, **given)), *case.args)
    require(not nothing, "spool(spool): marks were not consumed", nothing)


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
        first = case.jitted(x, xs, n)
        return case.jitted(first["y"], xs, n)

    _, *rest = case.args
    out, together = evaluate(lox.spool(after), *case.args)
    first, logs = case.spooled
    second, more = evaluate(case.spool, first["y"], *rest)
    same_tree(out, second, "g after f")
    in_sequence = lambda logs, more: logs + more  # noqa: E731
    wide = any(map(is_wide, case.uses.values()))
    _same_logs(together, in_sequence(logs, more) if wide else evaluate(in_sequence, logs, more), "spool(g after f)")


def _same_logs(a: lox.logdict, b: lox.logdict, what: str) -> None:
    require(set(a) == set(b) and a.stacked == b.stacked, f"{what}: keys differ", a, b)
    for key in a:
        same_tree(a[key], b[key], f"{what}: {key}")
        require(int(a.counts[key]) == int(b.counts[key]), f"{what}: counts of {key} differ")
        for axis, by_key in a.steps.items():
            require((key in by_key) == (key in b.steps[axis]), f"{what}: steps of {key} differ")
            if key in by_key:
                same_tree(by_key[key], b.steps[axis][key], f"{what}: steps of {key}")


# --- through XLA -----------------------------------------------------------------------------------------------------


def compiled_spool(case: Case) -> None:
    """jit(spool(jit(f))), and then the plain call, which nothing has disturbed."""
    jitted, args = jax.jit(case.f), tuple(map(jnp.asarray, case.args))
    out, logs = jax.jit(lox.spool(jitted, **case.bounds.arguments()))(*args)
    case.check_output(out, case.run, "jit(spool(jit))")
    check_logs(logs, case.uses, case.run.rows, case.bounds, "jit(spool(jit))")
    _check_plain_call(case, jitted)


def compiled_with_options(case: Case) -> None:
    """spool of a function that was jitted with options."""
    options = jit_options(case.one_of("compiled", "placed", "donated", "keep_unused")[0])
    spooled = lox.spool(jax.jit(case.f, **options), **case.bounds.arguments())
    out, logs = spooled(*map(jnp.array, case.args))
    case.check_output(out, case.run, f"spool(jit(f, {options}))")
    check_logs(logs, case.uses, case.run.rows, case.bounds, f"spool(jit(f, {options}))")


def eager_spool(case: Case) -> None:
    """Operation by operation, twice."""
    for _ in range(2):
        args = map(jnp.array, case.args)  # a part of it may donate its argument
        out, logs = lox.spool(case.f, **case.bounds.arguments())(*args)
        case.check_output(out, case.run, "eager spool")
        check_logs(logs, case.uses, case.run.rows, case.bounds, "eager spool")


def compiled_tap(case: Case) -> None:
    """jit(tap(jit(f))), and then the plain call."""
    got: list[lox.logdict] = []
    jitted, args = jax.jit(case.f), tuple(map(jnp.asarray, case.args))
    tapped = jax.jit(lox.tap(jitted, got.append, ordered=case.turn % 2 == 1))
    case.check_output(tapped(*args), case.run, "jit(tap)")
    jax.effects_barrier()
    check_delivered(got, together([case.run]), "jit(tap)", ordered=False)
    _check_plain_call(case, jitted)


def _check_plain_call(case: Case, jitted: Callable[..., Any]) -> None:
    case.sink.clear()
    case.check_output(jitted(*map(jnp.asarray, case.args)), case.run, "jit")
    jax.effects_barrier()
    check_inner_taps(case, case.run)


LAWS: tuple[Callable[[Case], None], ...] = (
    unchanged,
    spool_rows,
    jit_inside,
    reductions,
    bounded,
    lanes_outside,
    lanes_inside,
    devices,
    gradients,
    forwards,
    taps,
    tap_in_control_flow,
    nesting,
    selections,
    sequence,
)

# Each takes longer than all of the above.
COMPILED: tuple[Callable[[Case], None], ...] = (
    compiled_spool,
    compiled_with_options,
    eager_spool,
    compiled_tap,
    compiled_on_devices,
)
