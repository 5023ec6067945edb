"""cond, switch and platform_dependent: branches that agree, that differ, that log nothing, alone and inside other control
flow."""

import jax
import jax.numpy as jnp
import numpy as np

import lox
from tests.core.programs._program import Corpus

corpus = Corpus()


def _logged(name, value):
    lox.log({name: value})
    return value


@corpus(lambda x: {"x": x[0] if x[0] > 0 else x[0] + 1}, batched_control=True)
def cond_with_agreeing_branches(x):
    return jax.lax.cond(x[0] > 0, lambda v: _logged("x", v), lambda v: _logged("x", v + 1) * 2, x[0])


@corpus(lambda x: {"a": 2 * x, "b": x[0]})
def cond_whose_predicate_all_lanes_share(x):
    def branch(scale):
        def run(x):
            lox.log({"a": scale * x})
            lox.log({"b": x[0]})
            return (scale * x).sum()

        return run

    return jax.lax.cond(jnp.arange(3).sum() > 2, branch(2.0), branch(3.0), x)


@corpus(
    lambda x: {"yes": [x[0]] if x[0] > 0 else [], "no": [] if x[0] > 0 else [x[1], 2 * x[1]]},
    dynamic=True,
    batched_control=True,
)
def cond_with_differing_branches(x):
    def no(x):
        lox.log({"no": x[1]})
        lox.log({"no": 2 * x[1]})
        return -x[1]

    return jax.lax.cond(x[0] > 0, lambda x: _logged("yes", x[0]), no, x)


@corpus(lambda x: {"yes": [x[0]] if x[0] > 0 else []}, dynamic=True, batched_control=True)
def cond_with_a_silent_branch(x):
    return jax.lax.cond(x[0] > 0, lambda v: _logged("yes", v), lambda v: -v, x[0])


@corpus(lambda x: {"before": x[1], "v": [x[2]] if x[0] > 0 else [x[2], x[2]]}, dynamic=True, batched_control=True)
def one_branch_logs_more_often(x):
    lox.log({"before": x[1]})
    return jax.lax.cond(x[0] > 0, lambda v: _logged("v", v), lambda v: _logged("v", v) + _logged("v", v), x[2])


def _index(x):
    return int(np.clip(int(x[2]), 0, 2))


@corpus(lambda x: {"v": [x[0], x[1], x[2]][_index(x)], "n": np.int32(_index(x))}, batched_control=True)
def switch_with_agreeing_branches(x):
    branches = [lambda x, i=i: (_logged("v", x[i]), _logged("n", i))[0] * (i + 1) for i in range(3)]
    return jax.lax.switch(x[2].astype(jnp.int32), branches, x)


@corpus(
    lambda x: {"a": [x[0]] if _index(x) == 0 else [], "b": [x[1]] if _index(x) == 1 else []},
    dynamic=True,
    batched_control=True,
)
def switch_with_differing_branches(x):
    branches = [lambda x: _logged("a", x[0]), lambda x: _logged("b", x[1]), lambda x: x[2]]
    return jax.lax.switch(x[2].astype(jnp.int32), branches, x)


@corpus(lambda x: {"v": [v if v > 0 else v - 1 for v in x]}, batched_control=True)
def agreeing_branches_in_a_scan(x):
    def body(total, v):
        return total + jax.lax.cond(v > 0, lambda v: _logged("v", v), lambda v: _logged("v", v - 1), v), None

    return jax.lax.scan(body, 0.0, x)[0]


@corpus(
    lambda x: {"up": [v for v in x if v > 0], "down": [-v for v in x if v <= 0], "all": list(x)},
    steps=lambda x: {
        "step": {"up": [i for i, v in enumerate(x) if v > 0], "down": [i for i, v in enumerate(x) if v <= 0]},
    },
    dynamic=True,
    batched_control=True,
)
def differing_branches_in_a_scan(x):
    def body(carry, v):
        i, total = carry

        def up(v):
            lox.log({"up": v}, step=i)
            return v

        def down(v):
            lox.log({"down": -v}, step=i)
            return 2 * v

        lox.log({"all": v})
        return (i + 1, total + jax.lax.cond(v > 0, up, down, v)), None

    return jax.lax.scan(body, (0, 0.0), x)[0][1]


@corpus(lambda x: {"v": [2 * v for v in (x if x[0] > 0 else x[::-1])]}, batched_control=True)
def scans_of_one_length_in_branches(x):
    def branch(x, reverse):
        return jax.lax.scan(lambda total, v: (total + _logged("v", 2 * v), None), 0.0, x, reverse=reverse)[0]

    return jax.lax.cond(x[0] > 0, lambda x: branch(x, False), lambda x: branch(x, True), x)


@corpus(lambda x: {"deep": [x[1]] if x[0] > 0 and x[1] > 0 else [], "level": x[0]}, dynamic=True, batched_control=True)
def conds_in_conds(x):
    def outer(x):
        return jax.lax.cond(x[1] > 0, lambda v: _logged("deep", v), lambda v: v, x[1])

    lox.log({"level": x[0]})
    return jax.lax.cond(x[0] > 0, outer, lambda x: x[2], x)


@corpus(
    lambda x: {"odd": [n for n in range(_loop_length(x)) if n % 2]},
    dynamic=True,
    batched_control=True,
    differentiable=False,
)
def differing_branches_in_a_while_loop(x):
    def body(n):
        return n + jax.lax.cond(n % 2 == 1, lambda n: _logged("odd", n) * 0 + 1, lambda n: 1, n)

    length = jnp.clip(jnp.abs(x).sum() * 2, 0, 9).astype(jnp.int32)
    return jax.lax.while_loop(lambda n: n < length, body, 0).astype(jnp.float32) * x[0]


def _loop_length(x):
    return int(np.clip(abs(x).sum() * 2, 0, 9))


@corpus(
    lambda x: {"n": list(range(_loop_length(x))) if x[0] > 0 else []},
    dynamic=True,
    batched_control=True,
    differentiable=False,
)
def while_loop_in_a_branch(x):
    def loop(length):
        return jax.lax.while_loop(lambda n: n < length, lambda n: _logged("n", n) + 1, 0)

    length = jnp.clip(jnp.abs(x).sum() * 2, 0, 9).astype(jnp.int32)
    return jax.lax.cond(x[0] > 0, loop, lambda length: length, length).astype(jnp.float32) * x[0]


@corpus(lambda x: {"v": [v for v in x if v > 0]}, dynamic=True, batched_control=True)
def differing_branches_in_a_jit_in_a_scan(x):
    @jax.jit
    def keep_positive(v):
        return jax.lax.cond(v > 0, lambda v: _logged("v", v), lambda v: 0 * v, v)

    return jax.lax.scan(lambda total, v: (total + keep_positive(v), None), 0.0, x)[0]


# The tests run on the CPU.


@corpus(lambda x: {"x": x[0], "n": [x[1], 2 * x[1]]})
def platform_dependent_with_agreeing_branches(x):
    def branch(scale):
        def run(x):
            lox.log({"x": scale * x[0]})
            lox.log({"n": x[1]})
            lox.log({"n": 2 * x[1]})
            return scale * (x**2).sum()

        return run

    return jax.lax.platform_dependent(x, cpu=branch(1.0), tpu=branch(2.0), default=branch(3.0))


def _of_an_accelerator(x):
    lox.log({"accelerator": x})
    return x.sum()


@corpus(lambda x: {"cpu": [x[0]], "accelerator": []}, dynamic=True)
def platform_dependent_with_differing_branches(x):
    return jax.lax.platform_dependent(
        x, cpu=lambda x: _logged("cpu", x[0]) * 2, cuda=_of_an_accelerator, rocm=_of_an_accelerator
    )


@corpus(lambda x: {"default": [x[1]], "tpu": []}, dynamic=True)
def platform_dependent_on_a_platform_without_a_name(x):
    return jax.lax.platform_dependent(
        x, tpu=lambda x: _logged("tpu", x).sum(), default=lambda x: _logged("default", x[1])
    )


@corpus(lambda x: {"x": [v for v in x if v > 0], "other": []}, dynamic=True, batched_control=True)
def platform_dependent_in_a_branch_in_a_scan(x):
    def on_the_cpu(v):
        return jax.lax.cond(v > 0, lambda v: _logged("x", v), lambda v: -v, v)

    def step(total, v):
        return total + jax.lax.platform_dependent(v, cpu=on_the_cpu, default=lambda v: _logged("other", v)), None

    return jax.lax.scan(step, 0.0, x)[0]
