"""Processes of tests are forks, and behave as processes that were started anew."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.forks import Fork
from tests.loggers.programs import finish, start


def test_nothing_of_jax_runs_before_a_fork() -> None:
    process: Fork = start(
        """
        import threading
        from jax._src import xla_bridge
        print(xla_bridge.backends_are_initialized(), threading.active_count(), sys.argv, __name__)
        """,
        "an argument",
    )
    out, err = finish(process)
    assert (out, err) == ("False 1 ['-c', 'an argument'] __main__\n", "")


@pytest.mark.parametrize(
    ("ending", "status", "told"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise OSError('gone')", 1, "OSError: gone"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_fork_ends_as_any_process_does(ending: str, status: int, told: str) -> None:
    process: Fork = start("import atexit\natexit.register(print, 'handlers run')\n" + ending)
    out, err = finish(process)
    assert process.returncode == process.wait() == status
    assert out == ("handlers run\n" if "SIGKILL" not in ending else "")
    assert (err.splitlines() or [""])[-1].startswith(told)
    assert process.processor_time > 0


def test_a_fork_that_hangs_is_noticed_and_can_be_killed() -> None:
    process: Fork = start("print('running', flush=True); time.sleep(1000)")
    assert process.stdout.readline() == "running\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
