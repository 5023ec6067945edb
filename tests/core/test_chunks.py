"""`tap` with `interval=` and `batch=`, built as for a GPU: what loops send after chunks is what they would send at once."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._host.delivery import Receiver
from tests.core.checks import assert_close, plain
from tests.core.test_order import built_for
from tests.corpus import LANES, PROGRAMS, X

# Seven calls of a program, as iterations of a loop.
CALLS = jnp.asarray(np.concatenate([LANES, LANES + 0.25, LANES[:1]]))


def in_a_loop(f):
    return lambda xs: jax.lax.map(f, xs).sum()


def in_branches(f):
    return lambda xs: jax.lax.map(lambda x: jax.lax.cond(x[0] > 0.5, f, lambda x: x[0], x), xs).sum()


def in_loops(f):
    def both(x):
        return f(x) + in_a_loop(f)(CALLS[:3])

    return lambda xs: jax.lax.map(both, xs).sum()


# Each has a function around the tap, one inside it, and the arguments.
PLACES = {
    "alone": (lambda tap: tap, lambda f: f, X),
    "in a loop": (lambda tap: tap, in_a_loop, CALLS),
    "in branches in a loop": (lambda tap: tap, in_branches, CALLS),
    "in a loop and a loop in it": (lambda tap: tap, in_loops, CALLS[:4]),
    "lanes": (jax.vmap, lambda f: f, LANES),
    "a loop in lanes": (jax.vmap, in_a_loop, jnp.stack([CALLS, -CALLS])),
    "branches in a loop in lanes": (jax.vmap, in_branches, jnp.stack([CALLS, -CALLS])),
    "gradient": (jax.grad, in_a_loop, CALLS),
    "of a gradient": (lambda tap: tap, lambda f: lambda xs: jax.grad(in_a_loop(f))(xs).sum(), CALLS),
    "a tap in a loop": (in_a_loop, lambda f: f, CALLS),
}
OPTIONS = [{"interval": 2}, {"interval": 3}, {"interval": 16}, {"batch": 2}, {"batch": 4, "interval": 2}, {"batch": 64}]


def received_by(platform, around, fun, args, **options):
    """The result of a tapped program, and the records of each lane in the order in which they arrive."""
    records = {}

    def handle(delivery):
        for lane, logs in delivery.split():
            records.setdefault(int(lane), []).append(logs.trim())

    def tapped(x):
        # The sum of its inputs tells lanes apart.
        return lox.tap(fun, Receiver(handle, jnp.round(x.sum() * 100).astype(int)), **options)(x)

    with built_for(platform):
        out = jax.jit(around(tapped))(jnp.asarray(args))
        jax.effects_barrier()
    return out, records


def rows_of(records):
    """The rows of each key, sorted: batches keep the order of each call of `lox.log` only."""
    rows = {}
    for logs in records:
        for key in logs:
            columns = [*jax.tree.leaves(logs[key]), *(steps[key] for steps in logs.steps.values() if key in steps)]
            for row in zip(*map(plain, columns), strict=True):
                rows.setdefault(key, []).append([np.round(np.asarray(each, complex), 3) for each in row])
    return {key: sorted(found, key=repr) for key, found in rows.items()}


# Each program is in two of the places; at night, in all, each time with other options.
CASES = [
    pytest.param(program, place, options, id=f"{program.name}-{place}-{options}")
    for i, program in enumerate(PROGRAMS)
    for j, (place, options) in enumerate((place, options) for place in PLACES for options in OPTIONS)
    if (i + 7 * j) % (6 if os.environ.get("LOX_TEST_EVERY") == "1" else 30) == 0
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("program", "place", "options"), CASES)
def test_what_is_sent_after_chunks_is_what_is_sent_at_once(program, place, options):
    around, inside, args = PLACES[place]
    if "gradient" in place and not program.differentiable:
        pytest.skip("it cannot be differentiated")
    fun = inside(program.fun)
    (out, expected), (same, found) = (received_by(p, around, fun, args, **options) for p in ("cpu", "cuda"))
    assert_close(same, out)
    assert sorted(found) == sorted(expected)
    for lane, records in expected.items():
        if "batch" in options:
            assert_close(rows_of(found[lane]), rows_of(records))
            assert all(len(leaf) <= options["batch"] for logs in found[lane] for leaf in jax.tree.leaves(dict(logs)))
        else:
            assert [list(logs) for logs in found[lane]] == [list(logs) for logs in records]
            assert_close(
                [(dict(logs), logs.steps) for logs in found[lane]], [(dict(logs), logs.steps) for logs in records]
            )
