"""Fixtures of the tests of lox-core."""

import jax
import pytest


@pytest.fixture
def quick_compilation():
    """For tests that compile hundreds of small programs and look at what they compute, not at how fast."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
