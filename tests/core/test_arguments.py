"""Whatever a function takes and returns, it takes and returns when it is transformed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from tests.core.checks import tapped

TRANSFORMS = {
    "spool": lambda f: lambda *a, **k: lox.spool(f)(*a, **k)[0],
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "nolog": lox.nolog,
}
each_transform = pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)


@each_transform
@pytest.mark.parametrize("value", [3, 2.5, True, 1j, "text", b"bytes", None, print, len, int, ..., (1, "a")], ids=repr)
def test_what_is_no_array_reaches_the_function_as_it_is(transform, value):
    seen = []

    def f(x, given, *, named):
        lox.log({"x": x})
        seen.append((given, named))
        return x

    transform(f)(jnp.float32(1.0), value, named={"deep": value})
    (given, named) = seen[0]
    assert given is value or given == value
    assert type(given) is type(value)
    assert named["deep"] is value or named["deep"] == value


def test_numbers_of_other_types_or_signs_are_other_arguments():
    def f(x, n):
        lox.log({"x": x})
        return x * 0, type(n), str(n)

    spooled = lox.spool(f)
    results = [spooled(jnp.float32(1), n)[0][1:] for n in (1, 1.0, True, 0.0, -0.0, 0, False)]
    assert results == [
        (int, "1"),
        (float, "1.0"),
        (bool, "True"),
        (float, "0.0"),
        (float, "-0.0"),
        (int, "0"),
        (bool, "False"),
    ]


def test_nan_as_an_argument_is_traced_once():
    traces = []

    def f(x, n):
        traces.append(n)
        lox.log({"n": n})
        return x

    for _ in range(3):
        assert np.isnan(lox.spool(f)(jnp.float32(1), float("nan"))[1]["n"])
    assert len(traces) == 1


def test_unhashable_arguments_work():
    class Config:
        __hash__ = None

        def __init__(self, scale):
            self.scale = scale

    def f(x, config):
        lox.log({"scaled": x * config.scale})
        return x

    config = Config(2.0)
    assert float(lox.spool(f)(jnp.float32(3), config)[1]["scaled"]) == 6.0
    config.scale = 5.0
    assert float(lox.spool(f)(jnp.float32(3), config)[1]["scaled"]) == 15.0


def test_static_and_keyword_arguments_of_a_jitted_function():
    @functools.partial(jax.jit, static_argnames=("n", "mode"))
    def f(x, n, *, mode="a"):
        lox.log({mode: x * n})
        return x * n

    out, logs = lox.spool(f)(jnp.float32(2), 3, mode="b")
    assert (float(out), str(logs)) == (6.0, "{'b': 6.0}")
    assert str(lox.spool(f)(x=jnp.float32(2), n=4)[1]) == "{'a': 8.0}"
    assert str(jax.jit(lox.spool(f), static_argnames=("n", "mode"))(jnp.float32(2), n=5)[1]) == "{'a': 10.0}"


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Model:
    weight: jax.Array
    name: str = dataclasses.field(metadata={"static": True})

    def __call__(self, x):
        lox.log({f"{self.name}/y": self.weight * x})
        return self.weight * x


@each_transform
def test_pytrees_go_in_and_come_out(transform):
    def f(tree):
        lox.log({"left": tree["pair"].left})
        return {
            "pair": Pair(tree["pair"].right, tree["pair"].left),
            "model": tree["model"],
            "none": None,
            "list": [1, "a"],
        }

    given = {"pair": Pair(jnp.zeros(2), jnp.ones(3)), "model": Model(jnp.float32(2), "m")}
    out = transform(f)(given)
    assert isinstance(out["pair"], Pair)
    assert out["pair"].right.tolist() == [0.0, 0.0]
    assert isinstance(out["model"], Model)
    assert out["model"].name == "m"
    assert out["none"] is None
    assert out["list"] == [1, "a"]


def test_a_dataclass_that_is_a_pytree_can_be_the_function():
    model = Model(jnp.float32(2), "m")
    assert str(lox.spool(model)(jnp.float32(3))[1]) == "{'m/y': 6.0}"
    assert str(lox.spool(dataclasses.replace(model, name="n"))(jnp.float32(3))[1]) == "{'n/y': 6.0}"
    gradient, logs = lox.spool(jax.grad(lambda model: model(3.0)))(model)
    assert float(gradient.weight) == 3.0
    assert str(logs) == "{'m/y': 6.0}"


def test_random_keys_are_arguments_and_results():
    def f(key):
        key, other = jax.random.split(key)
        lox.log({"other": other, "sample": jax.random.normal(other)})
        return key

    out, logs = lox.spool(f)(jax.random.key(0))
    expected = jax.random.split(jax.random.key(0))
    assert (jax.random.key_data(out) == jax.random.key_data(expected[0])).all()
    assert (jax.random.key_data(logs["other"]) == jax.random.key_data(expected[1])).all()
    keys = jax.random.split(jax.random.key(1), 3)
    assert jax.vmap(lox.spool(f))(keys)[1]["other"].shape == (3,)
    (received,) = tapped(f, jax.random.key(0))[1]
    np.testing.assert_array_equal(received["other"], jax.random.key_data(expected[1]))


def test_donated_arguments():
    @functools.partial(jax.jit, donate_argnums=0)
    def f(state, x):
        lox.log({"x": x})
        return state + x

    state = jnp.zeros(100)
    out, logs = lox.spool(f)(state, jnp.float32(1))
    assert state.is_deleted()
    assert float(out[0]) == 1.0
    assert str(logs) == "{'x': 1.0}"
    lowered = jax.jit(lox.spool(lambda s, x: f(s, x)), donate_argnums=0).lower(jnp.zeros(100), jnp.float32(1))
    assert "tf.aliasing_output" in lowered.as_text() or "jax.buffer_donor" in lowered.as_text()


def test_jit_inside_keeps_its_name():
    @jax.jit
    def layer_with_a_name(x):
        lox.log({"x": x})
        return x + 1

    assert "name=layer_with_a_name" in str(jax.make_jaxpr(lox.spool(lambda x: layer_with_a_name(x) * 2))(1.0))


def test_partial_functions():
    def f(scale, x, offset=0.0):
        lox.log({"y": scale * x + offset})
        return scale * x

    assert str(lox.spool(functools.partial(f, 2.0))(jnp.float32(3))[1]) == "{'y': 6.0}"
    assert str(lox.spool(functools.partial(f, 2.0, offset=1.0))(jnp.float32(3))[1]) == "{'y': 7.0}"
    assert str(lox.spool(jax.tree_util.Partial(f, jnp.float32(2)))(jnp.float32(3))[1]) == "{'y': 6.0}"


class Counter:
    """A callable object with methods, and state that changes."""

    def __init__(self):
        self.scale = 1.0

    def method(self, x):
        lox.log({"y": self.scale * x})
        return self.scale * x

    __call__ = method

    @classmethod
    def of_class(cls, x):
        lox.log({"c": x})
        return x

    @staticmethod
    def static(x):
        lox.log({"s": x})
        return x


def test_methods_and_callable_objects_see_the_state_of_the_moment():
    counter = Counter()
    for scale in (1.0, 2.0):
        counter.scale = scale
        expected = f"{{'y': {3 * scale}}}"
        assert str(lox.spool(counter.method)(jnp.float32(3))[1]) == expected
        assert str(lox.spool(counter)(jnp.float32(3))[1]) == expected
    assert str(lox.spool(Counter.of_class)(1.0)[1]) == "{'c': 1.0}"
    assert str(lox.spool(counter.static)(1.0)[1]) == "{'s': 1.0}"


def test_a_lambda_that_was_collected_does_not_lend_its_logs_to_the_next_one():
    for i in range(20):
        logs = lox.spool(lambda x, i=i: lox.log({"v": x + i})["v"])(1.0)[1]
        assert float(logs["v"]) == 1.0 + i


def test_closures_over_tracers():
    def outer(scale):
        def inner(x):
            lox.log({"y": scale * x})
            return scale * x

        out, logs = lox.spool(inner)(jnp.float32(3))
        return out + logs["y"] * 0

    assert float(jax.jit(outer)(2.0)) == 6.0
    assert float(jax.grad(outer)(2.0)) == 3.0
    assert jax.vmap(outer)(jnp.arange(3.0)).tolist() == [0.0, 3.0, 6.0]
    # The same function object, closed over another tracer of the same type each time.
    scales = []

    def closed(x):
        lox.log({"y": scales[-1] * x})
        return scales[-1] * x

    def run(scale):
        scales.append(scale)
        return lox.spool(closed)(jnp.float32(3))[1]["y"]

    assert float(jax.jit(run)(2.0)) == 6.0
    assert float(jax.jit(lambda scale: run(scale))(5.0)) == 15.0


def test_spool_inside_scan_and_cond():
    def f(x):
        lox.log({"x": x})
        return x * 2

    def step(carry, x):
        out, logs = lox.spool(f)(x)
        return carry + out, logs

    total, logs = jax.lax.scan(step, 0.0, jnp.arange(3.0))
    assert float(total) == 6.0
    assert logs["x"].tolist() == [0.0, 1.0, 2.0]
    assert float(jax.lax.cond(True, lambda: lox.spool(f)(1.0)[1]["x"], lambda: 5.0)) == 1.0


def test_functions_without_arguments_and_with_variable_ones():
    def nothing():
        lox.log({"n": 1})

    def variable(*args, **kwargs):
        lox.log({"sum": sum(args) + sum(kwargs.values())})
        return len(args)

    assert lox.spool(nothing)()[0] is None
    assert str(lox.spool(nothing)()[1]) == "{'n': 1}"
    out, logs = lox.spool(variable)(jnp.float32(1), 2.0, a=3.0)
    assert (out, str(logs)) == (2, "{'sum': 6.0}")


def test_wrapped_functions_keep_name_and_doc():
    def documented(x):
        """What it does."""
        return x

    for wrapped in (lox.spool(documented), lox.tap(documented), lox.nolog(documented)):
        assert wrapped.__name__ == "documented"
        assert wrapped.__doc__ == "What it does."


@pytest.mark.parametrize("make", [jax.jit, lambda fun: fun], ids=["jitted", "plain"])
def test_a_wrapper_is_named_as_functools_would_name_it_each_time(make):
    @make
    def documented(x: float) -> float:
        """Says so."""
        return x

    documented.label = "own"
    expected = functools.wraps(documented)(lambda: None)
    for wrapped in (lox.spool(documented), lox.spool(documented), lox.nolog(documented)):
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__", "__wrapped__", "__dict__"):
            assert getattr(wrapped, name) == getattr(expected, name)
        assert inspect.signature(wrapped) == inspect.signature(documented)
    documented.label = "another"
    assert lox.spool(documented).label == "another"


def test_numpy_arguments_and_results():
    def f(x):
        lox.log({"x": x})
        return x, np.arange(3), np.float64(2)

    out, logs = lox.spool(f)(np.arange(3))
    assert logs["x"].tolist() == [0, 1, 2]
    assert isinstance(out[1], np.ndarray)
    assert out[1].tolist() == [0, 1, 2]


def test_arrays_of_strings_and_objects_reach_the_function_as_they_are():
    names = np.array(["a", "b"])

    def f(x, names):
        lox.log({str(names[1]): x})
        return x

    assert str(lox.spool(f)(jnp.float32(1), names)[1]) == "{'b': 1.0}"


def test_x64_mode_gives_64_bit_records():
    def f(x):
        lox.log({"x": x, "n": 3})
        return x

    with jax.enable_x64(True):
        logs = lox.spool(f)(np.float64(1.0))[1]
        assert logs["x"].dtype == np.float64
        assert logs["n"].dtype == np.int64
    assert lox.spool(f)(np.float64(1.0))[1]["x"].dtype == np.float32


# --- arguments that a function changes in place ----------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    value: jax.Array
    name: str = dataclasses.field(default="a", metadata={"static": True})

    def add(self, x):
        self.value = self.value + x

    def rename(self, x):
        self.name = "b"


@dataclasses.dataclass
class Plain:
    count: int = 0

    def add(self, x):
        self.count += 1

    def remember(self, x):
        self.last = x

    @functools.cached_property
    def large(self):
        return 3


def change(how):
    def step(target, x, *more, **options):
        lox.log({"x": x})
        how(target, x)
        return x

    return step


CHANGES = {
    "a list that is appended to": ([], lambda target, x: target.append(x), r"target\[0\] is new"),
    "a list that gets a None": ([], lambda target, x: target.append(None), "target has another structure"),
    "a dict with a new entry": ({}, lambda target, x: target.update(n=x), r"target\['n'\] is new"),
    "a dict with a changed entry": ({"n": 1}, lambda target, x: target.update(n=x), r"target\['n'\] has another value"),
    "a dict with an entry less": ({"n": 1}, lambda target, x: target.pop("n"), r"target\['n'\] is gone"),
    "a dict in a list": ([{"n": 1}], lambda target, x: target[0].clear(), r"target\[0\]\['n'\] is gone"),
    "an array of strings": (np.array(["a"]), lambda target, x: target.fill("b"), "target was written to"),
    "a field of a pytree": (Registered(np.float32(1)), Registered.add, r"target.value has another value"),
    "a static field of a pytree": (Registered(np.float32(1)), Registered.rename, "target has another structure"),
    "an attribute": (Plain(), Plain.add, "target has another 'count'"),
    "a new attribute that is traced": (Plain(), Plain.remember, "target has a new 'last'"),
}


@pytest.mark.parametrize("wrap", [lox.spool, lox.tap, lox.nolog], ids=["spool", "tap", "nolog"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_argument_is_an_error_that_names_it(name, wrap):
    target, how, message = CHANGES[name]
    target = copy.deepcopy(target)
    for _ in range(2):  # the second call finds no program of the first
        with pytest.raises(
            lox.LoxError, match=f"step changes its argument 'target' in place: {message}.*Return the new"
        ):
            wrap(change(how))(target, jnp.float32(1.0))
        if isinstance(target, Plain):
            target.__dict__.clear()
            target.count = 0
        elif isinstance(target, np.ndarray):
            target[:] = "a"


def test_changed_arguments_have_the_names_that_the_function_gives_them():
    step = change(lambda target, x: None)

    def pops(target, x, *more, **options):
        (more or [options["batch"]])[0].pop("n")
        return step(target, x)

    with pytest.raises(lox.LoxError, match=r"'more\[0\]' in place: more\[0\]\['n'\] is gone"):
        lox.spool(pops)(1, 2.0, {"n": 1})
    with pytest.raises(lox.LoxError, match=r"'batch' in place: batch\['n'\] is gone"):
        lox.spool(pops)(1, 2.0, batch={"n": 1})


def test_a_changed_argument_is_noticed_inside_other_transformations():
    step = change(lambda target, x: target.update(n=x))
    for outer in (jax.jit, jax.grad, jax.vmap):
        with pytest.raises(lox.LoxError, match=r"target\['n'\] is new"):
            outer(lambda x: lox.spool(step)({}, x)[0])(jnp.ones(3) if outer is jax.vmap else 1.0)


def test_a_function_may_change_what_is_its_own():
    def step(batch, x, **options):
        own = dict(batch)
        own["n"] = own.pop("n") + x
        options["more"] = 1
        return own["n"]

    batch = {"n": jnp.float32(1.0)}
    assert float(lox.spool(step)(batch, 2.0, less=1)[0]) == 3.0
    assert list(batch) == ["n"]


def test_a_cached_property_and_leaves_that_are_made_on_demand_are_no_changes():
    @jax.tree_util.register_pytree_node_class
    class OnDemand:
        def __init__(self, value):
            self.value = value

        def tree_flatten(self):
            return (self.value * 1,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    def step(plain, made, x):
        lox.log({"x": x})
        return plain.large * made.value * x

    assert float(lox.spool(step)(Plain(), OnDemand(jnp.float32(2.0)), 5.0)[0]) == 30.0
