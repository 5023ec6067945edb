"""Fixtures of the tests of lox-core, and what tells failures of JAX's own from those of lox."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.corpus import LANES, Program


@pytest.fixture
def quick_compilation():
    """For tests that compile hundreds of small programs and look at what they compute, not at how fast."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# --- LOX_TEST_JAX_FLAGS=jax_scan3: JAX has sketched it only, so that scans fail without lox -------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test is skipped for what JAX says that it cannot do, and for programs that it gets wrong without lox."""
    if not getattr(jax.config, "jax_scan3", False) or "set_flags" in item.fixturenames:
        return (yield)  # tests that set the flags themselves know
    program = getattr(item, "callspec", None) and item.callspec.params.get("program")
    if isinstance(program, Program) and not _jax_can_run(program):
        pytest.skip("JAX itself gets this program wrong with jax_scan3")
    try:
        return (yield)
    except NotImplementedError as error:
        if "Scan3" not in str(error):
            raise
        pytest.skip("JAX itself has no such rule for jax_scan3")


@functools.cache
def _jax_can_run(program):
    def run():
        return jax.jit(jax.vmap(jax.grad(program.fun) if program.differentiable else program.fun))(jnp.asarray(LANES))

    try:
        found = run()
    except NotImplementedError:
        return False
    jax.config.update("jax_scan3", False)
    expected = run()
    jax.config.update("jax_scan3", True)
    return np.allclose(found, expected)
