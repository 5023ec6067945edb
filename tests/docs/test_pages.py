"""Every Python example in the README and in docs/ runs, and prints what the page says it prints."""

import contextlib
import doctest
import importlib.util
import os
import re
import tomllib
import unittest
from pathlib import Path

import jax
import pytest
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser, SkipParser

from tests.packaging.wheels import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Those that a stranger runs first, and so again. Running others a second time is left to the night.
FIRST_READ = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
AT_NIGHT = os.environ.get("LOX_TEST_EVERY") == "1"
# ELLIPSIS for what differs between machines; whitespace because a table of pandas is as wide as its terminal.
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(page: Path):
    parsers = [PythonCodeBlockParser(doctest_optionflags=OPTIONS), SkipParser()]
    document = Sybil(parsers=parsers, path=str(page.parent)).parse(page)
    document.namespace["installed"] = lambda name: importlib.util.find_spec(name) is not None
    return list(document.examples())


def evaluate(page: Path):
    for example in examples(page):
        with contextlib.suppress(unittest.SkipTest):  # of one block, for want of a library; the page goes on
            example.evaluate()
    jax.effects_barrier()


@pytest.fixture
def away(tmp_path, monkeypatch, no_server):
    """A page's examples write where nothing is, and to no server."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, away):
    evaluate(page)
    if any(away.iterdir()) and (page in FIRST_READ or AT_NIGHT):  # what writes files also runs where it has run before
        evaluate(page)
    # A folder for each page: whoever follows two of them in one directory finds the runs of one where that page says.
    assert {path.name for path in away.glob("runs/*") if path.is_dir()} <= {page.stem.lower()}


def test_the_pages_that_teach_have_examples():
    without = {
        "architecture.md",
        "benchmarks.md",
        "index.md",
        "api.md",
        "examples.md",
        "promises.md",
        "seam.md",
        "CONTRIBUTING.md",
    }
    empty = {page.name for page in PAGES if not examples(page)}
    assert empty <= without


def test_only_pages_about_installing_show_how_to_install_lox():
    """Nothing is on the index yet. These three pages say so; the others link to them."""
    command = re.compile(r"pip install[^\n]*\blox-(core|loggers|tensorboard|wandb)\b")
    assert {page.name for page in PAGES if command.search(page.read_text())} == {
        "README.md",
        "install.md",
        "quickstart.md",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_on_a_page_are_toml(page):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        assert tomllib.loads(block)


def test_an_example_with_a_wrong_result_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\n>>> 1 + 1\n3\n\n```\n")
    (example,) = examples(page)
    with pytest.raises(Exception, match="Expected:\n    3\nGot:\n    2"):
        example.evaluate()
