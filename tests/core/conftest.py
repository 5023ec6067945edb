"""Fixtures of the tests of lox-core, and what tells failures of JAX's own from those of lox."""

import re

import jax
import pytest

from tests.core.seam.scan3 import finish_scan3


@pytest.fixture
def quick_compilation():
    """For tests that compile hundreds of small programs and look at what they compute, not at how fast."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# --- LOX_TEST_JAX_FLAGS=jax_scan3: JAX has sketched it only, so that scans fail without lox -------------------------------

if getattr(jax.config, "jax_scan3", False):
    finish_scan3()


# What JAX says that it cannot do with such scans: it has neither ``vmap`` nor a gradient for them, and outside ``jit`` no
# references in a ``shard_map``.
_JAX_SAYS = re.compile("Scan3|Eager shard_map cannot return a `jax.Ref`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test is skipped where JAX says that it cannot do what the test does."""
    try:
        return (yield)
    except (NotImplementedError, ValueError) as error:
        if not getattr(jax.config, "jax_scan3", False) or not _JAX_SAYS.search(str(error)):
            raise
        pytest.skip("JAX itself cannot do this with jax_scan3")
