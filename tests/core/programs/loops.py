"""Loops: scan in all its forms, fori_loop, map, associative_scan, while_loop."""

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.core.programs._program import Corpus, running_sums

corpus = Corpus()


def _accumulate(carry, v):
    carry = carry + v
    lox.log({"carry": carry})
    return carry, carry * v


@corpus(lambda x: {"x": x, "carry": running_sums(x)})
def scan(x):
    lox.log({"x": x})
    carry, ys = jax.lax.scan(_accumulate, 0.0, x)
    return carry + ys.sum()


@corpus(lambda x: {"carry": running_sums(x[::-1])})
def scan_reversed(x):
    carry, ys = jax.lax.scan(_accumulate, 0.0, x, reverse=True)
    return carry + (ys * x).sum()


@corpus(lambda x: {"carry": running_sums(x)})
def scan_unrolled_in_part(x):
    carry, ys = jax.lax.scan(_accumulate, 0.0, x, unroll=2)
    return carry + ys.sum()


@corpus(lambda x: {"carry": running_sums(x)})
def scan_unrolled(x):
    carry, ys = jax.lax.scan(_accumulate, 0.0, x, unroll=True)
    return carry + ys.sum()


@corpus(lambda x: {"carry": []})
def scan_of_length_0(x):
    carry, ys = jax.lax.scan(_accumulate, 0.0, x[:0])
    return carry + ys.sum() + x.sum()


@corpus(lambda x: {"carry": [x[0]]})
def scan_of_length_1(x):
    carry, ys = jax.lax.scan(_accumulate, 0.0, x[:1])
    return carry + ys.sum()


@corpus(lambda x: {"v": [x[0] * 2**i for i in range(4)]})
def scan_without_inputs(x):
    def body(v, _):
        lox.log({"v": v})
        return 2 * v, None

    return jax.lax.scan(body, x[0], None, length=4)[0]


@corpus(
    lambda x: {"a": [w for v in x for w in (v, 2 * v)], "b": [-v for v in x]},
    steps=lambda x: {"step": {"b": [0, 1, 2]}, "epoch": {"b": [0, 0, 1]}},
)
def scan_with_several_calls(x):
    def body(i, v):
        lox.log({"a": v})
        lox.log({"b": -v}, step=i, epoch=i // 2)
        lox.log({"a": 2 * v})
        return i + 1, v * v

    return jax.lax.scan(body, 0, x)[1].sum()


@corpus(lambda x: {"p": {"sum": running_sums(x), "vector": [x * v for v in x]}, "n": list(range(3))})
def scan_of_pytrees_and_dtypes(x):
    def body(carry, v):
        total, n = carry
        lox.log({"p": {"sum": total + v, "vector": x * v}, "n": n})
        return (total + v, n + jnp.uint8(1)), v

    return jax.lax.scan(body, (0.0, jnp.uint8(0)), x)[0][0]


@corpus(
    lambda x: {"inner": [v * w for v in x for w in x], "outer": list(x), "flat": [v for v in x for _ in x]},
    steps=lambda x: {"i": {"inner": np.repeat(range(3), 3).tolist()}, "j": {"inner": list(range(3)) * 3}},
)
def nested_scans(x):
    def outer(i, v):
        def inner(j, w):
            lox.log({"inner": v * w}, i=i, j=j)
            lox.log({"flat": v})
            return j + 1, v * w

        lox.log({"outer": v})
        return i + 1, jax.lax.scan(inner, 0, x)[1].sum()

    return jax.lax.scan(outer, 0, x)[1].sum()


@corpus(lambda x: {"inner": [v * w for v in x[::-1] for w in x[::-1]]})
def nested_reversed_scans(x):
    def outer(total, v):
        def inner(total, w):
            lox.log({"inner": v * w})
            return total + v * w, None

        return jax.lax.scan(inner, total, x, reverse=True)[0], None

    return jax.lax.scan(outer, 0.0, x, reverse=True)[0]


@corpus(lambda x: {"before": x[0], "v": [*x, *(x + 1)], "after": x[2]})
def loops_in_sequence_share_a_key(x):
    def body(total, v):
        lox.log({"v": v})
        return total + v, None

    lox.log({"before": x[0]})
    total, _ = jax.lax.scan(body, 0.0, x)
    total, _ = jax.lax.scan(body, total, x + 1)
    lox.log({"after": x[2]})
    return total


@corpus(lambda x: {"v": [x[0], *x, x[2]]})
def key_inside_and_outside_a_loop(x):
    lox.log({"v": x[0]})
    total, _ = jax.lax.scan(lambda total, v: (total + lox.log({"v": v})["v"], None), 0.0, x)
    lox.log({"v": x[2]})
    return total


@corpus(lambda x: {"sum": running_sums(x)}, steps=lambda x: {"step": {"sum": [0, 1, 2]}, "episode": {"sum": [0, 0, 1]}})
def fori_loop_with_static_bounds(x):
    def body(i, total):
        total = total + x[i]
        lox.log({"sum": total}, step=i, episode=i // 2)
        return total

    return jax.lax.fori_loop(0, 3, body, 0.0)


@corpus(lambda x: {"v": [2 * v for v in x]})
def map_over_an_axis(x):
    return jax.lax.map(lambda v: lox.log({"v": 2 * v})["v"], x).sum()


@corpus(lambda x: {"v": [2 * x[:2], 2 * x[1:]]})
def map_over_pairs(x):
    return jax.lax.map(lambda v: lox.log({"v": 2 * v})["v"], jnp.stack([x[:2], x[1:]])).sum()


@corpus(lambda x: {"pairs": [x[0] + x[1] + 0 * x[2], (x[0] + x[1]) + x[2]]})
def associative_scan(x):
    def combine(a, b):
        lox.log({"pairs": (a + b).sum()})
        return a + b

    return jax.lax.associative_scan(combine, x)[-1]


@corpus(lambda x: {"big": [v for v in x if v > 0]}, bounded=True, batched_control=True)
def conditions_in_a_scan(x):
    def body(total, v):
        lox.log({"big": v}, where=v > 0)
        return total + v, None

    return jax.lax.scan(body, 0.0, x)[0]


def _halvings(x):
    """What the loops below do: halve until the value is at most 1."""
    values = [np.float32(abs(x).sum())]
    while values[-1] > 1:
        values.append(np.float32(values[-1] / 2))
    return values


@corpus(lambda x: {"v": _halvings(x)[:-1]}, dynamic=True, differentiable=False)
def while_loop(x):
    def body(v):
        lox.log({"v": v})
        return v / 2

    return jax.lax.while_loop(lambda v: v > 1, body, jnp.abs(x).sum())


@corpus(lambda x: {"asked": _halvings(x)}, dynamic=True, differentiable=False)
def while_loop_with_a_mark_in_its_condition(x):
    def going(v):
        lox.log({"asked": v})
        return v > 1

    return jax.lax.while_loop(going, lambda v: v / 2, jnp.abs(x).sum())


@corpus(
    lambda x: {"sum": running_sums(x)[: 1 + int(x[0] > 0)]},
    steps=lambda x: {"step": {"sum": list(range(1 + int(x[0] > 0)))}},
    dynamic=True,
    differentiable=False,
)
def fori_loop_with_dynamic_bounds(x):
    def body(i, total):
        total = total + x[i]
        lox.log({"sum": total}, step=i)
        return total

    return jax.lax.fori_loop(0, 1 + (x[0] > 0).astype(jnp.int32), body, 0.0)


@corpus(
    lambda x: {
        "v": [h for u in x for h in _halvings(np.array([u]))[:-1]],
        "end": [_halvings(np.array([u]))[-1] for u in x],
    },
    dynamic=True,
    differentiable=False,
)
def while_loop_in_a_scan(x):
    def outer(total, u):
        def body(v):
            lox.log({"v": v})
            return v / 2

        end = jax.lax.while_loop(lambda v: v > 1, body, jnp.abs(u))
        lox.log({"end": end})
        return total + end, None

    return jax.lax.scan(outer, 0.0, x)[0]


@corpus(
    lambda x: {"w": [h * w for h in _halvings(x)[:-1] for w in x]},
    dynamic=True,
    differentiable=False,
)
def scan_in_a_while_loop(x):
    def body(v):
        def inner(total, w):
            lox.log({"w": v * w})
            return total + w, None

        return v / 2 + 0 * jax.lax.scan(inner, 0.0, x)[0]

    return jax.lax.while_loop(lambda v: v > 1, body, jnp.abs(x).sum())


@corpus(lambda x: {"n": list(range(3))}, dynamic=True, differentiable=False)
def while_loop_with_the_same_predicate_in_all_lanes(x):
    def body(carry):
        n, total = carry
        lox.log({"n": n})
        return n + 1, total + x[n]

    return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, 0.0))[1]
