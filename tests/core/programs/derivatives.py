"""Programs that differentiate, or that are special when they are differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

import lox
from tests.core.programs._program import Corpus, running_sums

corpus = Corpus()


def _layer(x):
    h = jnp.sin(x)
    lox.log({"h": h})
    return h * h


@corpus(lambda x: {"h": np.sin(x)})
def checkpoint(x):
    return jax.checkpoint(_layer)(x).sum()


@corpus(lambda x: {"h": np.sin(x)})
def checkpoint_that_saves_everything(x):
    return jax.checkpoint(_layer, policy=jax.checkpoint_policies.everything_saveable)(x).sum()


@corpus(lambda x: {"h": np.sin(x)})
def checkpoint_that_saves_nothing_of_a_jit(x):
    return jax.checkpoint(jax.jit(_layer), policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)(x).sum()


@corpus(lambda x: {"named": np.sin(x), "product": np.outer(x, x) @ np.sin(x)})
def checkpoint_that_saves_names(x):
    def layer(x):
        h = checkpoint_name(jnp.sin(x), "h")
        lox.log({"named": h, "product": jnp.outer(x, x) @ h})
        return jnp.outer(h, x) @ h

    return jax.checkpoint(layer, policy=jax.checkpoint_policies.save_only_these_names("h"))(x).sum()


@corpus(lambda x: {"carry": [np.float32(v) for v in _sines(x)]})
def scan_of_a_checkpoint(x):
    @jax.checkpoint
    def body(carry, v):
        carry = jnp.sin(carry + v)
        lox.log({"carry": carry})
        return carry, None

    return jax.lax.scan(body, 0.0, x)[0]


def _sines(x):
    carry = 0.0
    for v in x:
        carry = np.sin(carry + v)
        yield carry


@corpus(lambda x: {"carry": running_sums(x)})
def checkpoint_of_a_scan(x):
    def body(carry, v):
        lox.log({"carry": carry + v})
        return carry + v, jnp.sin(carry)

    return jax.checkpoint(lambda x: jax.lax.scan(body, 0.0, x)[1].sum())(x)


@jax.custom_jvp
def _logged_with_a_jvp(a):
    lox.log({"jvp": a})
    return 2 * a


_logged_with_a_jvp.defjvp(lambda primals, tangents: (_logged_with_a_jvp(*primals), 2 * tangents[0]))


@jax.custom_vjp
def _logged_with_a_vjp(a):
    lox.log({"vjp": a})
    return 3 * a


_logged_with_a_vjp.defvjp(lambda a: (_logged_with_a_vjp(a), ()), lambda _, ct: (3 * ct,))


def _logged(a, name):
    lox.log({name: a})
    return a


def _scan_with_invariants(x):
    """JAX moves out of a differentiated loop what is the same in every iteration."""
    a = x[0]

    def body(carry, _):
        total = _logged_with_a_jvp(a) + _logged_with_a_vjp(a) + _logged_with_a_vjp(jnp.float32(4.0))
        total += jax.jit(_logged, static_argnums=1)(a, "jit") + jax.checkpoint(lambda a: _logged(a, "checkpoint"))(a)
        total += jax.lax.cond(a > 0, lambda a: _logged(a, "branch"), lambda a: _logged(2 * a, "branch"), a)
        total += jax.lax.scan(lambda c, _: (_logged(c, "inner"), None), a, None, length=2)[0]
        lox.log({"constant": 0.5, "carry": carry})
        return jnp.sin(carry) * total, None

    return jax.lax.scan(body, x[1], None, length=2)[0]


def _invariants(x):
    a = x[0]
    total = 2 * a + 3 * a + 12 + 3 * a + (a if a > 0 else 2 * a)
    fixed = {"jvp": [a] * 2, "vjp": [a, np.float32(4)] * 2, "jit": [a] * 2, "checkpoint": [a] * 2}
    branch = [a if a > 0 else 2 * a] * 2
    carry = [x[1], np.sin(x[1]) * total]
    return {**fixed, "branch": branch, "inner": [a] * 4, "constant": [np.float32(0.5)] * 2, "carry": carry}


@corpus(_invariants, batched_control=True)
def invariants_of_a_scan_in_functions_with_custom_vjp(x):
    return _scan_with_invariants(x)


@corpus(_invariants, batched_control=True)
def invariants_of_a_checkpointed_scan_in_functions_with_custom_vjp(x):
    saves_some = jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_saveable, lambda prim, *_, **__: prim.name == "sin"
    )
    return jax.checkpoint(_scan_with_invariants, policy=saves_some)(x)


# --- custom derivatives ----------------------------------------------------------------------------------------------


@corpus(lambda x: {"v": x})
def custom_jvp(x):
    @jax.custom_jvp
    def cube(v):
        lox.log({"v": v})
        return v**3

    cube.defjvp(lambda primals, tangents: (cube(primals[0]), 3 * primals[0] ** 2 * tangents[0]))
    return cube(x).sum()


@corpus(lambda x: {"v": x, "two": 2})
def custom_jvp_with_a_constant_record(x):
    """Its rule records by itself, and does not call the function."""

    def function(v):
        lox.log({"v": v, "two": np.int32(2)})
        return v**3

    cube = jax.custom_jvp(function)
    cube.defjvp(lambda primals, tangents: (function(primals[0]), 3 * primals[0] ** 2 * tangents[0]))
    return cube(x).sum()


@corpus(lambda x: {"v": x, "w": 2 * x})
def custom_jvp_with_symbolic_zeros_and_static_arguments(x):
    def cube(n, v, w):
        lox.log({"v": v, "w": w})
        return v**n + w

    cube = jax.custom_jvp(cube, nondiff_argnums=(0,))

    def rule(n, primals, tangents):
        v, w = primals
        out = cube(n, v, w)
        dv, dw = (
            jnp.zeros(t.shape, t.dtype) if type(t) is jax.custom_derivatives.SymbolicZero else t for t in tangents
        )
        return out, n * v ** (n - 1) * dv + dw

    cube.defjvp(rule, symbolic_zeros=True)
    return cube(3, x, jax.lax.stop_gradient(2 * x)).sum()


@corpus(lambda x: {"v": x, "after": x.sum()})
def custom_vjp(x):
    @jax.custom_vjp
    def cube(v):
        lox.log({"v": v})
        return v**3

    cube.defvjp(lambda v: (cube(v), v), lambda v, ct: (3 * v**2 * ct,))
    y = cube(x).sum()
    lox.log({"after": x.sum()})
    return y


@corpus(lambda x: {"v": x}, backward=lambda x: {"ct": 2 * x**3})
def custom_vjp_with_a_mark_in_its_backward_rule(x):
    @jax.custom_vjp
    def cube(v):
        lox.log({"v": v})
        return v**3

    def backward(v, ct):
        lox.log({"ct": ct})
        return (3 * v**2 * ct,)

    cube.defvjp(lambda v: (cube(v), v), backward)
    return (cube(x) ** 2).sum()


@corpus(lambda x: {"v": list(x)}, backward=lambda x: {"ct": list(2 * x[::-1] ** 3)})
def custom_vjp_in_a_scan(x):
    @jax.custom_vjp
    def cube(v):
        lox.log({"v": v})
        return v**3

    def backward(v, ct):
        lox.log({"ct": ct})
        return (3 * v**2 * ct,)

    cube.defvjp(lambda v: (cube(v), v), backward)
    return jax.lax.scan(lambda total, v: (total + cube(v) ** 2, None), 0.0, x)[0]


@corpus(lambda x: {"scaled": 3 * x})
def custom_vjp_with_symbolic_zeros_and_static_arguments(x):
    def scale(factor, v, offset):
        lox.log({"scaled": factor * v})
        return factor * v + offset

    scale = jax.custom_vjp(scale, nondiff_argnums=(0,))

    def forward(factor, v, offset):
        return scale(factor, v.value, offset.value), (v.perturbed, offset.perturbed)

    def backward(factor, perturbed, ct):
        return factor * ct, ct.sum() if perturbed[1] else None

    scale.defvjp(forward, backward, symbolic_zeros=True)
    return scale(3.0, x, jnp.float32(1.0)).sum()


@corpus(lambda x: {"v": x, "after": x.sum()})
def checkpoint_of_a_custom_jvp_whose_rule_records_the_same(x):
    @jax.custom_jvp
    def cube(v):
        lox.log({"v": v})
        return v**3

    @cube.defjvp
    def _(primals, tangents):
        (v,), (dv,) = primals, tangents
        lox.log({"v": v})
        return v**3, 3 * v**2 * dv

    y = jax.checkpoint(cube)(x).sum()
    lox.log({"after": x.sum()})
    return y


@corpus(lambda x: {"c": [0.0, *np.cumsum(x[:2] ** 6)], "v": list(x)}, backward=lambda x: {"ct": list(2 * x[::-1] ** 3)})
def checkpointed_scan_of_a_custom_vjp_whose_rules_have_marks_of_their_own(x):
    @jax.custom_vjp
    def cube(v):
        lox.log({"v": v})
        return v**3

    def forward(v):
        lox.log({"v": v})
        return v**3, v

    def backward(v, ct):
        lox.log({"ct": ct})
        return (3 * v**2 * ct,)

    def body(total, v):
        lox.log({"c": total})
        return total + cube(v) ** 2, None

    cube.defvjp(forward, backward)
    return jax.checkpoint(lambda x: jax.lax.scan(body, 0.0, x)[0])(x)


# --- implicit functions ----------------------------------------------------------------------------------------------


@corpus(lambda x: {"guess": np.abs(x).sum() + 1})
def custom_root(x):
    target = jnp.abs(x).sum() + 1

    def solve(f, guess):
        lox.log({"guess": guess})
        return guess

    return jax.lax.custom_root(lambda y: y**2 - target**2, target, solve, lambda g, y: y / g(1.0))


@corpus(lambda x: {"b": x})
def custom_linear_solve(x):
    diagonal = jnp.array([1.0, 2.0, 4.0])

    def solve(matvec, b):
        lox.log({"b": b})
        return b / diagonal

    def transpose_solve(vecmat, b):
        return b / diagonal

    solution = jax.lax.custom_linear_solve(lambda v: diagonal * v, x, solve, transpose_solve)
    return (solution**2).sum()


# --- derivatives inside ----------------------------------------------------------------------------------------------


def _cubes(v):
    lox.log({"v": v})
    return (v**3).sum()


@corpus(lambda x: {"v": x, "norm": np.linalg.norm(3 * x**2)})
def grad_inside(x):
    gradient = jax.grad(_cubes)(x)
    lox.log({"norm": jnp.linalg.norm(gradient)})
    return gradient.sum()


@corpus(lambda x: {"v": x})
def jvp_inside(x):
    return jax.jvp(_cubes, (x,), (jnp.ones(3),))[1]


@corpus(lambda x: {"v": x})
def vjp_inside(x):
    _, pullback = jax.vjp(_cubes, x)
    return (pullback(1.0)[0] + pullback(2.0)[0]).sum()


@corpus(lambda x: {"v": x})
def linearize_inside(x):
    _, linear = jax.linearize(_cubes, x)
    return linear(jnp.ones(3)) + linear(2 * jnp.ones(3))


# jacfwd is a vmap over directions: as in any vmap inside, the record has that axis.
@corpus(lambda x: {"v": np.stack([x] * 3)})
def hessian_inside(x):
    return jax.hessian(_cubes)(x).sum()


def _descent(x):
    p, losses, norms = x.astype(np.float64), [], []
    for _ in range(3):
        losses.append(np.float32(((p - 1) ** 2).sum()))
        gradient = 2 * (p - 1)
        norms.append(np.float32(np.linalg.norm(gradient)))
        p = p - 0.1 * gradient
    return losses, norms


@corpus(
    lambda x: {"loss": _descent(x)[0], "norm": _descent(x)[1]},
    steps=lambda x: {"step": {"loss": [0, 1, 2], "norm": [0, 1, 2]}},
)
def training_loop(x):
    def loss(p, i):
        value = ((p - 1) ** 2).sum()
        lox.log({"loss": value}, step=i)
        return value

    def update(p, i):
        gradient = jax.grad(loss)(p, i)
        lox.log({"norm": jnp.linalg.norm(gradient)}, step=i)
        return p - 0.1 * gradient, None

    return jax.lax.scan(update, x, jnp.arange(3))[0].sum()


# --- values that do not change in a loop: JAX moves them out when it differentiates it -----------------------------------


@corpus(lambda x: {"lr": [np.float32(0.1)] * 3, "scale": [x.mean()] * 3, "c": [1.0, 1 + x[0], (1 + x[0]) * (1 + x[1])]})
def invariant_values_in_a_scan(x):
    scale = x.mean()

    def body(c, v):
        lox.log({"lr": 0.1, "scale": scale})
        lox.log({"c": c})
        return c + v * c, None

    return jax.lax.scan(body, 1.0, x)[0]


@corpus(lambda x: {"scale": [x.mean()] * 3})
def invariant_value_in_a_jit_in_a_scan(x):
    @jax.jit
    def step(c, v, scale):
        lox.log({"scale": scale})
        return c * v + scale

    scale = x.mean()
    return jax.lax.scan(lambda c, v: (step(c, v, scale), None), 1.0, x)[0]


@corpus(lambda x: {"scale": [x.mean()] * 3})
def invariant_value_in_a_branch_in_a_scan(x):
    scale, flag = x.mean(), jnp.arange(2)[1] > 0

    def body(c, v):
        def yes(c):
            lox.log({"scale": scale})
            return c * v

        def no(c):
            lox.log({"scale": scale})
            return c + v

        return jax.lax.cond(flag, yes, no, c), None

    return jax.lax.scan(body, 1.0, x)[0]


@corpus(lambda x: {"scale": [x.mean()] * 6, "outer": [2 * x.mean()] * 3})
def invariant_value_in_nested_scans(x):
    scale = x.mean()

    def outer(c, v):
        def inner(c, _):
            lox.log({"scale": scale})
            return c * v, None

        lox.log({"outer": 2 * scale})
        return jax.lax.scan(inner, c, None, length=2)[0], None

    return jax.lax.scan(outer, 1.0, x)[0]


@corpus(lambda x: {"w": list(x) * 3})
def wholly_invariant_scan_in_a_scan(x):
    weights = jax.lax.stop_gradient(x)

    def outer(c, v):
        def inner(total, w):
            lox.log({"w": w})
            return total + w, None

        return c * v + jax.lax.scan(inner, 0.0, weights)[0], None

    return jax.lax.scan(outer, 1.0, x)[0]


@corpus(lambda x: {"scale": [x.mean()] * 3})
def invariant_value_in_a_checkpoint_in_a_scan(x):
    scale = x.mean()

    @jax.checkpoint
    def body(c, v):
        lox.log({"scale": scale})
        return jnp.sin(c * v), None

    return jax.lax.scan(body, 1.0, x)[0]


# --- log_grad --------------------------------------------------------------------------------------------------------


@corpus(lambda x: {}, backward=lambda x: {"d": 4 * x})
def log_grad(x):
    return (lox.log_grad(2 * x, "d") ** 2).sum()


@corpus(lambda x: {"x": x}, backward=lambda x: {"d": {"w": 2 * x, "b": np.float32(3)}})
def log_grad_of_a_pytree_in_a_checkpoint(x):
    def layer(x):
        lox.log({"x": x})
        params = lox.log_grad({"w": x, "b": x[0]}, "d")
        return (params["w"] ** 2).sum() + 3 * params["b"]

    return jax.checkpoint(layer)(x)


@corpus(
    lambda x: {"c": [1.0, x[0], x[0] * x[1]]},
    backward=lambda x: {"dc": [x[2], x[1] * x[2], x[0] * x[1] * x[2]]},
)
def log_grad_in_a_scan(x):
    def body(carry, v):
        i, c = carry
        lox.log({"c": c})
        return (i + 1, lox.log_grad(c, "dc", step=i) * v), None

    return jax.lax.scan(body, (0, 1.0), x)[0][1]


@corpus(lambda x: {}, backward=lambda x: {"second": 3 * (6 * x) ** 2, "first": 2 * 3 * (6 * x) ** 2})
def log_grad_twice_in_a_jit(x):
    @jax.jit
    def layer(x):
        h = lox.log_grad(2 * lox.log_grad(3 * x, "first"), "second")
        return h**3

    return layer(x).sum()
