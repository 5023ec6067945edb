"""A mark that nobody looks at costs nothing, and a transformed function is traced and compiled once."""

from __future__ import annotations

import contextlib
import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._host.delivery import Receiver
from tests.corpus import LANES, PROGRAMS, X

pytestmark = pytest.mark.compiled_as_by_users

ARGUMENT = jnp.asarray(X)


def optimised(fun, *args) -> str:
    """The optimised program, without the names of files, lines and scopes, and without the numbers of instructions."""
    text = jax.jit(fun).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "", text, flags=re.MULTILINE)
    text = re.sub(r"HloModule [^,]*,", "HloModule,", text)
    return re.sub(r"\.\d+\b", "", text)


def with_and_without(log):
    """One function twice: with its marks, and with a ``log`` that does nothing."""

    def layer(x, log):
        h = jnp.tanh(x * 2)
        log({"h": h, "norm": jnp.linalg.norm(h)})
        return h

    def f(x):
        log({"x": x, "only for the log": jnp.linalg.svd(jnp.outer(x, x))[1]}, step=3)

        def step(c, v):
            c = jnp.sin(c + v)
            log({"c": c, "spread": jnp.std(c * x)}, where=v > 0, reduce="mean")
            c = jax.lax.cond(v > 0, lambda c: (log({"up": c}), c + 1)[1], lambda c: c, c)
            return c, layer(x, log).sum()

        c, ys = jax.lax.scan(step, 0.0, x)
        c = jax.lax.while_loop(lambda c: c < 3, lambda c: (log({"w": c}), c + 1)[1], c)
        return c + jax.jit(lambda ys: layer(ys, log))(ys).sum()

    return f


def silent(data, **options):
    del data, options


def test_the_compiled_program_is_the_one_without_marks():
    assert optimised(with_and_without(lox.log), ARGUMENT) == optimised(with_and_without(silent), ARGUMENT)


def differentiable(log):
    def f(x):
        def step(c, v):
            log({"c": c, "extra": jnp.exp(c).sum()})
            return jax.checkpoint(lambda c: jnp.sin(c * v))(c), None

        return jax.lax.scan(step, x, jnp.arange(4.0))[0].sum()

    return f


@pytest.mark.parametrize("transform", [jax.grad, jax.vmap, jax.hessian], ids=["grad", "vmap", "hessian"])
def test_the_compiled_program_is_the_one_without_marks_when_transformed(transform):
    argument = jnp.asarray(LANES) if transform is jax.vmap else ARGUMENT
    programs = [optimised(transform(differentiable(log)), argument) for log in (lox.log, silent)]
    assert programs[0] == programs[1]


def test_log_grad_costs_nothing_either():
    def f(watch):
        return jax.grad(lambda x: (watch(2 * x) ** 3).sum())

    assert optimised(f(lambda x: lox.log_grad(x, "d")), ARGUMENT) == optimised(f(lambda x: x), ARGUMENT)


def test_a_function_that_was_spooled_and_tapped_still_costs_nothing():
    fun = jax.jit(differentiable(lox.log))
    lox.spool(fun)(ARGUMENT)
    lox.tap(fun, lambda logs: None)(ARGUMENT)
    jax.effects_barrier()
    assert optimised(fun, ARGUMENT) == optimised(jax.jit(differentiable(silent)), ARGUMENT)


@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_a_plain_program_has_no_effects_so_that_jit_keeps_its_fast_path(program):
    for fun in (program.fun, lox.spool(program.fun, **program.options)):
        assert jax.make_jaxpr(jax.jit(fun))(ARGUMENT).effects <= effects_of_a_scan()


def effects_of_a_scan():
    """None, but for jax_scan3: there JAX itself keeps what is carried in references."""
    return jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c, None), x, None, length=2))(1.0).effects


def test_a_jitted_function_with_marks_stays_in_the_fast_path():
    """JAX dispatches in C++ a function whose compiled program has no effects; it then never comes back to Python."""

    @jax.jit
    def f(x):
        lox.log({"x": x})
        return x + 1

    f(ARGUMENT)
    f(ARGUMENT)
    assert f._cache_size() == 1


# --- ahead of time ---------------------------------------------------------------------------------------------------


def test_ahead_of_time_compilation():
    fun = differentiable(lox.log)
    compiled = jax.jit(fun).lower(ARGUMENT).compile()
    np.testing.assert_allclose(compiled(ARGUMENT), fun(ARGUMENT), rtol=1e-5)
    out, logs = jax.jit(lox.spool(fun)).lower(ARGUMENT).compile()(ARGUMENT)
    np.testing.assert_allclose(out, fun(ARGUMENT), rtol=1e-5)
    assert isinstance(logs, lox.logdict)
    assert logs["c"].shape == (4, 3)
    received = []
    jax.jit(lox.tap(fun, received.append)).lower(ARGUMENT).compile()(ARGUMENT)
    jax.effects_barrier()
    assert len(received) == 4


def test_export_of_a_program_with_marks():
    fun = differentiable(lox.log)
    exported = jax.export.export(jax.jit(fun))(ARGUMENT)
    np.testing.assert_allclose(exported.call(ARGUMENT), fun(ARGUMENT), rtol=1e-5)
    spooled = jax.export.export(jax.jit(lambda x: lox.spool(fun)(x)[1]["c"]))(ARGUMENT)
    np.testing.assert_allclose(spooled.call(ARGUMENT), lox.spool(fun)(ARGUMENT)[1]["c"], rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"reduce": "mean"}, {"reduce": ("max", "last")}, {"interval": 2}, {"capacity": 3}], ids=str
)
def test_export_with_dimensions_that_are_not_known(options):
    def fun(x, y):
        def inner(c, z):
            lox.log({"both": c + z, "whole": x})
            return c + z, None

        def outer(c, z):
            lox.log({"c": c}, step=c)
            return jax.lax.scan(inner, c, y)

        return jax.lax.scan(outer, 0.0, x)[0]

    def logs_of(x, y):
        return dict(lox.spool(fun, **options)(x, y)[1])

    sizes = jax.export.symbolic_shape("m, n")
    exported = jax.export.export(jax.jit(logs_of))(*[jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes])
    for m, n in ((2, 3), (4, 1)):
        arguments = jnp.arange(m, dtype=jnp.float32), jnp.ones(n)
        jax.tree.map(np.testing.assert_array_equal, exported.call(*arguments), logs_of(*arguments))


def test_export_of_a_mask_with_a_length_that_is_not_known():
    def logs_of(xs):
        return dict(lox.spool(lambda xs: jax.lax.map(lambda x: lox.log({"x": x}, where=x > 1)["x"], xs))(xs)[1])

    (size,) = jax.export.symbolic_shape("n")
    exported = jax.export.export(jax.jit(logs_of))(jax.ShapeDtypeStruct((size,), jnp.float32))
    assert exported.call(jnp.arange(4.0))["x"].tolist() == [2, 3, 0, 0]


def test_exported_programs_can_be_stored():
    pytest.importorskip("flatbuffers")  # what JAX stores them with
    fun = differentiable(lox.log)
    stored = jax.export.export(jax.jit(fun))(ARGUMENT).serialize(vjp_order=1)
    np.testing.assert_allclose(jax.export.deserialize(stored).call(ARGUMENT), fun(ARGUMENT), rtol=1e-5)


def test_what_was_traced_before_has_no_marks():
    """The price of marks that cost nothing: a finished jaxpr or executable holds none."""
    jaxpr = jax.make_jaxpr(differentiable(lox.log))(ARGUMENT)
    assert lox.spool(jax.extend.core.jaxpr_as_fun(jaxpr))(ARGUMENT)[1] == {}


# --- nothing is done twice -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counting_compilations():
    """The traces, lowerings and compilations that JAX reports meanwhile."""
    events: list[str] = []
    # JAX 0.9 reports a trace for each call of a jitted function with a host call in it, also where there is none.
    ignored = ["/jax/core/compile/jaxpr_trace_duration"] if jax.__version_info__ < (0, 10) else []

    def listen(event, duration, **_):
        del duration
        if event.startswith("/jax/core/compile/") and event not in ignored:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def make_counted(jitted):
    calls = []

    def f(x):
        calls.append(None)
        lox.log({"x": x, "sin": jnp.sin(x)}, step=x[0])
        return jax.lax.scan(lambda c, v: (c + lox.log({"v": v})["v"], None), 0.0, x)[0]

    return calls, jax.jit(f) if jitted else f


REPEATED = {
    "spool(f)": lambda f: lox.spool(f),
    "spool(f, reduce)": lambda f: lox.spool(f, reduce=("mean", "max")),
    "spool(f, capacity, interval)": lambda f: lox.spool(f, capacity=3, interval=2, argnames=["v"], prefix="p/"),
    "spool(f, Reducer)": lambda f: lox.spool(f, reduce=REDUCER),
    "tap(f)": lambda f: lox.tap(f, CALLBACK),
    "tap(f, batch)": lambda f: lox.tap(f, CALLBACK, batch=2),
    "nolog(f)": lambda f: lox.nolog(f),
}


class KeepMax(lox.Reducer):
    def init(self, aval):
        return jnp.full(aval.shape, -jnp.inf)

    def update(self, state, value):
        return jnp.maximum(state, value)


REDUCER = KeepMax()


def CALLBACK(logs):
    del logs


@pytest.mark.parametrize("transform", REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("jitted", [True, False], ids=["jitted", "eager"])
def test_calling_it_again_traces_and_compiles_nothing(transform, jitted):
    if (
        getattr(jax.config, "jax_scan3", False)
        and transform is REPEATED["nolog(f)"]
        and is_compiled_at_every_call(jitted)
    ):
        pytest.skip("outside jit, JAX itself compiles a scan of jax_scan3 at every call")
    calls, f = make_counted(jitted)
    transform(f)(ARGUMENT)
    transform(f)(ARGUMENT + 1)  # eager code may compile what it needs to look at its results
    assert len(calls) == 1
    with counting_compilations() as events:
        for i in range(3):
            transform(f)(ARGUMENT + i)
    jax.effects_barrier()
    assert events == []
    assert len(calls) == 1


def is_compiled_at_every_call(jitted):
    """By JAX, without lox."""
    _, f = make_counted(jitted)
    f(ARGUMENT)
    with counting_compilations() as events:
        f(ARGUMENT)
    return any("backend_compile" in event for event in events)


def test_adding_logs_compiles_nothing():
    def f(x):
        lox.log({"x": x}, step=3)

    total, more = lox.spool(f)(ARGUMENT)[1], [lox.spool(f)(ARGUMENT)[1] for _ in range(5)]
    with counting_compilations() as events:
        for logs in more:
            total = total + logs
    assert events == []
    assert isinstance(total["x"], jax.Array)
    assert total["x"].shape == (6, *ARGUMENT.shape)
    assert total.step["x"].tolist() == [3] * 6


def test_other_shapes_are_traced_once_each():
    calls, f = make_counted(jitted=False)
    for _ in range(2):
        for n in (2, 3, 4):
            lox.spool(f)(jnp.ones(n))
    assert len(calls) == 3


def test_options_of_their_own_do_not_mix():
    _, f = make_counted(jitted=True)
    assert list(lox.spool(f, argnames="x")(ARGUMENT)[1]) == ["x"]
    assert list(lox.spool(f, argnames="v")(ARGUMENT)[1]) == ["v"]
    assert list(lox.spool(f, prefix="p/")(ARGUMENT)[1]) == ["p/x", "p/sin", "p/v"]
    assert lox.spool(f, reduce="sum")(ARGUMENT)[1]["v"].shape == ()
    assert lox.spool(f)(ARGUMENT)[1]["v"].shape == (3,)


def test_functions_that_were_transformed_are_not_kept_alive():
    import gc
    import weakref

    def make():
        big = jnp.zeros(10)

        def f(x):
            lox.log({"x": x + big[0]})
            return x

        return f

    f = make()
    lox.spool(f)(ARGUMENT)
    lox.tap(f, CALLBACK)(ARGUMENT)
    jax.effects_barrier()
    alive = weakref.ref(f)
    del f
    jax.clear_caches()
    gc.collect()
    assert alive() is None


def test_a_jitted_function_that_is_tapped_for_a_logger_is_traced_once_for_all_python_numbers():
    """The operands of the receiver, which change from logger state to logger state, are arguments of the program."""
    traces, got = [], []

    @functools.partial(jax.jit, static_argnums=1, donate_argnums=0)
    def step(x, scale, i):
        traces.append(None)
        lox.log({"x": x}, step=i)
        return x * scale

    def handle(delivery):
        got.append((int(delivery.operands), float(delivery.logs["x"]), int(delivery.logs.step["x"])))

    for run in range(3):
        tapped = lox.tap(step, Receiver(handle, jnp.int32(run)))
        for i in range(4):
            tapped(jnp.float32(1 + i), 2, i)
    jax.effects_barrier()
    assert got == [(run, 1.0 + i, i) for run in range(3) for i in range(4)]
    assert len(traces) == 1
