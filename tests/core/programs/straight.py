"""Programs without control flow: what can be a value, a step, a condition, and calls of functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.core.programs._program import Corpus

corpus = Corpus()


@corpus(lambda x: {})
def nothing_logged(x):
    return (x**2).sum()


@corpus(lambda x: {"x": x})
def one_value(x):
    lox.log({"x": x})
    return (x**2).sum()


@corpus(lambda x: {"mean": x.mean(), "double": 2 * x, "norm": np.sqrt((x**2).sum())})
def several_keys_and_calls(x):
    lox.log({"mean": x.mean(), "double": 2 * x})
    y = (x**2).sum()
    lox.log({"norm": jnp.sqrt(y)})
    return y


@corpus(
    lambda x: {
        "f16": x.astype(np.float16),
        "bf16": x.astype(jnp.bfloat16),
        "c64": x.astype(np.complex64) * 1j,
        "i8": np.int8(-3),
        "u32": np.uint32(7),
        "flag": x[0] > 0,
    }
)
def many_dtypes(x):
    lox.log({"f16": x.astype(jnp.float16), "bf16": x.astype(jnp.bfloat16), "c64": x.astype(jnp.complex64) * 1j})
    lox.log({"i8": jnp.int8(-3), "u32": jnp.uint32(7), "flag": x[0] > 0})
    return x.sum()


@corpus(lambda x: {"lr": np.float32(0.1), "n": np.int32(3), "on": np.bool_(True), "z": np.complex64(1j)})
def python_numbers(x):
    lox.log({"lr": 0.1, "n": 3, "on": True, "z": 1j})
    return x.sum()


@corpus(lambda x: {"table": np.arange(4, dtype=np.int16), "scalar": np.float32(2.5)})
def numpy_values(x):
    lox.log({"table": np.arange(4, dtype=np.int16), "scalar": np.float32(2.5)})
    return x.sum()


@corpus(lambda x: {"params": {"w": x, "b": (x[0], x[1] ** 2)}, "pair": (x[0], {"deep": x[2]})})
def pytree_values(x):
    lox.log({"params": {"w": x, "b": (x[0], x[1] ** 2)}})
    lox.log({"pair": (x[0], {"deep": x[2]})})
    return x.sum()


@corpus(lambda x: {"key": jax.random.split(jax.random.key(0))[0], "raw": np.array([0, 3], np.uint32)})
def random_keys(x):
    lox.log({"key": jax.random.split(jax.random.key(0))[0], "raw": jax.random.key_data(jax.random.key(3))})
    return x.sum()


@corpus(lambda x: {"a": [x[0], x[1], x[2] * 2]})
def one_key_three_times(x):
    lox.log({"a": x[0]})
    lox.log({"a": x[1]})
    lox.log({"a": x[2] * 2})
    return x.sum()


@corpus(lambda x: {"a": [np.float32(1), x[0], np.float32(0.5)]})
def dtypes_of_one_key_promote(x):
    lox.log({"a": jnp.int32(1)})
    lox.log({"a": x[0]})
    lox.log({"a": 0.5})
    return x.sum()


@corpus(lambda x: {"a": x, "b": x[0]}, steps=lambda x: {"step": {"a": 3, "b": 3}, "time": {"a": x[1], "b": x[1]}})
def several_step_axes(x):
    lox.log({"a": x, "b": x[0]}, step=3, time=x[1])
    return x.sum()


@corpus(lambda x: {"a": [x[0], x[1]]}, steps=lambda x: {"step": {"a": [0, 10]}, "update": {"a": [1, 2]}})
def steps_of_one_key_in_two_calls(x):
    lox.log({"a": x[0]}, step=0, update=1)
    lox.log({"a": x[1]}, update=2, step=10)
    return x.sum()


@corpus(lambda x: {"train/loss": x[0], "tagged": x[1]})
def prefixes_and_tags(x):
    lox.log({"loss": x[0]}, prefix="train/", tags="metric")
    lox.log({"tagged": x[1]}, tags=["metric", "debug"])
    lox.log({"hidden": x[2]}, explicit=True)
    return x.sum()


@corpus(lambda x: {"yes": [x[0]], "no": []}, bounded=True)
def fixed_conditions(x):
    lox.log({"yes": x[0]}, where=True)
    lox.log({"no": x[1]}, where=np.bool_(False))
    return x.sum()


@corpus(lambda x: {"big": [v for v in x if v > 0]}, bounded=True, batched_control=True)
def conditions_on_values(x):
    for i in range(3):
        lox.log({"big": x[i]}, where=x[i] > 0)
    return x.sum()


@corpus(lambda x: {"only_logged": np.linalg.norm(np.outer(x, x)).astype(np.float32)})
def value_computed_only_for_the_log(x):
    lox.log({"only_logged": jnp.linalg.norm(jnp.outer(x, x))})
    return x.sum()


@jax.jit
def _square(v):
    lox.log({"v": v})
    return v * v


@corpus(lambda x: {"v": x})
def inner_jit(x):
    return _square(x).sum()


@corpus(lambda x: {"v": [x, x**2, x]})
def inner_jit_called_three_times(x):
    return (_square(_square(x)) + _square(x)).sum()


@corpus(lambda x: {"outer": x.sum(), "v": [x, 2 * x]})
def nested_jits(x):
    @jax.jit
    def outer(x):
        lox.log({"outer": x.sum()})
        return jax.jit(lambda v: _square(v) + _square(2 * v))(x)

    return outer(x).sum()


@corpus(lambda x: {"power": x**3})
def jit_with_static_arguments(x):
    @functools.partial(jax.jit, static_argnums=0, static_argnames=("unused",))
    def power(n, x, unused="a"):
        lox.log({"power": x**n})
        return x**n

    return power(3, x, unused="b").sum()


@corpus(lambda x: {"inner": x + 1}, steps=lambda x: {"step": {"inner": 2}})
def returns_of_log_are_used(x):
    logs = lox.log({"inner": x + 1}, step=2)
    return (logs["inner"] * logs.step["inner"]).sum()


@corpus(lambda x: {"v": x * 2, "w": x[0]})
def vmap_inside(x):
    lox.log({"w": x[0]})
    return jax.vmap(lambda v: lox.log({"v": v * 2})["v"])(x).sum()


@corpus(lambda x: {"v": np.full(3, 7, np.int32)})
def vmap_inside_of_an_unbatched_value(x):
    def lane(v):
        lox.log({"v": 7})
        return v

    return jax.vmap(lane)(x).sum()
