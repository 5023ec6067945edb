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


def pytest_collection_modifyitems(items):
    """All laws on a program, then all on the next: what they share is then computed once, by one worker."""
    places = [i for i, item in enumerate(items) if item.path.name == "test_laws.py"]
    by_program = sorted((items[i] for i in places), key=lambda item: repr(item.callspec.params.get("program")))
    for place, item in zip(places, by_program, strict=True):
        items[place] = item
