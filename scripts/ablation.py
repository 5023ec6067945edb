"""Which tests fail without each of the changes that lox makes in JAX: ``python -m scripts.ablation [PYTEST ARGUMENTS]``.

Prints the table of ``docs/seam.md`` for the JAX that is installed. By default it runs the tests that are about this seam;
``python -m scripts.ablation tests/core`` runs all of core's, which takes the time of as many runs as there are changes.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys

import jax

from lox._jax import backports

TESTS = ["tests/core/seam/test_once.py", "tests/core/test_gate.py"]

RUN = """
import sys, pytest
from lox._jax import backports
name, *arguments = sys.argv[1:]
backports.BACKPORTS = tuple(port for port in backports.BACKPORTS if port.name != name)
sys.exit(pytest.main(["-q", "--tb=no", "-rfE", "-p", "no:xdist", "-p", "no:cacheprovider", *arguments]))
"""


def failures_without(name: str, arguments: list[str]) -> list[str]:
    """The tests that fail, as ``test[case]``."""
    command = [sys.executable, "-c", RUN, name, *arguments]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    if not re.search(r"\d+ (passed|failed)", out):
        raise SystemExit(out)
    return re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", out, re.MULTILINE)


def main(arguments: list[str]) -> None:
    print(f"| without (JAX {jax.__version__}) | failing tests | among them |\n| --- | --- | --- |")
    for port in backports.BACKPORTS:
        if port.is_needed():
            failed = failures_without(port.name, arguments or TESTS)
            cases = collections.Counter(re.sub(r"^.*\[|\]$", "", test) for test in failed)
            print(f"| {port.name} | {len(failed)} | {', '.join(list(cases)[:3])} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
