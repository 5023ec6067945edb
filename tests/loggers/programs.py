"""Python programs that tests run in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

PRELUDE = """
import os, signal, sys, time
import jax, jax.numpy as jnp, numpy as np
import lox, lox.loggers

def scan(xs):
    def body(total, x):
        total = total + x
        lox.log({"total": total}, step=x)
        return total, None
    return jax.lax.scan(body, 0, xs)[0]
"""


def start(program, *arguments, **options):
    """A process that runs the program, with its output in pipes."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program), *map(str, arguments)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # Tests in the background of a shell inherit that Ctrl-C is ignored; a program that is tested has its own terminal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if _in_main_thread() else None
    try:
        return subprocess.Popen(command, env=environment, **{**pipes, **options})
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _in_main_thread():
    return threading.current_thread() is threading.main_thread()


def run(program, *arguments, **options):
    """What the program printed; it has to end well, and soon."""
    process = start(program, *arguments, **options)
    out, err = finish(process)
    assert process.returncode == 0, f"exit status {process.returncode}\n{out}\n{err}"
    return out


def finish(process, seconds=120):
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the process hangs\n{out}\n{err}") from None
