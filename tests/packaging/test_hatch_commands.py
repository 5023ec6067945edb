"""Every `hatch run` command in the workflows and on the pages names something that exists."""

import re
import tomllib

import pytest

from tests.packaging.wheels import ROOT

ENVIRONMENTS = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
PROGRAMS = {"lox", "pytest", "python"}  # of the environment, not scripts
FILES = [
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", ".ci/run", "tests/fuzz/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
# `hatch run test`, `hatch run docs:build`, `hatch run +py=3.13 +jax=newest matrix:test`
COMMAND = re.compile(r"hatch run (?:\+\w+=(?:\$\{\{.*?\}\}|\S+) )*(?:(\w+):)?(\w+)")


def scripts(environment):
    settings = ENVIRONMENTS[environment]
    inherited = {} if settings.get("detached") else ENVIRONMENTS["default"]["scripts"]
    return {*inherited, *settings.get("scripts", ())}


def commands():
    found = {match.groups() for file in FILES for match in COMMAND.finditer(file.read_text())}
    return sorted((environment or "default", script) for environment, script in found)


def test_there_are_commands():
    assert len(commands()) > 15


@pytest.mark.parametrize(("environment", "script"), commands())
def test_a_command_names_a_script(environment, script):
    assert script in scripts(environment) | PROGRAMS


@pytest.mark.parametrize("path", re.findall(r"tests/[\w/]+(?:\.py)?", (ROOT / "hatch.toml").read_text()))
def test_the_tests_that_a_script_runs_exist(path):
    assert (ROOT / path).exists()
