"""Python programs that tests run in processes of their own."""

import atexit
import functools
import os
import subprocess
import sys
import textwrap

from tests.forks import Server

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


def start(program, *arguments):
    """A process that runs the program, with its streams in pipes. It is a fork of one that has imported JAX and lox."""
    return _server().start(PRELUDE + textwrap.dedent(program), *arguments)


@functools.cache
def _server():
    server = Server()
    atexit.register(server.close)
    return server


def run(program, *arguments):
    """What the program printed; it has to end well, and soon."""
    return _output(start(program, *arguments))


def run_alone(program):
    """The same in a new process, which has imported nothing but what the program imports."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return _output(subprocess.Popen(command, env=environment, **pipes))


def _output(process):
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
