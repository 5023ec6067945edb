"""tap and the world outside: callbacks that raise, programs that end, compiled programs on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import pytest

import lox
from tests.core.checks import collect


def loop(xs):
    return jax.lax.map(lambda x: lox.log({"x": x})["x"], xs).sum()


def run(fun, *args):
    out = jax.block_until_ready(fun(*args))
    jax.effects_barrier()
    return out


def run_script(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR")}
    settings = {
        **inherited,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        **environment,
    }
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=300)


# --- callbacks that raise --------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def make_failing_callback():
    seen = []

    def explode(logs):
        seen.append(float(logs["x"]))
        raise Broken(f"cannot take {float(logs['x'])}")

    return seen, explode


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("options", [{}, {"ordered": True}], ids=["unordered", "ordered"])
def test_what_a_callback_raises_reaches_the_caller_with_its_own_traceback(wrap, options):
    _, explode = make_failing_callback()
    with pytest.raises(Exception, match="cannot take 1.0") as caught:
        run(wrap(lox.tap(loop, explode, **options)), jnp.array([1.0]))
    text = str(caught.value) if wrap is jax.jit else "".join(map(str, _frames(caught.value)))
    assert "explode" in text
    assert os.path.basename(__file__) in text


def _frames(error):
    import traceback

    return traceback.format_exception(error)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_later_calls_work_again_after_a_callback_raised(wrap):
    _, explode = make_failing_callback()
    with pytest.raises(Exception, match="cannot take"):
        run(wrap(lox.tap(loop, explode)), jnp.arange(3.0))
    received, callback = collect()
    assert float(run(wrap(lox.tap(loop, callback)), jnp.arange(3.0))) == 3.0
    assert [float(logs["x"]) for logs in received] == [0.0, 1.0, 2.0]
    with pytest.raises(Exception, match="cannot take"):
        run(wrap(lox.tap(loop, explode)), jnp.arange(3.0))
    jax.effects_barrier()


def test_an_error_is_raised_once():
    _, explode = make_failing_callback()
    with pytest.raises(Exception, match="cannot take"):
        run(jax.jit(lox.tap(loop, explode)), jnp.arange(3.0))
    jax.effects_barrier()
    run(jax.jit(loop), jnp.arange(3.0))
    jax.effects_barrier()


def test_a_program_that_raises_in_the_middle_has_delivered_what_ran():
    received, callback = collect()

    def f(xs):
        jax.lax.map(lambda x: lox.log({"before": x})["before"], xs)
        lox.log({"x": xs[0]})
        return xs

    def fails_at_x(logs):
        callback(logs)
        if "x" in logs:
            raise Broken("in the middle")

    with pytest.raises(Exception, match="in the middle"):
        run(jax.jit(lox.tap(f, fails_at_x)), jnp.arange(3.0))
    assert [float(logs["before"]) for logs in received if "before" in logs] == [0.0, 1.0, 2.0]


# --- the end of the program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending", ["", "raise SystemExit(0)", "raise RuntimeError('end')"], ids=["end", "exit", "error"]
)
def test_nothing_is_lost_at_interpreter_exit(ending):
    done = run_script(
        f"""
        import jax, jax.numpy as jnp, lox, time

        def slow(logs):
            time.sleep(0.01)
            print("got", logs, flush=True)

        def f(xs):
            return jax.lax.map(lambda x: lox.log({{"x": x}})["x"], xs)

        jax.jit(lox.tap(f, slow))(jnp.arange(20))
        jax.jit(lox.tap(f, slow, batch=8))(jnp.arange(20))
        {ending}
        """
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("got")]
    assert len(lines) == 20 + 3, done.stderr
    assert lines[19] == "got {'x': 19}"
    assert lines[22] == "got {'x': [16, 17, 18, 19]}"
    assert done.returncode == (1 if "Runtime" in ending else 0)


# --- JAX in callbacks ------------------------------------------------------------------------------------------------


def test_jax_on_records_is_safe_on_another_thread():
    """A callback must not call JAX; the safe way is to hand its numpy values to a thread that may."""
    done = run_script(
        """
        import queue, threading
        import jax, jax.numpy as jnp, lox

        waiting = queue.SimpleQueue()
        results = []

        def work():
            while (logs := waiting.get()) is not None:
                results.append(float(jnp.square(logs["x"]).sum()))

        thread = threading.Thread(target=work)
        thread.start()

        def f(xs):
            return jax.lax.map(lambda x: lox.log({"x": x})["x"], xs).sum()

        jax.block_until_ready(jax.jit(lox.tap(f, waiting.put))(jnp.arange(5.0)))
        jax.effects_barrier()
        waiting.put(None)
        thread.join()
        print(results)
        """
    )
    assert done.stdout.strip() == "[0.0, 1.0, 4.0, 9.0, 16.0]", done.stderr


# --- the persistent compilation cache --------------------------------------------------------------------------------

CACHED = """
import sys, jax, jax.numpy as jnp, lox

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits, misses = [], []
jax.monitoring.register_event_listener(
    lambda event, **_: (hits if event.endswith("cache_hits") else misses if event.endswith("cache_misses") else []).append(event)
)

def f(xs):
    return jax.lax.scan(lambda c, x: (c + lox.log({"x": x})["x"], None), 0.0, xs)[0]

jitted = {transform}
hits.clear(), misses.clear()
jitted(jnp.arange(100.0))
jax.effects_barrier()
print(len(hits), len(misses))
"""


def cache_events(transform: str, folder) -> tuple[int, int]:
    done = run_script(CACHED.replace("{transform}", transform), JAX_COMPILATION_CACHE_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    hits, misses = map(int, done.stdout.split())
    return hits, misses


@pytest.mark.parametrize("transform", ["jax.jit(f)", "jax.jit(lox.spool(f))"], ids=["plain", "spool"])
def test_programs_without_host_calls_are_found_in_the_persistent_cache(transform, tmp_path):
    assert cache_events(transform, tmp_path)[1] >= 1
    hits, misses = cache_events(transform, tmp_path)
    assert misses == 0
    assert hits >= 1


def test_tapped_programs_do_not_break_the_persistent_cache(tmp_path):
    """JAX keeps no program with a host call on disk: it holds the address of a Python function."""
    transform = "jax.jit(lox.tap(f, lambda logs: None))"
    cache_events(transform, tmp_path)
    cache_events(transform, tmp_path)
    assert cache_events("jax.jit(f)", tmp_path)[1] >= 1
    assert cache_events("jax.jit(f)", tmp_path)[1] == 0
