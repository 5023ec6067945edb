"""JAX's next generation, behind flags: ``jax.checkpoint``, derivative rules and ``scan`` as objects with rules of their own.

``LOX_TEST_JAX_FLAGS=jax_remat3,jax_custom_jvp3,jax_custom_vjp3`` runs any test with them. Here are the laws that they
could break, in little.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import assert_close, assert_logs_are, assert_logs_equal, tapped
from tests.core.seam.in_process import run
from tests.corpus import LANES, PROGRAMS, X

FLAGS = [flag for flag in ("jax_remat3", "jax_custom_jvp3", "jax_custom_vjp3") if hasattr(jax.config, flag)]
ARGUMENT = jnp.asarray(X)

SETTLED = jax.__version_info__ >= (0, 11)

pytestmark = [
    pytest.mark.skipif(not FLAGS, reason="this JAX has no such flags"),
    pytest.mark.usefixtures("quick_compilation"),
]
settled = pytest.mark.skipif(not SETTLED, reason="what is behind the flags is another thing in this JAX")


@pytest.fixture
def set_flags():
    """Set flags for the time of a test, which begins without any."""
    before = {flag: getattr(jax.config, flag) for flag in (*FLAGS, "jax_scan3") if hasattr(jax.config, flag)}
    for flag in before:
        jax.config.update(flag, False)
    yield lambda flags: [jax.config.update(flag, True) for flag in flags]
    for flag, value in before.items():
        jax.config.update(flag, value)


NAMES = [
    "checkpoint",
    "checkpoint_that_saves_names",
    "checkpoint_that_saves_everything",
    "scan_of_a_checkpoint",
    "checkpoint_of_a_scan",
    "custom_jvp",
    "custom_jvp_with_a_constant_record",
    "custom_jvp_with_symbolic_zeros_and_static_arguments",
    "custom_vjp",
    "custom_vjp_with_a_mark_in_its_backward_rule",
    "custom_vjp_with_symbolic_zeros_and_static_arguments",
    "custom_vjp_in_a_scan",
    "invariants_of_a_checkpointed_scan_in_functions_with_custom_vjp",
]


def cases():
    """Each program with all flags, and with the one that it is about."""
    about = {"jax_remat3": "checkpoint", "jax_custom_jvp3": "jvp", "jax_custom_vjp3": "vjp"}
    for program in PROGRAMS:
        if program.name in NAMES:
            yield program, tuple(FLAGS)
            yield from ((program, (flag,)) for flag in FLAGS if about[flag] in program.name)


@settled
@pytest.mark.parametrize(
    ("program", "flags"), list(cases()), ids=lambda value: value if isinstance(value, str) else str(value)
)
def test_each_mark_is_recorded_once(program, flags, set_flags):
    set_flags(flags)
    plain, logs = jax.jit(lox.spool(program.fun))(ARGUMENT)
    assert_close(plain, jax.jit(program.fun)(ARGUMENT))
    assert_logs_are(logs, program.expected(X))
    gradient, inside = jax.jit(jax.grad(lox.spool(program.fun), has_aux=True))(ARGUMENT)
    assert_logs_equal(inside, logs)
    assert_logs_equal(jax.grad(jax.jit(lox.spool(program.fun)), has_aux=True)(ARGUMENT)[1], logs)
    same_gradient, outside = lox.spool(jax.jit(jax.grad(program.fun)))(ARGUMENT)
    assert_close(same_gradient, gradient)
    backward = program.backward(X) if program.backward else {}
    assert_logs_equal(outside.filter(lambda key: key not in backward), logs)
    assert set(backward) <= set(outside)
    _, received = tapped(jax.jit(jax.grad(program.fun)), ARGUMENT)
    counts = {key: sum(key in each for each in received) for key in logs}
    assert counts == {key: int(logs.counts[key]) for key in logs}
    lanes = jax.eval_shape(jax.vmap(lox.spool(program.fun)), LANES)[1]
    assert list(lanes) == list(logs)


@pytest.mark.skipif(SETTLED, reason="they are known to lox in this JAX")
@pytest.mark.parametrize("flag", FLAGS)
def test_where_the_flags_are_a_sketch_marks_behind_them_are_refused(flag, set_flags):
    names = {"jax_remat3": "checkpoint", "jax_custom_vjp3": "custom_vjp", "jax_custom_jvp3": "custom_jvp"}
    (program,) = (program for program in PROGRAMS if program.name == names[flag])
    set_flags([flag])
    for transform in (lox.spool, lox.tap):
        with pytest.raises(lox.LoxError, match="a primitive that lox does not know"):
            jax.jit(transform(program.fun))(ARGUMENT)


def layers(x):
    """A checkpoint with functions that bring a jvp rule and a vjp rule."""

    @jax.custom_jvp
    def inner(x):
        with jax.named_scope("deep"):
            y = jnp.log(x)
        return y * 2

    @jax.custom_vjp
    def outer(x):
        return jnp.sqrt(x)

    inner.defjvp(lambda primals, tangents: (2 * jnp.log(primals[0]), 2 * tangents[0] / primals[0]))
    outer.defvjp(lambda x: (outer(x), x), lambda x, ct: (ct / jnp.log(x),))
    return jax.checkpoint(lambda x: outer(x) + inner(x))(x).sum()


def steps(x):
    return jax.lax.scan(lambda c, v: (jnp.log(c - v), c), 3.0, x)[0]


def seen_inside(fun, x):
    """What can be probed, what is, and where a nan or an inf arises."""
    _, probed = lox.spool(lox.probe(fun, functions=True, scopes=True, loops=True, primitives="log"))(x)
    keys = [one.key for one in lox.probe(fun).found(x)]
    reports = [lox.find_nonfinite(fun)(arg)[1] for arg in (x, -x)]
    return [str(part) for part in (probed, probed.steps, keys, *reports)]


def in_lanes(fun):
    return lambda x: jax.vmap(fun)(jnp.stack([x, x + 1])).sum()


@settled
@pytest.mark.parametrize("fun", [layers, jax.jit(layers), in_lanes(layers), steps], ids=["f", "jit", "vmap", "scan"])
def test_probe_and_find_nonfinite_see_what_they_see_without_the_flags(fun, set_flags):
    x = jnp.array([1.5, 2.0])
    expected = seen_inside(fun, x)
    set_flags(["jax_scan3"] if fun is steps else FLAGS)
    jax.clear_caches()
    found = seen_inside(fun, x)
    # JAX gives lines inside of a function with the flags, and those of the call without them.
    assert [re.sub(r" at \S+;", "", part) for part in found] == [re.sub(r" at \S+;", "", part) for part in expected]


@settled
def test_probe_and_find_nonfinite_enter_derivative_rules(set_flags):
    set_flags(FLAGS)
    x = jnp.array([1.5, 1.0])
    _, logs = lox.spool(lox.probe(jax.grad(layers), primitives="log"))(x)
    assert {key.rpartition("/")[0] for key in logs} == {"inner/deep", "backward"}
    _, report = jax.grad(lox.find_nonfinite(layers), has_aux=True)(-x)
    assert (report.primitive, report.backward) == ("sqrt", False)
    _, report = lox.find_nonfinite(jax.grad(layers))(x)
    assert (report.primitive, report.backward) == ("div", True)


@settled
def test_a_rule_with_marks_in_a_checkpoint_that_changes_a_mutable_array_is_an_error(set_flags):
    """The forward pass would have to run twice, and change it twice."""

    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    @sine.defjvp
    def _(primals, tangents):
        lox.log({"rule": primals[0]})
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    def gradient(write, x):
        calls = jax.new_ref(0.0)

        @jax.checkpoint
        def layer(x, calls):
            if write:
                calls[...] += 1.0
            return sine(x) + 0 * calls[...]

        return jax.grad(layer)(x, calls)

    set_flags(["jax_remat3"])
    gradient_of_reads, logs = lox.spool(gradient, argnames="rule")(False, 1.0)
    assert_close(gradient_of_reads, gradient(False, 1.0))
    assert_close(logs["rule"], jnp.float32(1))
    message = r"a derivative rule has a mark of its own \(.*test_flags.py:\d+\), in a jax.checkpoint that also changes"
    with pytest.raises(lox.LoxError, match=message):
        lox.spool(gradient)(True, 1.0)


@settled
def test_what_jax_cannot_differentiate_forward_is_its_own_error(set_flags):
    @jax.custom_vjp
    def sine(x):
        lox.log({"x": x})
        return jnp.sin(x)

    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (jnp.cos(x) * g,))
    set_flags(FLAGS)
    with pytest.raises(TypeError, match="forward-mode autodiff"):
        lox.spool(lambda x: jax.linearize(sine, x)[1](x))(1.0)


@settled
def test_a_mark_in_an_object_that_lox_does_not_know_is_an_error(set_flags):
    """Its jaxprs may be anywhere in it; its effect tells."""
    from jax.experimental import hijax

    class Unknown(hijax.HiPrim):
        def __init__(self, traced):
            self.in_avals, self.out_aval, self.effects = (jax.typeof(1.0),), jax.typeof(1.0), traced.effects
            self.params = {"hidden": (traced,)}
            super().__init__()

        def expand(self, x):
            return self.hidden[0](x)

    def logged(x):
        lox.log({"x": x})
        return x

    def f(x):
        return Unknown(jax.jit(logged).trace(x))(x)

    assert float(f(1.0)) == 1.0
    with pytest.raises(lox.LoxError, match="inside 'Unknown', a primitive that lox does not know"):
        lox.spool(f)(1.0)


# --- jax_scan3, a sketch of JAX's: no reverse order, no gradient, and jit drops scans without results -------------------

SCANS = [p for p in PROGRAMS if "scan" in p.name and not p.batched_control]


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
@pytest.mark.parametrize("program", SCANS, ids=repr)
def test_what_jax_itself_can_do_with_scan3_can_be_spooled_and_tapped(program, set_flags):
    check_with_scan3(program, set_flags, ["jax_scan3"])


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
@pytest.mark.parametrize(
    "program", [p for p in SCANS if any(what in p.name for what in ("checkpoint", "jvp", "vjp"))], ids=repr
)
def test_what_jax_itself_can_do_with_all_flags_together_can_be_spooled_and_tapped(program, set_flags):
    check_with_scan3(program, set_flags, [*FLAGS, "jax_scan3"])


def check_with_scan3(program, set_flags, flags):
    expected = np.asarray(program.fun(ARGUMENT))
    set_flags(flags)
    try:
        found = np.asarray(program.fun(ARGUMENT))
    except Exception as error:  # whatever it is, it is not of lox's making
        pytest.skip(f"JAX itself fails: {type(error).__name__}")
    if not np.allclose(found, expected):
        pytest.skip("JAX itself returns something else")
    out, logs = lox.spool(program.fun, **program.options)(ARGUMENT)
    assert_close(out, found)
    assert_logs_are(logs.trim(), program.expected(X), program.steps(X) if program.steps else {})
    assert bool(tapped(program.fun, ARGUMENT)[1]) == any(int(count) for count in logs.counts.values())


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
def test_loops_of_lox_itself_are_right_with_scan3(set_flags):
    logs = lox.spool(lambda x: [lox.log({"x": v}) for v in x] and x)(ARGUMENT)[1]
    set_flags(["jax_scan3"])
    assert_close(jax.jit(lambda logs: logs.reduce("sum"))(logs)["x"], ARGUMENT.sum())
    rows = jax.jit(lox.spool(lambda x: lox.log({"x": x}, lanes=True)["x"]))(ARGUMENT)[1]
    assert_close(rows["x"], ARGUMENT)


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
@pytest.mark.parametrize("unroll", [1, 2, 3])
def test_records_of_an_unrolled_scan3_arrive_in_order(unroll, set_flags):
    def f(xs):
        return jax.lax.scan(lambda c, x: (lox.log({"x": x}), (c, x))[1], 0.0, xs, unroll=unroll)[1]

    set_flags(["jax_scan3"])
    xs = jnp.arange(12.0)
    assert [float(logs["x"]) for logs in tapped(jax.jit(f), xs)[1]] == xs.tolist()
    assert_close(lox.spool(f)(xs)[1]["x"], xs)


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
def test_what_runs_outside_jit_with_scan3_runs_outside_jit_with_lox(set_flags):
    """JAX's ``jit`` would drop scans without results. Such a scan may be in a call, and without marks."""

    def total(x):
        return jax.lax.scan(lambda c, v: (c + v, None), 0.0, x)[0]

    called = jax.custom_jvp(total)
    called.defjvps(lambda tangent, out, x: tangent.sum())

    def f(x):
        lox.log({"x": x})
        return total(x) + called(x)

    set_flags(["jax_scan3"])
    for changed in (lox.nolog(f), lox.tap(f, lambda logs: None), lambda x: lox.spool(f)(x)[0]):
        assert float(changed(ARGUMENT)) == float(f(ARGUMENT)) == 2 * float(ARGUMENT.sum())


@settled
@pytest.mark.skipif(not hasattr(jax.config, "jax_scan3"), reason="this JAX has no such flag")
def test_jit_reverse_and_length_0_of_scan3_are_failures_of_jax():
    """Where this fails, JAX has mended it, and ``seam/scan3.py`` can go."""
    as_it_is, finished = run("scan3")
    assert as_it_is == {"jit": 0.0, "reverse": [0.0, 1.0, 3.0], "length 0": None}
    assert finished == {"jit": 3.0, "reverse": [3.0, 3.0, 2.0], "length 0": []}
