"""Calls of a trace have room on Python's stack, at whatever depth they are."""

from __future__ import annotations

import sys

import pytest

from lox._interpret.room import with_room


def faults_of_calls():
    """How often memory was mapped anew during some short calls."""
    import resource

    def short():
        return None

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(500):
        short()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def at_depth(depth, fun):
    return fun() if depth == 0 else at_depth(depth - 1, fun)


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux counts")
def test_with_room_no_depth_of_the_stack_is_a_slow_one():
    depths = range(300)
    if max(at_depth(depth, faults_of_calls) for depth in depths) < 400:
        pytest.skip("this Python has no slow depth")
    assert max(at_depth(depth, lambda: with_room(faults_of_calls)) for depth in depths) < 100


def test_with_room_passes_arguments_results_and_errors_on():
    assert with_room(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        with_room(divmod, 7, 0)
