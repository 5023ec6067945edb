"""A program as a JAX function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import lox
from tests.fuzz.program import (
    BOUND,
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

Array = Any
ONE, ZERO = np.float32(1), np.float32(0)


def build(program: Program, sink: list[Any] | None = None) -> Callable[[Array, Array, Array], Any]:
    """``f(x, xs, n)``: a scalar, a vector and a counter. What inner taps deliver goes to ``sink``."""

    def fuzzed(x: Array, xs: Array, n: Array) -> Any:
        scope = Scope([x], [xs], [n], active=x)
        total = Builder([] if sink is None else sink).run(program.body, scope)
        return {"y": total, "v": scope.v[-1]}

    return fuzzed


def bound(x: Array) -> Array:
    """Keeps numbers small, and is the identity for derivatives."""
    return lax.rem(x, np.full(np.shape(x), BOUND, np.float32))


def jit_options(name: str | None) -> dict[str, Any]:
    """What is given to ``jax.jit``."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0]) if name == "placed" else None
    options: dict[str | None, dict[str, Any]] = {
        "inline": {"inline": True},
        "keep_unused": {"keep_unused": True},
        "donated": {"donate_argnums": 0},
        "placed": {"in_shardings": here, "out_shardings": here},
        "compiled": {"compiler_options": {"xla_embed_ir_in_executable": True}},  # of the outermost one alone
    }
    return options.get(name, {})


def add_up(x: Array) -> Array:
    return lax.reduce(x, np.zeros((), x.dtype), lax.add, tuple(range(np.ndim(x))))


def _sites() -> list[Callable[..., Any]]:
    """Calls of ``lox.log`` on different source lines."""
    return [
        lambda *args, **kwargs: lox.log(*args, **kwargs),
        lambda *args, **kwargs: lox.log(*args, **kwargs),
        lambda *args, **kwargs: lox.log(*args, **kwargs),
        lambda *args, **kwargs: lox.log(*args, **kwargs),
    ]


SITES = _sites()


class Builder(Walker):
    def __init__(self, sink: list[Any]) -> None:
        self.sink = sink

    def total(self, scalars: list[Array]) -> Array:
        result = scalars[0]
        for scalar in scalars[1:]:
            result = lax.add(result, scalar)
        return bound(result)

    # --- values --------------------------------------------------------------------------------------------------

    def on_arith(self, s: Arith, scope: Scope) -> None:
        a, b = scope.scalar(s.a), scope.scalar(s.b)
        ops = {"add": lambda: lax.add(a, b), "sub": lambda: lax.sub(a, b), "mul": lambda: lax.mul(a, b)}
        scope.f.append(np.float32(s.b % 7) if s.op == "const" else bound(ops[s.op]()))

    def on_vector(self, s: Vector, scope: Scope) -> None:
        if s.op == "stack":
            pair = [lax.broadcast(scope.scalar(k), (1,)) for k in (s.a, s.b)]
            scope.v.append(lax.concatenate(pair, 0))
        elif s.op == "scale":
            scope.v.append(bound(lax.mul(scope.vector(s.a), lax.broadcast(scope.scalar(s.b), (2,)))))
        else:
            scope.f.append(bound(add_up(scope.vector(s.a))))

    def on_counter(self, s: Counter, scope: Scope) -> None:
        if s.op == "const":
            scope.i.append(np.int32(s.b % 5))
        else:
            scope.i.append(lax.rem(lax.add(scope.counter(s.a), scope.counter(s.b)), np.int32(5)))

    def condition(self, choice: Choice, scope: Scope) -> Array:
        if choice.data:
            return lax.gt(scope.scalar(choice.index), ZERO)
        return lax.eq(lax.rem(scope.counter(choice.index), np.int32(2)), np.int32(1))

    def small(self, choice: Choice, scope: Scope, limit: int) -> Array:
        """A number in [0, limit)."""
        if choice.data:
            number = lax.convert_element_type(lax.abs(scope.scalar(choice.index)), np.int32)
        else:
            number = scope.counter(choice.index)
        return lax.rem(number, np.int32(limit))

    # --- marks ---------------------------------------------------------------------------------------------------

    def on_log(self, s: Log, scope: Scope) -> None:
        data = {key.name(scope.depth): self.value(key, s, scope) for key in s.keys}
        options: dict[str, Any] = {axis: self.step(axis, s, scope) for axis in s.keys[0].axes}
        if s.where is not None:
            options["where"] = self.condition(s.where, scope)
        SITES[s.site % len(SITES)](
            data, tags=s.tags, explicit=s.explicit, prefix=s.prefix, reduce=s.keys[0].reduce, **options
        )

    def step(self, axis: str, s: Log | LogGrad, scope: Scope) -> Array:
        return scope.scalar(s.a + 1) if axis == "time" else scope.counter(s.a)

    def value(self, key: Key, s: Log, scope: Scope) -> Any:
        f, v, i = scope.scalar(s.a), scope.vector(s.a), scope.counter(s.a)
        if key.form == "tree":
            return {"a": f, "b": (v, i)}
        if key.form == "cast":
            return lax.convert_element_type(lax.abs(f), jnp.dtype(s.dtype))
        if key.form == "number":
            return (3, 2.5, True)[key.number % 3]
        return {"f": f, "v": v, "i": i}[key.form]

    def on_loggrad(self, s: LogGrad, scope: Scope) -> None:
        x = lax.add(scope.scalar(s.a), scope.active)
        options: dict[str, Any] = {axis: self.step(axis, s, scope) for axis in s.key.axes}
        if s.where is not None:
            options["where"] = self.condition(s.where, scope)
        scope.f.append(bound(lox.log_grad(x, s.key.name(scope.depth), reduce=s.key.reduce, **options)))

    # --- control flow --------------------------------------------------------------------------------------------

    def on_scan(self, s: Scan, scope: Scope) -> None:
        def body(carry: Array, i: Array) -> Any:
            inner = scope.inner(carry)
            inner.i.append(i)
            out = self.run(s.body, inner)
            return out, out

        x = scope.scalar(s.a)
        if s.via == "fori":
            # Its counter is as wide as a number of Python: 64 bits with x64.
            narrow = lambda i: lax.convert_element_type(i, np.int32)  # noqa: E731
            scope.f.append(lax.fori_loop(0, s.length, lambda i, carry: body(carry, narrow(i))[0], x))
            return
        counters = np.arange(s.length, dtype=np.int32)
        if s.via == "map":
            ys = lax.map(lambda i: body(x, i)[1], counters)
        else:
            last, ys = lax.scan(body, x, counters, reverse=s.reverse, unroll=s.unroll)
            scope.f.append(last)
        scope.f.append(bound(add_up(ys)))

    def on_while(self, s: While, scope: Scope) -> None:
        limit = self.small(s.limit, scope, 4)

        def going(state: Any) -> Array:
            i, carry = state
            if s.test is not None:
                inner = scope.inner(carry)
                inner.i.append(i)
                self.on_log(s.test, inner)
            return lax.lt(i, limit)

        def body(state: Any) -> Any:
            i, carry = state
            inner = scope.inner(carry)
            inner.i.append(i)
            return lax.add(i, np.int32(1)), self.run(s.body, inner)

        scope.f.append(lax.while_loop(going, body, (np.int32(0), scope.scalar(s.a)))[1])

    def on_branch(self, s: Branch, scope: Scope) -> None:
        branches = [lambda x, body=body: self.run(body, scope.inner(x)) for body in s.bodies]
        x = scope.scalar(s.a)
        if len(branches) == 2:
            scope.f.append(lax.cond(self.condition(s.choice, scope), *branches, x))
        else:
            scope.f.append(lax.switch(self.small(s.choice, scope, len(branches)), branches, x))

    # --- calls ---------------------------------------------------------------------------------------------------

    def on_call(self, s: Call, scope: Scope) -> None:
        how, _, policy = s.how.partition(":")
        getattr(self, "call_" + how)(s, scope, *([policy] if policy else []))

    def function(self, s: Call, scope: Scope, *, differentiated: bool = False) -> Callable[[Array], Array]:
        def function(x: Array) -> Array:
            inner = scope.inner(x)
            if differentiated:
                inner.active = x
            return self.run(s.body, inner)

        return function

    def call_jit(self, s: Call, scope: Scope) -> None:
        options = jit_options(dict(s.options).get("jit"))
        scope.f.append(jax.jit(self.function(s, scope), **options)(scope.scalar(s.a)))

    def call_x64(self, s: Call, scope: Scope) -> None:
        with jax.enable_x64(True):
            scope.f.append(self.function(s, scope)(scope.scalar(s.a)))

    def call_checkpoint(self, s: Call, scope: Scope, policy: str = "") -> None:
        chosen = getattr(jax.checkpoint_policies, policy) if policy else None
        scope.f.append(jax.checkpoint(self.function(s, scope), policy=chosen)(scope.scalar(s.a)))

    def isolated(self, s: Call, depth: int) -> Callable[[Array], Array]:
        """A function that closes over nothing."""

        def function(x: Array) -> Array:
            vector = lax.concatenate([lax.broadcast(x, (1,))] * 2, 0)
            return self.run(s.body, Scope([x], [vector], [np.int32(2)], active=x, depth=depth))

        return function

    def call_passive(self, s: Call, scope: Scope) -> None:
        scope.f.append(self.isolated(s, scope.depth)(lax.stop_gradient(scope.scalar(s.a))))

    def call_custom_jvp(self, s: Call, scope: Scope) -> None:
        options = dict(s.options)
        form, rule_key = options.get("form", "plain"), options.get("rule")
        function = self.isolated(s, scope.depth)
        if form == "own":
            y = function(lax.add(scope.scalar(s.a), scope.active))
            scope.f.append(bound(self.linear(y, scope.depth)))
            return

        # `unused` has no tangent: JAX hands a rule an array of zeros for it, or a symbol if the rule asks for it.
        @jax.custom_jvp
        def call(x: Array, unused: Array) -> Array:
            return function(x)

        def rule(primals: Any, tangents: Any) -> Any:
            y = call(*primals) if form == "linear" else function(primals[0])
            if rule_key is not None:
                lox.log({rule_key.name(scope.depth): y})
            if form == "marked":
                lox.log({TANGENT.name(scope.depth): tangents[0]})
            return y, self.tangent(form, tangents, scope.depth)

        call.defjvp(rule, symbolic_zeros=form == "symbolic")
        scope.f.append(call(lax.add(scope.scalar(s.a), scope.active), np.float32(2)))

    def tangent(self, form: str, tangents: Any, depth: int) -> Array:
        tangent, zero = tangents
        if form == "symbolic":
            assert isinstance(zero, jax.custom_derivatives.SymbolicZero)
        if form == "zeros":
            tangent = lax.add(tangent, lax.mul(np.float32(5), zero))
        if form == "linear":
            return self.linear(tangent, depth)
        return lax.mul(np.float32(3), tangent)

    def linear(self, x: Array, depth: int) -> Array:
        """A function with a mark in it, whose rule calls it on tangents."""

        @jax.custom_jvp
        def linear(x: Array) -> Array:
            lox.log({TANGENT.name(depth): x})
            return lax.mul(np.float32(3), x)

        linear.defjvp(lambda primals, tangents: (linear(*primals), linear(*tangents)))
        return linear(x)

    def call_custom_vjp(self, s: Call, scope: Scope) -> None:
        function = self.isolated(s, scope.depth)
        call = jax.custom_vjp(function)
        rule_key = dict(s.options).get("rule")

        def backward(x: Array, cotangent: Array) -> Any:
            if rule_key is not None:
                lox.log({rule_key.name(scope.depth): cotangent})
            return (lax.mul(np.float32(2), cotangent),)

        call.defvjp(lambda x: (function(x), x), backward)
        scope.f.append(call(lax.add(scope.scalar(s.a), scope.active)))

    def call_grad(self, s: Call, scope: Scope) -> None:
        scope.f.append(bound(jax.grad(self.function(s, scope, differentiated=True))(scope.scalar(s.a))))

    def call_value_and_grad(self, s: Call, scope: Scope) -> None:
        y, gradient = jax.value_and_grad(self.function(s, scope, differentiated=True))(scope.scalar(s.a))
        scope.f += [y, bound(gradient)]

    def call_vjp(self, s: Call, scope: Scope) -> None:
        y, pullback = jax.vjp(self.function(s, scope, differentiated=True), scope.scalar(s.a))
        scope.f += [y, bound(pullback(ONE)[0])]

    def call_linearize(self, s: Call, scope: Scope) -> None:
        y, pushforward = jax.linearize(self.function(s, scope, differentiated=True), scope.scalar(s.a))
        scope.f += [y, bound(pushforward(np.float32(2)))]

    def call_jvp(self, s: Call, scope: Scope) -> None:
        function = self.function(s, scope, differentiated=True)
        y, tangent = jax.jvp(function, (scope.scalar(s.a),), (np.float32(2),))
        scope.f += [y, bound(tangent)]

    def call_vmap(self, s: Call, scope: Scope) -> None:
        def function(x: Array) -> Array:
            # What rules get differs between the lanes: JAX adds up the cotangents of what does not.
            inner = scope.inner(x, depth=scope.depth + 1, active=lax.add(x, scope.active))
            return self.run(s.body, inner)

        scope.v.append(jax.vmap(function)(scope.vector(s.a)))
        scope.f.append(bound(add_up(scope.v[-1])))

    def call_spool(self, s: Call, scope: Scope) -> None:
        def function(x: Array) -> Array:
            return self.run(s.body, scope.inner(x, depth=0))

        y, logs = lox.spool(function, **dict(s.options))(scope.scalar(s.a))
        scope.f += [y, digest(logs)]

    def call_tap(self, s: Call, scope: Scope) -> None:
        def function(x: Array) -> Array:
            return self.run(s.body, scope.inner(x))

        scope.f.append(lox.tap(function, self.sink.append, **dict(s.options))(scope.scalar(s.a)))

    def call_nolog(self, s: Call, scope: Scope) -> None:
        scope.f.append(lox.nolog(self.function(s, scope))(scope.scalar(s.a)))


def digest(logs: lox.logdict) -> Array:
    """A number that depends on every row of the logs, and on their order."""
    total = np.int32(0)
    for key in logs:
        steps = [by_key[key] for by_key in logs.steps.values() if key in by_key]
        for leaf in (*jax.tree.leaves(logs[key]), *steps):
            rows = lax.real(leaf) if jnp.iscomplexobj(leaf) else leaf
            numbers = lax.convert_element_type(lax.reshape(rows, (leaf.size,)), np.int32)
            total = lax.add(total, add_up(lax.mul(numbers, np.arange(1, leaf.size + 1, dtype=np.int32))))
        total = lax.add(total, lax.convert_element_type(logs.counts[key], np.int32))
    return lax.convert_element_type(lax.rem(total, np.int32(13)), np.float32)
