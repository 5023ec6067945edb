"""The examples of the packages' own READMEs, which the index shows, and the backend that CONTRIBUTING.md shows."""

import json
import re

import jax
import pytest

import lox
from tests.packaging.wheels import DISTRIBUTIONS, ROOT


def run_examples(page):
    """Runs the Python examples of a page one after the other, and returns the names they leave."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(code, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_example_in_the_readme_of_a_package_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_examples(ROOT / "packages" / name / "README.md")
    if name == "lox-core":
        assert str(names["logs"]) == "{'total': [0, 1, 3, 6]}"
    else:
        assert any(tmp_path.iterdir())  # each of the others writes something


def test_the_backend_in_contributing_writes_what_it_is_given(tmp_path):
    logger_class = run_examples(ROOT / "CONTRIBUTING.md")["LinesLogger"]
    with logger_class(tmp_path) as logger:
        run = logger.init(jax.random.key(7))
        logger.tap(lambda x: lox.log({"x": x}, step=3), run)(1.5)
        (name,) = (run.name for run in logger.runs)
    (line,) = (tmp_path / f"{name}.txt").read_text().splitlines()
    assert {key: float(value) for key, value in json.loads(line).items()} == {"step": 3, "x": 1.5}
