"""Every error says what is wrong, where (file:line of the calls it is about) and what to do."""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.corpus import PROGRAMS, X

HERE = re.escape(__file__)


def site(function, text: str) -> str:
    """A regular expression for the file:line at which ``text`` stands in the source of ``function``."""
    lines, start = inspect.getsourcelines(function)
    (number,) = [start + i for i, line in enumerate(lines) if text in line]
    return rf"{HERE}:{number}\b"


def raises(kind, *patterns: str):
    """An error of ours that matches all the patterns."""

    class Context:
        def __enter__(self):
            return self

        def __exit__(self, exc_type, error, traceback):
            assert error is not None, "nothing was raised"
            if not isinstance(error, lox.LoxError):
                return False
            assert isinstance(error, ValueError)
            assert isinstance(error, kind), repr(error)
            for pattern in patterns:
                assert re.search(pattern, str(error)), f"{pattern!r} not in: {error}"
            return True

    return Context()


# --- what cannot be logged -------------------------------------------------------------------------------------------


def test_logs_do_not_lose_their_steps():
    def again(**steps):
        _, logs = lox.spool(lambda: lox.log({"x": 1.0}, step=7, epoch=0) and None)()
        lox.log(logs, **steps)
        lox.log(dict(logs), prefix="bare/")

    for given in ({}, {"step": 8}, {"frame": 3}):
        logs = lox.spool(again)(**given)[1]
        found = {axis: by_key["x"].tolist() for axis, by_key in logs.steps.items()}
        assert found == {"step": 7, "epoch": 0} | given
        assert "bare/x" in logs


def test_logs_with_lanes_are_not_taken_for_records():
    def again(xs):
        logs = jax.vmap(lox.spool(lambda x: jax.lax.map(lambda i: lox.log({"x": x + i}), jnp.arange(2))))(xs)[1]
        lox.log(logs, step=3)  # here

    with raises(lox.LoxError, "lanes of a vmap", "inside the vmap", site(again, "# here")):
        lox.spool(again)(jnp.arange(3.0))


@pytest.mark.parametrize("name", ["capacity", "interval", "every", "argnames", "keep_logs", "ordered", "every_n"])
def test_options_of_other_functions_are_told_their_place(name):
    def f(x):
        lox.log({"x": x}, **{name: 3})  # here

    with raises(TypeError, f"{name}= is not an option of lox.log", "lox.(spool|tap)", site(f, "# here")):
        f(1.0)
    logs = lox.spool(lambda x: lox.log({"x": x}, steps={name: 3}, step=1) and x)(1.0)[1]
    assert {axis: int(by_key["x"]) for axis, by_key in logs.steps.items()} == {"step": 1, name: 3}


def test_an_axis_called_steps_is_a_step_axis():
    logs = lox.spool(lambda x: lox.log({"x": x}, steps=3) and x)(1.0)[1]
    assert int(logs.steps["steps"]["x"]) == 3


@pytest.mark.parametrize(
    "options, data, message",
    [
        ({}, {"x": jnp.zeros(3), "y": jnp.zeros(2)}, "the same leading axis"),
        ({}, {"x": 1.0}, "the same leading axis"),
        (
            {"where": jnp.ones(2, bool)},
            {"x": jnp.zeros(3)},
            r"with 3 lanes, `where` must be a scalar or have shape \(3,\)",
        ),
        ({"step": jnp.zeros(4)}, {"x": jnp.zeros(3)}, r"step axis 'step' must be a scalar or have shape \(3,\)"),
        ({"lanes": 3}, {"x": jnp.zeros(3)}, "lanes must be True or False"),
    ],
)
def test_lanes_that_do_not_fit_are_told(options, data, message):
    def f():
        lox.log(data, **{"lanes": True, **options})  # here

    with raises(TypeError, message, site(f, "# here")):
        f()


def test_a_condition_for_each_lane_says_what_to_write():
    with raises(TypeError, "`where` must be a boolean scalar", "pass lanes=True"):
        lox.log({"x": jnp.zeros(3)}, where=jnp.ones(3, bool))


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "spooled"])
@pytest.mark.parametrize(
    "value, kind",
    [
        ("text", "str"),
        (None, "NoneType"),
        ({}, "dict"),
        ([], "list"),
        ((), "tuple"),
        (object(), "object"),
        ({"deep": "text"}, "str"),
        (np.array(["a"]), "numpy <U1"),
        (np.array([None]), "numpy object"),
        (np.datetime64("2020-01-01"), "datetime64"),
        (lambda: None, "function"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_types_are_a_type_error_that_names_key_and_type(value, kind, traced):
    def f(x):
        lox.log({"good": x, "bad": value})
        return x

    with raises(TypeError, "'bad'", re.escape(kind), site(f, '"bad"')):
        (lox.spool(f) if traced else f)(1.0)


def test_data_must_be_a_mapping_with_str_keys():
    def listed(x):
        lox.log([x])

    def numbered(x):
        lox.log({3: x})

    with raises(TypeError, "mapping", "list", site(listed, "lox.log")):
        listed(1.0)
    with raises(TypeError, "str", "3", "int", site(numbered, "lox.log")):
        numbered(1.0)


@pytest.mark.parametrize("step", [np.zeros(2), jnp.zeros((1,)), "later", None, [1]], ids=repr)
def test_steps_must_be_scalars(step):
    def f(x):
        lox.log({"x": x}, epoch=step)
        return x

    with raises(TypeError, "'epoch'", site(f, "lox.log")):
        f(1.0)
    with raises(TypeError, "'epoch'", site(f, "lox.log")):
        lox.spool(f)(X)


@pytest.mark.parametrize("where", [1, 0.0, np.ones(2, bool), "yes", jnp.int32(1)], ids=repr)
def test_where_must_be_a_boolean_scalar(where):
    def f(x):
        lox.log({"x": x}, where=where)
        return x

    with raises(TypeError, "where", site(f, "lox.log")):
        f(1.0)


def test_tags_must_be_strings():
    def f(x):
        lox.log({"x": x}, tags=[1])

    with raises(TypeError, "tags", "1", site(f, "lox.log")):
        f(1.0)


def test_log_grad_of_integers_says_that_they_have_no_gradient():
    def f(x):
        return lox.log_grad(jnp.arange(3), "n").sum() + x

    with raises(TypeError, "'n'", "int32", site(f, "log_grad")):
        lox.spool(f)(X)


# --- two calls of one key --------------------------------------------------------------------------------------------


def transformations():
    return pytest.mark.parametrize("transform", [lox.spool, lox.tap], ids=["spool", "tap"])


@transformations()
def test_differing_step_axes_name_both_sites(transform):
    def f(x):
        lox.log({"a": x}, step=1)
        lox.log({"a": x}, epoch=1)
        return x

    with raises(lox.LoxError, "'a'", "step", "epoch", site(f, "step=1"), site(f, "epoch=1")):
        transform(f)(X)


@transformations()
def test_differing_shapes_name_both_sites(transform):
    def f(x):
        lox.log({"a": x})
        lox.log({"a": x[0]})
        return x

    with raises(lox.LoxError, "'a'", r"\(3,\)", r"\(\)", site(f, '"a": x}'), site(f, "x[0]")):
        transform(f)(X)


@transformations()
def test_differing_structures_name_both_sites(transform):
    def f(x):
        lox.log({"a": {"one": x}})
        lox.log({"a": {"two": x}})
        return x

    with raises(lox.LoxError, "'a'", "one", "two", site(f, "one"), site(f, "two")):
        transform(f)(X)


def test_dtypes_without_a_common_type_name_both_sites():
    def f(x):
        lox.log({"a": jax.random.key(0)})
        lox.log({"a": 1.5})
        return x

    with raises(lox.LoxError, "'a'", "float32", site(f, "random"), site(f, "1.5")):
        lox.spool(f)(X)


def test_sites_in_other_functions_and_loops_are_named_too():
    def helper(v):
        lox.log({"a": (v, v)})
        return v

    def f(x):
        lox.log({"a": x[0]})
        return jax.lax.scan(lambda c, v: (c + jax.jit(helper)(v), None), 0.0, x)[0]

    with raises(lox.LoxError, "'a'", site(helper, "lox.log"), site(f, "lox.log")):
        lox.spool(f)(X)


# --- counts that are not static --------------------------------------------------------------------------------------


def test_a_while_loop_with_marks_names_site_and_ways_out():
    def f(x):
        def body(v):
            lox.log({"v": v})
            return v / 2

        return jax.lax.while_loop(lambda v: v > 1, body, x.sum())

    with raises(lox.LoxError, "'v'", "while_loop", site(f, "lox.log"), "reduce=", "capacity=", "tap"):
        lox.spool(f)(X)


def test_differing_branches_show_the_difference():
    def f(x):
        def yes(v):
            lox.log({"v": v})
            lox.log({"v": v + 1})
            return v

        return jax.lax.cond(x[0] > 0, yes, lambda v: v, x[1])

    patterns = [
        "'v'",
        r"branch 0 \(the one for False\) does not record",
        r"branch 1 \(the one for True\) records it 2 times",
        site(f, '"v": v}'),
        site(f, "v + 1"),
    ]
    with raises(lox.LoxError, *patterns, "reduce=", "capacity=", "tap"):
        lox.spool(f)(X)


def test_branches_that_differ_in_count_show_both_counts():
    def f(x):
        def many(v):
            return jax.lax.scan(lambda c, w: (c + lox.log({"v": w})["v"], None), 0.0, x)[0] + v

        def one(v):
            lox.log({"v": v})
            return v

        return jax.lax.switch(1, [one, many, one], x[1])

    with raises(
        lox.LoxError, "branch 0 records it 1 time ", "branch 1 records it 3 times", "branch 2 records it 1 time "
    ):
        lox.spool(f)(X)


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.dynamic], ids=repr)
def test_every_program_with_a_dynamic_count_is_an_error_without_a_bound(program):
    with raises(lox.LoxError, "programs", r"\.py:\d+", "reduce=", "capacity="):
        lox.spool(program.fun)(X)


# --- what lox does not know ------------------------------------------------------------------------------------------


def make_unknown_primitive():
    """A higher-order primitive that lox has no rule for."""
    from jax.extend.core import Primitive

    primitive = Primitive("strange_call")
    primitive.multiple_results = True

    @primitive.def_effectful_abstract_eval
    def abstract_eval(*avals, jaxpr):
        return jaxpr.out_avals, jaxpr.effects

    def call(fun, *args):
        return primitive.bind(*args, jaxpr=jax.make_jaxpr(fun)(*args))

    return call


@pytest.mark.parametrize("transform", [lox.spool, lox.tap], ids=["spool", "tap"])
def test_an_unknown_higher_order_primitive_with_a_mark_is_named(transform):
    strange_call = make_unknown_primitive()

    def f(x):
        def inner(v):
            lox.log({"v": v})
            return v * 2

        return strange_call(inner, x)[0]

    with raises(lox.LoxError, "strange_call", site(f, "lox.log")):
        transform(f)(X)


def test_an_unknown_primitive_without_marks_is_left_alone():
    strange_call = make_unknown_primitive()

    def f(x):
        lox.log({"x": x})
        return strange_call(lambda v: v * 2, x)[0]

    assert "strange_call" in str(jax.make_jaxpr(lox.spool(f))(X))


# --- options ---------------------------------------------------------------------------------------------------------


def f(x):
    lox.log({"x": x})
    return x


@pytest.mark.parametrize("option", ["interval", "capacity"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True], ids=repr)
def test_counts_of_spool_must_be_at_least_1(option, value):
    with raises(TypeError if value not in (0, -1) else lox.LoxError, option, re.escape(repr(value))):
        lox.spool(f, **{option: value})


@pytest.mark.parametrize("option", ["interval", "batch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True], ids=repr)
def test_counts_of_tap_must_be_at_least_1(option, value):
    with raises(TypeError if value not in (0, -1) else lox.LoxError, option, re.escape(repr(value))):
        lox.tap(f, print, **{option: value})


@pytest.mark.parametrize("callback", [3, "print", [print]], ids=repr)
def test_a_callback_must_be_callable(callback):
    with raises(TypeError, "callback", "callable", type(callback).__name__):
        lox.tap(f, callback)


@pytest.mark.parametrize("option", ["argnames", "tags"])
@pytest.mark.parametrize("transform", [lox.spool, lox.tap], ids=["spool", "tap"])
def test_selections_must_be_names(transform, option):
    with raises(TypeError, option, "3", "int"):
        transform(f, **{option: [3]})


def test_an_unknown_reduction_lists_the_known_ones():
    known = ["mean", "sum", "min", "max", "std", "count", "first", "last", "replace", "append", "Reducer"]

    def g(x):
        lox.log({"x": x}, reduce="median")
        return x

    with raises(lox.LoxError, "'median'", *known, site(g, "lox.log")):
        g(X)
    with raises(lox.LoxError, "'median'", *known):
        lox.spool(f, reduce="median")
    with raises(lox.LoxError, "'median'", *known):
        lox.spool(f)(X)[1].reduce("median")
    with raises(TypeError, "reduce", "3"):
        lox.spool(f, reduce=3)
    with raises(lox.LoxError, "empty"):
        lox.spool(f, reduce=())


def test_conflicting_reductions_of_one_key_name_both_sites():
    def g(x):
        lox.log({"a": x}, reduce="mean")
        lox.log({"a": x}, reduce="sum")
        return x

    with raises(lox.LoxError, "'a'", "reduction", site(g, '"mean"'), site(g, '"sum"')):
        lox.spool(g)(X)


def test_reducing_random_keys_names_the_site():
    def g(x):
        lox.log({"k": jax.random.key(0)}, reduce="mean")
        return x

    with raises(TypeError, "'k'", "append", site(g, "lox.log")):
        lox.spool(g)(X)


@pytest.mark.parametrize("how", ["min", "max"])
def test_extremes_of_complex_values_are_an_error(how):
    def g(x):
        lox.log({"z": x * 1j}, reduce=how)
        return x

    with raises(lox.LoxError, how, "complex", "'z'", site(g, "lox.log")):
        lox.spool(g)(X)


@pytest.mark.parametrize("transform", [lox.spool, lambda f: lox.tap(f, print)], ids=["spool", "tap"])
def test_a_where_that_differs_between_lanes_says_to_swap_vmap_and_transformation(transform):
    def g(x):
        lox.log({"x": x}, where=x > 0)
        return x

    with raises(lox.LoxError, "where", r"vmap\(spool\(f\)\)", site(g, "lox.log")):
        transform(jax.vmap(g))(X)


def test_trim_of_traced_logs_says_so():
    def g(x):
        lox.log({"x": x[0]}, where=x[0] > 0)
        return x

    with raises(TypeError, "trim", "concrete"):
        jax.jit(lambda x: lox.spool(g)(x)[1].trim())(X)
    with raises(TypeError, "trim", "lane"):
        jax.vmap(lox.spool(g))(jnp.stack([X, X]))[1].trim()


@pytest.mark.parametrize(
    ("misspelled", "meant"),
    [({"wheer": jnp.bool_(True)}, "where"), ({"reduc": "mean"}, "reduce"), ({"tag": "train"}, "tags")],
)
def test_a_misspelled_option_of_log_is_not_taken_for_a_step_axis(misspelled, meant):
    with raises(TypeError, "step axis", f"did you mean {meant}="):
        lox.log({"x": 1.0}, **misspelled)


@pytest.mark.parametrize(
    "use",
    [
        lambda logs: logs.slice[-1],
        lambda logs: logs.reduce("mean"),
        lambda logs: list(logs.rows()),
        lambda logs: logs.table(),
    ],
    ids=["slice", "reduce", "rows", "table"],
)
def test_what_is_about_records_refuses_the_logs_of_several_lanes(use):
    def g(x):
        return jax.lax.scan(lambda c, i: (lox.log({"c": c}, step=i)["c"] + 1, None), x, jnp.arange(4))[0]

    logs = jax.vmap(lox.spool(g))(jnp.zeros(3))[1]
    with raises(TypeError, "one lane", "'c'", r"jax.tree.map"):
        use(logs)
    use(jax.tree.map(lambda leaf: leaf[0], logs))


@pytest.mark.parametrize(
    "transform", [lox.spool, lox.nolog, lambda f: lox.tap(f, print)], ids=["spool", "nolog", "tap"]
)
def test_what_is_transformed_must_be_callable(transform):
    with raises(TypeError, "expected a function", "3"):
        transform(3)


def test_an_argument_instead_of_names_is_an_error_that_shows_the_call():
    with raises(TypeError, "argnames", r"lox.spool\(f\)\(x\)"):
        lox.spool(f, X)


def test_log_grad_with_its_arguments_swapped():
    with raises(TypeError, r"the name must be a str, as in log_grad\(x, 'dx'\)"):
        lox.log_grad("dx", X)


@pytest.mark.parametrize(
    "transform", [lox.spool, lambda f, **options: lox.tap(f, print, **options)], ids=["spool", "tap"]
)
def test_names_that_no_key_has_are_warned_of(transform):
    def g(x):
        lox.log({"loss": x[0]})
        return x

    for fun in (transform(g, argnames="los"), transform(jax.jit(g), argnames="los")):
        with pytest.warns(UserWarning, match=r"'los': no such key. The function logs 'loss'") as caught:
            fun(X)
        assert [warning.filename for warning in caught] == [__file__]  # where it can be corrected


# --- calls that Python would refuse without saying what to write instead ------------------------------------------------


@pytest.mark.parametrize(
    ("call", "patterns"),
    [
        (lambda: lox.tap(f, reduce="mean"), ["lox.tap has no option 'reduce'", r"lox.spool\(f, reduce=...\)"]),
        (lambda: lox.tap(f, capacity=3), ["lox.tap has no option 'capacity'", "Leave it out"]),
        (lambda: lox.tap(f, keep_logs=True), ["lox.tap has no option 'keep_logs'", "Leave it out"]),
        (lambda: lox.spool(f, batch=3), ["lox.spool has no option 'batch'", r"lox.tap\(f, batch=n\)"]),
        (lambda: lox.spool(f, callback=print), ["lox.spool has no option 'callback'", r"lox.tap\(f, callback\)"]),
        (lambda: lox.spool(f, ordered=True), ["lox.spool has no option 'ordered'"]),
        (lambda: lox.spool(f, argname="x"), ["no option 'argname'", "did you mean 'argnames'"]),
        (lambda: lox.nolog(f, tag="x"), ["lox.nolog has no option 'tag'", "did you mean 'tags'"]),
        (
            lambda: lox.spool(f, temperature=1),
            ["its options are argnames, tags", r"lox.spool\(f\)\(x, temperature=...\)"],
        ),
    ],
)
def test_an_option_that_a_transformation_does_not_have(call, patterns):
    with raises(TypeError, *patterns):
        call()


def test_log_takes_one_mapping():
    def wrong(x):
        lox.log("loss", x)  # two arguments

    with raises(
        TypeError, site(wrong, "# two arguments"), r'lox.log\(\{"loss": value\}\)', "got 2 positional arguments"
    ):
        wrong(1.0)
    with raises(TypeError, r'lox.log\(\{"loss": value\}\)', "got 0 positional arguments"):
        lox.log(loss=1.0)
    with raises(TypeError, r'lox.log\(\{"loss": value\}\)'):
        lox.log()
    assert lox.log(data={"loss": 1.0}) == {"loss": 1.0}


def test_a_key_that_logs_do_not_have_suggests_what_is_close():
    logs = lox.logdict({"train/loss": 1.0, "accuracy": 2.0})
    for key, close in (("accuracies", "Did you mean 'accuracy'"), ("loss", "Did you mean 'train/loss'")):
        with raises(KeyError, f"no key '{key}'", close):
            logs[key]
    with raises(KeyError, "They have 'train/loss', 'accuracy'"):
        logs["zz"]
    with raises(KeyError, "they are empty"):
        lox.logdict()["x"]
    assert logs.get("zz", 3) == 3
    assert "zz" not in logs


def test_a_where_in_a_vmap_inside_the_function_says_where_to_spool():
    def inside(xs):
        return jax.vmap(lambda x: lox.log({"x": x}, where=x > 0)["x"])(xs)  # masked

    patterns = (r"vmap\(spool\(f\)\)", "inside your function", "log the condition")
    with raises(lox.LoxError, site(inside, "# masked"), *patterns):
        lox.spool(inside)(X)
