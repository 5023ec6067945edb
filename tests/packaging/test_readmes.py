"""The examples of the packages' own READMEs, which the index shows."""

import re

import pytest

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
