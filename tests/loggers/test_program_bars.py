"""`lox.loggers.progress(fun)`: a bar for a program that nobody marked."""

import io
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
import lox.loggers
from lox._inside.ticks import FollowedLoop
from lox.loggers._backends.display import program_bars
from tests.core.test_zero_cost import counting_compilations
from tests.loggers.terminal import Terminal


def shown(run, *args):
    """The result of a program, with its bars drawn for the last time."""
    out = jax.block_until_ready(run(*args))
    program_bars.painter.finish()
    return out


def training(x):
    def step(c, v):
        return jnp.cos(c + v), c

    return jax.lax.scan(step, x, jnp.arange(2000.0))


def test_a_log_file_has_the_way_and_the_result_is_the_same():
    file = io.StringIO()
    out = shown(lox.loggers.progress(training, file=file), 0.5)
    for actual, expected in zip(out, training(0.5), strict=True):
        assert np.asarray(actual).tobytes() == np.asarray(expected).tobytes()
    *_, last = file.getvalue().splitlines()
    assert last.startswith("training  2000/2000 (100%)  elapsed 0:00")


def test_a_bar_leaves_wide_and_weakly_typed_results_alone():
    def f(x):
        with jax.enable_x64(True):
            return jax.lax.scan(lambda carry, _: (carry * 2, 2**40), x, None, length=4003)[1]

    out = shown(lox.loggers.progress(f, file=io.StringIO()), jnp.float32(1))
    assert jax.typeof(out) == jax.typeof(f(jnp.float32(1)))
    assert int(out[-1]) == 2**40


def test_a_terminal_says_that_the_program_is_compiled_then_shows_a_bar():
    terminal = Terminal(100)

    def slow_to_trace(x):
        for _ in range(1000):
            if any(b"compiling" in part for part in terminal.parts):
                break
            time.sleep(0.01)
        return training(x)[0]

    shown(jax.jit(lox.loggers.progress(slow_to_trace, file=terminal.file)), 0.5)
    assert "compiling" in terminal.text()
    (line,) = filter(None, terminal.lines())
    assert line.startswith("slow_to_trace ")
    assert "2000/2000" in line
    assert "compiling" not in line


def test_a_while_loop_is_counted():
    file = io.StringIO()

    def search(n):
        return jax.lax.while_loop(lambda i: i < n, lambda i: i + 1, 0)

    assert int(shown(lox.loggers.progress(jax.jit(search), file=file, name="looking"), 700)) == 700
    assert file.getvalue().startswith("looking  700  elapsed 0:00")


def test_loops_one_after_the_other_have_bars_one_after_the_other(monkeypatch):
    monkeypatch.setattr(program_bars, "_SHORT", 0.0)
    file = io.StringIO()

    @jax.jit
    def two(x):
        x = jax.lax.fori_loop(0, 30_000, lambda i, x: jnp.cos(x), x)
        return jax.lax.while_loop(lambda x: x < 50, lambda x: x + 1, x)

    shown(lox.loggers.progress(two, file=file), 0.0)
    ends = [line.split("  ")[:2] for line in file.getvalue().splitlines() if "30000/30000" in line or "while" in line]
    assert ends[0] == ["two: scan", "30000/30000 (100%)"]
    assert ends[-1] == ["two: while", "50"]


def test_several_calls_one_after_the_other_compile_once(monkeypatch):
    monkeypatch.setattr(program_bars, "_SHORT", 0.0)
    file = io.StringIO()
    run = jax.jit(training)
    shown(lox.loggers.progress(run, file=file), 0.5)
    before = file.getvalue()
    with counting_compilations() as compilations:
        shown(lox.loggers.progress(run, file=file), 0.25)
    assert not compilations
    assert file.getvalue().removeprefix(before).splitlines()[-1].startswith("training  2000/2000 (100%)")


def test_what_stands_next_to_the_bar_is_the_position_inside():
    bars = program_bars.ProgramBars("train", io.StringIO(), False)
    outer, inner = FollowedLoop("scan", 10, None), FollowedLoop("scan/while", None, "scan")
    bars.expect([outer, inner])
    bars.tick(outer, 0)
    bars.tick(inner, 0)
    bars.tick(inner, 12)
    assert bars._showing._bar().beside == "while 12"
    bars.tick(outer, 1)
    assert bars._showing._bar()[:3] == ("train", 1, 10)
    assert bars._showing._bar().beside == ""
    bars.end(outer, 10)
    program_bars.painter.finish()


@pytest.mark.parametrize("seconds", [1e-6, 1e-3, 0.3])
def test_ticks_become_as_rare_as_they_should_be(seconds, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    running = program_bars._LoopProgress(FollowedLoop("scan", None, None))
    position, ticks, inside = 0, 0, []
    running.begin()
    while now[0] < 100.0:
        running.go_on(position)
        answer = running.answer()
        inside.append(answer.inside)
        position += answer.steps
        now[0] += answer.steps * seconds + 1e-5  # a call takes time as well
        ticks += 1
    assert ticks <= 100.0 / program_bars.PERIOD + 10
    assert ticks * 1e-5 <= 0.01 * 100.0
    assert inside[0]
    assert inside[-1] == (seconds > program_bars.PERIOD)
    # The next loop of the kind knows already.
    running.begin()
    assert running.answer().steps == max(int(program_bars.PERIOD / running._seconds), 1)


def test_under_vmap_and_grad_it_is_the_same_function():
    file = io.StringIO()
    loss = lambda x: training(x)[1].sum()  # noqa: E731
    run = lox.loggers.progress(loss, file=file, name="loss")
    xs = jnp.linspace(0.0, 1.0, 3)
    assert shown(jax.vmap(run), xs).tolist() == jax.vmap(loss)(xs).tolist()
    np.testing.assert_allclose(shown(jax.grad(run), 0.5), jax.grad(loss)(0.5), rtol=1e-6)
    np.testing.assert_allclose(
        shown(lox.loggers.progress(jax.grad(loss), file=file), 0.5), jax.grad(loss)(0.5), rtol=1e-6
    )


def test_marks_of_the_program_are_seen_from_outside():
    def marked(x):
        def step(c, v):
            lox.log({"c": c}, step=v)
            return jnp.cos(c + v), None

        return jax.lax.scan(step, x, jnp.arange(100.0))[0]

    run = lox.loggers.progress(marked, file=io.StringIO())
    _, logs = shown(lox.spool(run), 0.5)
    assert logs["c"].shape == (100,)
    assert logs["c"].tolist() == lox.spool(marked)(0.5)[1]["c"].tolist()
    received = []
    shown(lox.tap(run, received.append, batch=32), 0.5)
    assert np.concatenate([rows["c"] for rows in received]).tolist() == logs["c"].tolist()


def test_what_goes_wrong():
    file = io.StringIO()

    def broken(x):
        raise RuntimeError("while it is traced")

    with pytest.raises(RuntimeError, match="while it is traced"):
        lox.loggers.progress(broken, file=file)(1.0)
    shown(lox.loggers.progress(lambda x: x + 1, file=file), 1.0)  # no loop
    program_bars.painter.finish()
    assert file.getvalue() == ""
    with pytest.raises(TypeError, match=r"lox.loggers.progress: expected a function, got 3"):
        lox.loggers.progress(3)
    with pytest.raises(TypeError, match="already compiled"):
        lox.loggers.progress(jax.jit(training).lower(0.5).compile())
    with pytest.raises(TypeError, match=r"lox.loggers.progress has no option 'total': .*ProgressLogger\(total"):
        lox.loggers.progress(total=10)


def test_a_forked_child_draws_nothing():
    file = io.StringIO()
    bars = [program_bars._Showing("train", lambda: program_bars.place_for(file, False))]
    bars[0].begin("train", program_bars._LoopProgress(FollowedLoop("scan", 10, None)))
    bars[0].outer.end(10)
    painter = program_bars.Painter()
    painter._showings, painter._process = bars, -1  # as it is in a process that did not make it
    painter.finish()
    assert file.getvalue() == ""
    painter._process = os.getpid()
    painter.finish()
    assert file.getvalue().startswith("train  10/10 (100%)")
