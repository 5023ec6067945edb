"""A program as plain Python: what it computes, and its records in the order in which they happen. No JAX here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.fuzz import autodiff
from tests.fuzz.program import (
    BOUND,
    LANES,
    TANGENT,
    Arith,
    Branch,
    Call,
    Choice,
    Counter,
    Key,
    Log,
    LogGrad,
    Program,
    Scan,
    Scope,
    Vector,
    Walker,
    While,
)

bound = autodiff.remainder(BOUND)


class Inexact(Exception):
    """A number became too large for exact float32 arithmetic: the program says nothing."""


@dataclasses.dataclass(frozen=True)
class Row:
    key: str
    value: Any  # numbers, tuples and dicts
    steps: dict[str, float]
    tags: tuple[str, ...] = ()
    explicit: bool = False
    lanes: tuple[int, ...] = ()  # the vmaps around it, outermost first


@dataclasses.dataclass(frozen=True)
class Tap:
    """One run of a tap inside the program."""

    number: int
    options: tuple[tuple[str, Any], ...]
    explicit_only: bool = False  # a spool inside it consumes the rest
    depth: int = 0  # how many vmaps are around it


@dataclasses.dataclass
class Run:
    result: Any
    rows: list[Row]
    tapped: list[tuple[Tap, Row]]
    gradient: Any = None


def execute(program: Program, x: float, xs: tuple[float, float], n: int, *, differentiate: bool = False) -> Run:
    """Run a program; ``differentiate`` runs the gradient of its result with respect to ``x`` instead."""
    oracle = Oracle()
    returned: list[Any] = []

    def function(x: Any) -> Any:
        scope = Scope([x], [xs], [n], active=x)
        y = oracle.run(program.body, scope)
        returned.append({"y": autodiff.number(y), "v": plain(scope.v[-1])})
        return y

    gradient = None
    if differentiate:
        gradient = autodiff.number(oracle.differentiate(function, x)[1])
    else:
        function(x)
    return Run(returned[0], oracle.rows, oracle.tapped, gradient)


def plain(value: Any) -> Any:
    """Without tapes."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return autodiff.number(value)


class Oracle(Walker):
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.tapped: list[tuple[Tap, Row]] = []
        self.lanes: tuple[int, ...] = ()
        self.differentiate = autodiff.Differentiation()
        self.taps: list[Tap] = []
        self.tap_calls = 0

    def total(self, scalars: list[Any]) -> Any:
        result = 0.0
        for scalar in scalars:
            result = autodiff.add(result, scalar)
        return bound(result)

    # --- values --------------------------------------------------------------------------------------------------

    def on_arith(self, s: Arith, scope: Scope) -> None:
        if s.op == "const":
            scope.f.append(float(s.b % 7))
        else:
            scope.f.append(bound(getattr(autodiff, s.op)(scope.scalar(s.a), scope.scalar(s.b))))

    def on_vector(self, s: Vector, scope: Scope) -> None:
        if s.op == "stack":
            scope.v.append((scope.scalar(s.a), scope.scalar(s.b)))
        elif s.op == "scale":
            factor = scope.scalar(s.b)
            scope.v.append(tuple(bound(autodiff.mul(part, factor)) for part in scope.vector(s.a)))
        else:
            scope.f.append(bound(autodiff.add(*scope.vector(s.a))))

    def on_counter(self, s: Counter, scope: Scope) -> None:
        scope.i.append(s.b % 5 if s.op == "const" else (scope.counter(s.a) + scope.counter(s.b)) % 5)

    def condition(self, choice: Choice, scope: Scope) -> bool:
        if choice.data:
            return autodiff.number(scope.scalar(choice.index)) > 0
        return scope.counter(choice.index) % 2 == 1

    def small(self, choice: Choice, scope: Scope, limit: int) -> int:
        if choice.data:
            return int(abs(autodiff.number(scope.scalar(choice.index)))) % limit
        return scope.counter(choice.index) % limit

    # --- marks ---------------------------------------------------------------------------------------------------

    def record(self, row: Row) -> None:
        row = dataclasses.replace(row, value=plain(row.value), lanes=self.lanes)
        check_exact(row.value)
        self.rows.append(row)
        for tap in self.taps:
            if not tap.explicit_only or row.explicit:
                self.tapped.append((tap, dataclasses.replace(row, lanes=row.lanes[tap.depth :])))

    def on_log(self, s: Log, scope: Scope) -> None:
        if s.where is not None and not self.condition(s.where, scope):
            return
        steps = {axis: autodiff.number(self.step(axis, s, scope)) for axis in s.keys[0].axes}
        for key in s.keys:
            name = s.prefix + key.name(scope.depth)
            self.record(Row(name, self.value(key, s, scope), steps, s.tags, s.explicit))

    def step(self, axis: str, s: Log | LogGrad, scope: Scope) -> Any:
        return scope.scalar(s.a + 1) if axis == "time" else scope.counter(s.a)

    def value(self, key: Key, s: Log, scope: Scope) -> Any:
        f, v, i = scope.scalar(s.a), scope.vector(s.a), scope.counter(s.a)
        if key.form == "tree":
            return {"a": f, "b": (v, i)}
        if key.form == "cast":
            size = abs(autodiff.number(f))
            return float(bool(size)) if s.dtype == "bool" else size
        if key.form == "number":
            return (3, 2.5, True)[key.number % 3]
        return {"f": f, "v": v, "i": i}[key.form]

    def on_loggrad(self, s: LogGrad, scope: Scope) -> None:
        x = autodiff.add(scope.scalar(s.a), scope.active)
        name = s.key.name(scope.depth)
        lanes = self.lanes
        # Both belong to the forward pass: the record is made later, at the steps and under the condition of now.
        steps = {axis: autodiff.number(self.step(axis, s, scope)) for axis in s.key.axes}
        wanted = s.where is None or self.condition(s.where, scope)

        def pullback(cotangent: Any) -> Any:
            if wanted:
                self.record_backward(Row(name, cotangent, steps), lanes)
            return cotangent

        scope.f.append(bound(autodiff.custom(x, lambda x: x, pullback)))

    def record_backward(self, row: Row, lanes: tuple[int, ...]) -> None:
        """A record of the backward pass, in the lane of its forward pass."""
        now, self.lanes = self.lanes, lanes
        if not self.silent:
            self.record(row)
        self.lanes = now

    silent = False

    # --- control flow --------------------------------------------------------------------------------------------

    def iterate(self, body: Any, scope: Scope, carry: Any, i: int) -> Any:
        inner = scope.inner(carry)
        inner.i.append(i)
        return self.run(body, inner)

    def on_scan(self, s: Scan, scope: Scope) -> None:
        x = scope.scalar(s.a)
        carry, total = x, 0.0
        for i in reversed(range(s.length)) if s.reverse and s.via == "scan" else range(s.length):
            out = self.iterate(s.body, scope, x if s.via == "map" else carry, i)
            carry, total = out, autodiff.add(total, out)
        if s.via != "map":
            scope.f.append(carry)
        if s.via != "fori":
            scope.f.append(bound(total))

    def on_while(self, s: While, scope: Scope) -> None:
        limit, i, carry = self.small(s.limit, scope, 4), 0, scope.scalar(s.a)
        while True:
            if s.test is not None:
                inner = scope.inner(carry)
                inner.i.append(i)
                self.on_log(s.test, inner)
            if not i < limit:
                break
            carry = self.iterate(s.body, scope, carry, i)
            i += 1
        scope.f.append(carry)

    def on_branch(self, s: Branch, scope: Scope) -> None:
        if len(s.bodies) == 2:
            body = s.bodies[0 if self.condition(s.choice, scope) else 1]
        else:
            body = s.bodies[self.small(s.choice, scope, len(s.bodies))]
        scope.f.append(self.run(body, scope.inner(scope.scalar(s.a))))

    # --- calls ---------------------------------------------------------------------------------------------------

    def on_call(self, s: Call, scope: Scope) -> None:
        getattr(self, "call_" + s.how.partition(":")[0])(s, scope)

    def call_jit(self, s: Call, scope: Scope) -> None:
        scope.f.append(self.run(s.body, scope.inner(scope.scalar(s.a))))

    call_checkpoint = call_x64 = call_jit

    def isolated(self, s: Call, depth: int) -> Callable[[Any], Any]:
        return lambda x: self.run(s.body, Scope([x], [(x, x)], [2], active=x, depth=depth))

    def call_passive(self, s: Call, scope: Scope) -> None:
        scope.f.append(self.isolated(s, scope.depth)(autodiff.number(scope.scalar(s.a))))

    def call_custom_jvp(self, s: Call, scope: Scope) -> None:
        function = self.isolated(s, scope.depth)
        x = autodiff.add(scope.scalar(s.a), scope.active)
        rule_key = dict(s.options).get("rule")
        if dict(s.options).get("form") == "own":
            y = function(x)
            self.record(Row(TANGENT.name(scope.depth), y, {}))
            scope.f.append(bound(autodiff.mul(y, 3.0)))
            return
        active = autodiff.innermost(x) is not None

        def forward(x: Any) -> Any:
            y = function(x)
            if active and rule_key is not None:
                self.record(Row(rule_key.name(scope.depth), y, {}))
            return y

        scope.f.append(autodiff.custom(x, forward, lambda ct: autodiff.mul(ct, 3.0)))

    def call_custom_vjp(self, s: Call, scope: Scope) -> None:
        function = self.isolated(s, scope.depth)
        x = autodiff.add(scope.scalar(s.a), scope.active)
        rule_key = dict(s.options).get("rule")
        lanes = self.lanes

        def pullback(cotangent: Any) -> Any:
            if rule_key is not None:
                self.record_backward(Row(rule_key.name(scope.depth), cotangent, {}), lanes)
            return autodiff.mul(cotangent, 2.0)

        scope.f.append(autodiff.custom(x, function, pullback))

    def differentiated(self, s: Call, scope: Scope) -> tuple[Any, Any]:
        def function(x: Any) -> Any:
            inner = scope.inner(x)
            inner.active = x
            return self.run(s.body, inner)

        y, gradient = self.differentiate(function, scope.scalar(s.a))
        check_exact(plain(gradient))
        return y, gradient

    def call_grad(self, s: Call, scope: Scope) -> None:
        scope.f.append(bound(self.differentiated(s, scope)[1]))

    def call_value_and_grad(self, s: Call, scope: Scope) -> None:
        y, gradient = self.differentiated(s, scope)
        scope.f += [y, bound(gradient)]

    call_vjp = call_value_and_grad

    def call_jvp(self, s: Call, scope: Scope) -> None:
        before, self.silent = self.silent, True  # a derivative forwards has no backward pass
        y, gradient = self.differentiated(s, scope)
        self.silent = before
        scope.f += [y, bound(autodiff.mul(gradient, 2.0))]

    call_linearize = call_jvp

    def call_vmap(self, s: Call, scope: Scope) -> None:
        outside, results = self.lanes, []
        for lane in range(LANES):
            self.lanes = (*outside, lane)
            x = scope.vector(s.a)[lane]
            active = autodiff.add(x, scope.active)
            results.append(self.run(s.body, scope.inner(x, depth=scope.depth + 1, active=active)))
        self.lanes = outside
        scope.v.append(tuple(results))
        scope.f.append(bound(autodiff.add(*results)))

    def call_spool(self, s: Call, scope: Scope) -> None:
        from tests.fuzz.expect import digest_expected

        options = dict(s.options)
        keep = options.pop("keep_logs", False)
        outside = self.rows, self.lanes, self.taps
        self.rows, self.lanes = [], ()
        if not keep:
            self.taps = [dataclasses.replace(tap, explicit_only=True) for tap in self.taps]
        y = self.run(s.body, scope.inner(scope.scalar(s.a), depth=0))
        inner = self.rows
        self.rows, self.lanes, self.taps = outside
        # What is not selected stays in the program, for whoever is outside.
        self.rows += inner if keep else [row for row in inner if row.explicit]
        scope.f += [y, digest_expected(s.body, inner, options)]

    def call_tap(self, s: Call, scope: Scope) -> None:
        self.tap_calls += 1
        outside = self.taps
        self.taps = [*outside, Tap(self.tap_calls, s.options, depth=len(self.lanes))]
        y = self.run(s.body, scope.inner(scope.scalar(s.a)))
        self.taps = outside
        scope.f.append(y)

    def call_nolog(self, s: Call, scope: Scope) -> None:
        outside = self.rows, self.taps
        self.rows, self.taps = [], []
        y = self.run(s.body, scope.inner(scope.scalar(s.a)))
        self.rows, self.taps = outside
        scope.f.append(y)


def check_exact(value: Any) -> None:
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ():
        check_exact(part)
    if isinstance(value, (int, float)) and abs(value) > 2**20:
        raise Inexact
