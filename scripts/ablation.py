"""What goes wrong without each of the changes that lox makes in JAX: ``python -m scripts.ablation [PYTEST ARGUMENTS]``.

Without arguments it runs the witness of each change, and prints the table of ``docs/seam.md`` for the JAX that is
installed. With arguments it runs those tests once for each change, and prints which fail: ``tests/core/seam/test_once.py``
takes a minute for each, ``tests/core`` as long as the tests of core do.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from typing import Any

import jax

from lox._jax import backports
from tests.core.seam import in_process

RUN = """
import sys, pytest
from lox._jax import backports
name, *arguments = sys.argv[1:]
backports.BACKPORTS = tuple(port for port in backports.BACKPORTS if port.name != name)
sys.exit(pytest.main(["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *arguments]))
"""


def failures_without(name: str, arguments: list[str]) -> list[str]:
    """The tests that fail, as ``test[case]``."""
    command = [sys.executable, "-c", RUN, name, *arguments]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    if not re.search(r"\d+ (passed|failed)", out):
        raise SystemExit(out)
    return re.findall(r"^(?:FAILED|ERROR) \S+::(\S+)", out, re.MULTILINE)


def print_witnesses() -> None:
    print(f"| without (JAX {jax.__version__}) | its witness finds | instead of |\n| --- | --- | --- |")
    print("\n".join(lines(in_process.witnesses_without())))


def lines(found: dict[str, Any]) -> list[str]:
    """The lines of the table for what the witnesses found."""
    return [
        f"| {name} | {_count(each['without'])} | {_count(each['expected']).split()[0]} |"
        for name, each in found.items()
    ]


def _count(found: int | list[float]) -> str:
    """A witness returns a number of records, or what host calls brought."""
    number, what = (len(found), "host call") if isinstance(found, list) else (found, "record")
    return f"{number or 'no'} {what}{'s' * (number > 1)}"


def print_failures(arguments: list[str]) -> None:
    print(f"| without (JAX {jax.__version__}) | failing tests | among them |\n| --- | --- | --- |")
    for port in backports.BACKPORTS:
        if port.is_needed():
            failed = failures_without(port.name, arguments)
            cases = collections.Counter(re.sub(r"^.*\[|\]$", "", test) for test in failed)
            print(f"| {port.name} | {len(failed)} | {', '.join(list(cases)[:3])} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        print_failures(sys.argv[1:])
    else:
        print_witnesses()
