"""``lox.probe``: marks that nobody wrote, and nothing else changes."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, PartitionSpec

import lox
from lox._marks.mark import marking
from tests.core.checks import assert_close, plain, tapped
from tests.core.test_zero_cost import optimised
from tests.corpus import LANES, PROGRAMS, X

ARGUMENT = jnp.asarray(X)
EVERYTHING = {"names": True, "functions": True, "scopes": True, "primitives": True, "loops": True}


def looked_at(fun):
    """Traced with marks, as for a transformation that then takes none of them."""

    def run(x):
        with marking(True):
            return jax.jit(fun)(x)

    return run


def assert_same_bits(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.tobytes() == expected.tobytes()


# --- laws over the corpus --------------------------------------------------------------------------------------------


@pytest.mark.every(4, 1)
@pytest.mark.compiled_as_by_users
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_the_result_is_the_same_bit_for_bit(program):
    def all_ways(transform):
        def run(x):
            outs = [transform(program.fun)(x)]
            if not program.bounded:  # a `where` that differs between lanes needs the transformation inside
                outs.append(jax.vmap(transform(program.fun))(jnp.asarray(LANES)))
            return [*outs, transform(jax.grad(program.fun))(x)] if program.differentiable else outs

        return run

    probed = looked_at(all_ways(lambda fun: lox.probe(fun, **EVERYTHING)))(ARGUMENT)
    for actual, expected in zip(probed, jax.jit(all_ways(lambda fun: fun))(ARGUMENT), strict=True):
        assert_same_bits(actual, expected)


@pytest.mark.every(4, 3)
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_tap_delivers_what_spool_returns_and_the_marks_of_the_program_stay(program):
    probed = jax.jit(lox.probe(program.fun, **EVERYTHING, prefix="probe/"))
    both = jax.jit(lambda x: [lox.spool(fun, capacity=512)(x)[1] for fun in (probed, program.fun)])
    spooled, own = (logs.trim() for logs in both(ARGUMENT))
    _, received = tapped(probed, ARGUMENT)
    for key in spooled:
        rows = [jax.tree.map(plain, logs[key]) for logs in received if key in logs]
        assert len(rows) == int(spooled.counts[key]), key
        if rows:
            records = jax.tree.map(plain, spooled[key])
            records = records if key in spooled.stacked else jax.tree.map(lambda leaf: leaf[None], records)
            stacked = jax.tree.map(lambda like, *leaves: np.stack(leaves).astype(like.dtype), records, *rows)
            assert_close(stacked, records, key)
    for key in own:
        assert_close(spooled[key], own[key], key)
        assert int(spooled.counts[key]) == int(own.counts[key])


# --- nobody looks ----------------------------------------------------------------------------------------------------


@jax.jit
def layer(x):
    with jax.named_scope("deep"):
        return jnp.sin(x) * x


def model(x):
    with jax.named_scope("first"):
        x = checkpoint_name(layer(x), "h")

    def step(c, v):
        c = layer(c + v)
        c = jax.lax.scan(lambda c, _: (checkpoint_name(layer(c), "g"), None), c, None, length=2)[0]
        return c, c.sum()

    x, ys = jax.lax.scan(step, x, jnp.arange(3.0))
    return x.sum() + ys.sum()


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad, jax.vmap], ids=["plain", "grad", "vmap"])
def test_with_nobody_looking_the_compiled_program_is_the_same(transform):
    argument = jnp.asarray(LANES) if transform is jax.vmap else ARGUMENT
    probed = lox.probe(model, **EVERYTHING)
    assert optimised(transform(probed), argument) == optimised(transform(model), argument)
    assert optimised(lox.probe(transform(model), **EVERYTHING), argument) == optimised(transform(model), argument)


def test_with_nobody_looking_it_is_the_function_itself():
    calls = []

    def f(x, *, flag):
        calls.append(flag)
        return x, flag

    x = object()
    assert lox.probe(f, names="h")(x, flag="as it is") == (x, "as it is")
    assert calls == ["as it is"]


# --- what is recorded ------------------------------------------------------------------------------------------------


def found(fun, *args, **options):
    return lox.probe(fun, **options).found(*args)


def test_keys_are_paths_and_steps_are_the_counters_of_the_loops_around():
    _, logs = lox.spool(lox.probe(model, names="*", loops=True))(ARGUMENT)
    assert list(logs) == ["first/h", "scan", "scan/scan", "scan/scan/g"]
    assert logs["scan"].tolist() == [0, 1, 2]
    assert logs.step["scan/scan/g"].tolist() == [0, 0, 1, 1, 2, 2]
    assert logs.step_2["scan/scan/g"].tolist() == [0, 1, 0, 1, 0, 1]
    assert logs["first/h"].tolist() == (jnp.sin(ARGUMENT) * ARGUMENT).tolist()
    assert logs["scan/scan/g"].shape == (6, 3)


def test_calls_of_one_function_have_keys_of_their_own():
    def f(x):
        return layer(layer(x)) + layer(x)

    _, logs = lox.spool(lox.probe(f, functions="layer"))(ARGUMENT)
    assert list(logs) == ["layer", "layer.1", "layer.2"]
    np.testing.assert_array_equal(logs["layer"], logs["layer.2"])
    inner = found(f, ARGUMENT, primitives="sin").keys
    assert inner == ["layer/deep/sin", "layer.1/deep/sin", "layer.2/deep/sin"]


def test_patterns_are_compared_with_the_end_of_the_path():
    assert found(model, ARGUMENT, functions="layer").keys == ["first/layer", "scan/layer", "scan/scan/layer"]
    assert found(model, ARGUMENT, functions="scan/layer").keys == ["scan/layer", "scan/scan/layer"]
    assert found(model, ARGUMENT, functions=["first/*"], scopes="d??p").keys == [
        "first/layer/deep",
        "first/layer",
        "scan/layer/deep",
        "scan/scan/layer/deep",
    ]


def test_what_leaves_a_scope_is_recorded():
    def f(x):
        with jax.named_scope("both"):
            s, c = jnp.sin(x), jnp.cos(x)
            unused = s * 2
        with jax.named_scope("outer"), jax.named_scope("inner"):
            y = jnp.exp(s) + c
        with jax.named_scope("both"):
            y = y * 2
        return y, unused + 1

    _, logs = lox.spool(lox.probe(f, scopes="*"))(ARGUMENT)
    assert list(logs) == ["both", "outer/inner", "outer", "both.1"]
    s, c, unused = logs["both"]
    assert_close([s, c, unused], [jnp.sin(ARGUMENT), jnp.cos(ARGUMENT), 2 * jnp.sin(ARGUMENT)])
    assert_close(logs["outer"], logs["outer/inner"])


def test_both_passes_of_a_gradient():
    gradient, logs = lox.spool(lox.probe(jax.grad(model), functions="layer", names="h", loops=True))(ARGUMENT)
    assert_close(gradient, jax.grad(model)(ARGUMENT))
    assert [key for key in logs if not key.startswith("backward")] == [
        "first/layer",
        "first/h",
        "scan",
        "scan/layer",
        "scan/scan",
        "scan/scan/layer",
    ]
    assert_close(logs["first/layer"], logs["first/h"])  # the result alone, not what the backward pass needs
    # The iterations of the backward pass have the numbers of those that they belong to.
    assert logs["backward/scan"].tolist() == [2, 1, 0]
    assert_close(logs["backward/first/layer"], gradient)


def test_what_a_checkpoint_computes_again_is_not_recorded_again():
    def f(x):
        return jax.checkpoint(lambda x: jnp.exp(checkpoint_name(jnp.sin(x), "s")))(x).sum()

    gradient, logs = lox.spool(lox.probe(jax.grad(f), names="*"))(ARGUMENT)
    assert list(logs) == ["s"]
    assert_close(logs["s"], jnp.sin(ARGUMENT))
    assert_close(gradient, jax.grad(f)(ARGUMENT))


def test_a_dynamic_loop_and_branches():
    def f(x):
        def body(c):
            return jax.lax.cond(
                c > 2, lambda c: checkpoint_name(c * 2, "up"), lambda c: checkpoint_name(c + 1, "down"), c
            )

        return jax.lax.while_loop(lambda c: c < 9, body, x)

    probed = lox.probe(f, names="*")
    _, logs = lox.spool(probed, capacity=8)(jnp.float32(1))
    logs = logs.trim()
    assert logs["while/cond/false/down"].tolist() == [2.0, 3.0]
    assert logs["while/cond/true/up"].tolist() == [6.0, 12.0]
    assert logs.step["while/cond/true/up"].tolist() == [2, 3]
    with pytest.raises(lox.LoxError, match=r"test_probe\.py:\d+"):
        lox.spool(probed)(jnp.float32(1))


def test_lanes_have_their_own_records_and_counters():
    def f(n):
        return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, checkpoint_name(c[1] * 2, "h")), (0, 1.0))[1]

    _, logs = jax.vmap(lox.spool(lox.probe(f, names="h"), capacity=4))(jnp.array([1, 3]))
    assert logs.counts["while/h"].tolist() == [1, 3]
    assert logs["while/h"].tolist() == [[2, 0, 0, 0], [2, 4, 8, 0]]
    assert logs.step["while/h"].tolist() == [[0, 0, 0, 0], [0, 1, 2, 0]]


@jax.custom_jvp
def squared(x):
    return checkpoint_name(x * x, "primal")


@squared.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return checkpoint_name(x * x, "rule"), 2 * x * t


@jax.custom_vjp
def halved(x):
    return x / 2


halved.defvjp(lambda x: (x / 2, x), lambda residual, ct: (ct / 2,))


def test_functions_with_custom_derivatives():
    def f(x):
        return (squared(x) + halved(x)).sum()

    _, logs = lox.spool(lox.probe(f, functions=["squared", "halved"], names="*"))(ARGUMENT)
    assert list(logs) == ["squared/primal", "squared", "halved"]
    assert_close(logs["squared"], ARGUMENT**2)
    # Differentiated, the rule runs, and is looked into.
    gradient, logs = lox.spool(jax.grad(lox.probe(f, functions="squared", names="*")))(ARGUMENT)
    assert list(logs) == ["squared/rule", "squared"]
    assert_close(gradient, 2 * ARGUMENT + 0.5)


def test_values_in_shard_map_have_the_axes_of_the_mesh():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    def f(x):
        return jax.lax.scan(lambda c, _: (checkpoint_name(jnp.sin(c), "s"), None), x, None, length=2)[0]

    def outer(x):
        return jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]

    _, logs = lox.spool(jax.jit(lox.probe(outer, names="s")))(ARGUMENT)
    assert logs["scan/shard_map/scan/s"].shape == (6, 1, 3)
    assert logs.step["scan/shard_map/scan/s"][:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert logs.step_2["scan/shard_map/scan/s"][:, 0].tolist() == [0, 1, 0, 1, 0, 1]


def test_what_cannot_be_looked_into_is_watched_from_outside():
    def f(x):
        return jax.lax.reduce(x, np.float32(0), lambda a, b: a + b, [0])

    keys = found(f, ARGUMENT, primitives="*").keys
    assert any("reduce" in key for key in keys)


def test_a_summary_instead_of_the_values():
    def f(x):
        checkpoint_name(jnp.zeros((0,)), "empty")
        checkpoint_name(jnp.array([jnp.nan, jnp.inf, 3.0, 0.0, -4.0]), "h")
        checkpoint_name(jnp.full(3, 1e38), "large")
        checkpoint_name(jax.random.key(0), "key")
        return checkpoint_name(jnp.arange(4), "whole") + x

    _, logs = lox.spool(lox.probe(f, names="*", summary=True))(1)
    h = {name: float(value) for name, value in logs["h"].items()}
    assert h["nonfinite"] == 2
    assert (h["min"], h["max"], h["zeros"]) == (-4.0, 3.0, pytest.approx(0.2))
    assert h["mean"] == pytest.approx(-1 / 3)
    assert h["rms"] == pytest.approx((25 / 3) ** 0.5)
    assert float(logs["large"]["rms"]) == pytest.approx(1e38, rel=1e-5)
    assert float(logs["whole"]["mean"]) == 1.5
    assert float(logs["whole"]["zeros"]) == 0.25
    assert np.isnan(float(logs["empty"]["mean"]))
    assert jnp.issubdtype(logs["key"].dtype, jax.dtypes.prng_key)


def test_probes_nest_and_keys_that_are_taken_are_numbered():
    def f(x):
        lox.log({"h": -x})
        return checkpoint_name(jnp.sin(x), "h")

    _, logs = lox.spool(lox.probe(f, names="h"))(ARGUMENT)
    assert_close(logs["h"], -ARGUMENT)
    assert_close(logs["h.1"], jnp.sin(ARGUMENT))
    _, logs = lox.spool(lox.probe(lox.probe(f, names="h", prefix="a/"), primitives="sin", prefix="b/"))(ARGUMENT)
    assert list(logs) == ["h", "b/sin", "a/h"]
    assert list(lox.spool(lox.nolog(lox.probe(f, names="h")))(ARGUMENT)[1]) == []


def test_explicit_probes_are_recorded_only_where_they_are_asked_for():
    probed = lox.probe(model, names="*", explicit=True)
    assert list(lox.spool(probed)(ARGUMENT)[1]) == []
    assert list(lox.spool(probed, argnames="first/*")(ARGUMENT)[1]) == ["first/h"]


def test_marks_are_the_same_in_every_process_and_every_call():
    keys = [list(lox.spool(lox.probe(model, **EVERYTHING))(ARGUMENT)[1]) for _ in range(2)]
    assert keys[0] == keys[1] == found(model, ARGUMENT, **EVERYTHING).keys


# --- what there is ---------------------------------------------------------------------------------------------------


def test_found_lists_what_the_patterns_match():
    findings = found(model, ARGUMENT, names="*")
    assert [(f.key, f.kind, f.types, f.count) for f in findings] == [
        ("first/h", "names", ("float32[3]",), 1),
        ("scan/scan/g", "names", ("float32[3]",), 6),
    ]
    assert all(f.file.endswith("test_probe.py") and f.line > 0 for f in findings)
    lines = str(findings).splitlines()
    assert lines[0].split() == ["key", "option", "type", "records", "source"]
    assert lines[2].split()[:4] == ["scan/scan/g", "names", "float32[3]", "6"]
    assert lines[-1] == "in all: 2 names"


def test_found_without_patterns_lists_everything_but_primitives():
    kinds = {f.kind for f in found(model, ARGUMENT)}
    assert kinds == {"names", "functions", "scopes", "loops"}
    assert {f.kind for f in found(jnp.sin, 1.0)} <= {"primitives", "functions"}
    assert str(found(lambda: None)) == "nothing found"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "hh"}, r"names='hh' matches nothing. Available: 'first/h', 'scan/scan/g'$"),
        ({"functions": ["layer", "lair"]}, r"functions='lair' matches nothing. Available: 'first/layer', 'scan/layer'"),
        ({"primitives": "cholesky"}, r"primitives='cholesky' matches nothing. Available: .*'sin' \(3\)"),
        ({}, r"no pattern was given, so no marks were added. Available: scopes='first/layer/deep'"),
    ],
)
def test_what_matches_nothing_is_a_warning_that_lists_what_there_is(options, message):
    with pytest.warns(UserWarning, match=message) as caught:
        lox.spool(lox.probe(model, **options))(ARGUMENT)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_kind_that_is_not_there_at_all():
    with pytest.warns(
        UserWarning, match=r"scopes='a' matches nothing. The program has no scopes. Available: names='h'"
    ):
        lox.spool(lox.probe(lambda x: checkpoint_name(x, "h"), scopes="a"))(1.0)


def test_thousands_of_values_are_a_warning_that_says_how_to_narrow():
    def f(x):
        for _ in range(1001):
            x = x + 1
        return x

    with pytest.warns(UserWarning, match=r"match 1,001 values \(1,001 by primitives=\).*Narrow them"):
        jax.make_jaxpr(lambda x: looked_at(lox.probe(f, primitives="add"))(x))(1)


def test_what_matches_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lox.spool(lox.probe(model, names="*"))(ARGUMENT)[1]
        assert_close(lox.probe(model)(ARGUMENT), model(ARGUMENT))


# --- bad input -------------------------------------------------------------------------------------------------------


def test_a_program_that_was_compiled_before():
    compiled = jax.jit(model).lower(ARGUMENT).compile()
    with pytest.raises(
        lox.LoxError, match="lox.probe: this program is already compiled.*Pass the function that it was compiled from"
    ):
        lox.probe(compiled, names="h")


@pytest.mark.parametrize("option", ["names", "functions", "scopes", "primitives", "loops"])
def test_patterns_that_are_no_strings(option):
    with pytest.raises(TypeError, match=rf"lox: {option} takes a str or an iterable of str, got 3 of type int"):
        lox.probe(model, **{option: 3})


def test_an_option_that_does_not_exist_and_no_function():
    with pytest.raises(TypeError, match=r"lox.probe has no option 'argnames': select by path"):
        lox.probe(model, argnames="h")
    with pytest.raises(lox.LoxError, match=r"lox.probe: expected a function, got 3"):
        lox.probe(3)


def test_references_are_not_arrays_and_are_left_out():
    def f(x):
        ref = jax.new_ref(x)
        ref[...] = ref[...] * 2
        return ref[...]

    findings = found(f, ARGUMENT, primitives="*")
    assert all("Ref" not in kind for finding in findings for kind in finding.types)
    assert_close(lox.spool(jax.jit(lox.probe(f, primitives="mul")))(ARGUMENT)[1]["mul"], 2 * ARGUMENT)
