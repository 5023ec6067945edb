"""Every `lox` command on the pages that make runs works on these runs."""

import re
import shlex

import pytest

from lox.loggers._cli.main import main
from tests.docs.test_pages import evaluate
from tests.packaging.wheels import ROOT

PAGES = [ROOT / "docs" / name for name in ("reading.md", "quickstart.md")]
PAGE = PAGES[0]


def commands(page):
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("lox ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for page in PAGES:
            evaluate(page)
    return folder


def test_the_pages_have_commands():
    assert len(commands(PAGE)) > 10
    assert all(map(commands, PAGES))


@pytest.mark.parametrize("command", [command for page in PAGES for command in commands(page)])
def test_a_command_of_the_page_works(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    name, *arguments = shlex.split(command)
    assert name == "lox"
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out or {"-o", "--output"} & set(arguments)


def test_the_picture_of_the_page_has_three_curves(folder, monkeypatch):
    """A 3 x 4 sweep: a curve with an interval and an entry of the legend for each rate."""
    monkeypatch.chdir(folder)
    import lox.loggers

    (axes,) = lox.loggers.load("runs/reading/sweep").plot("loss", by="rate", band="ci95").axes
    assert len(axes.get_lines()) == 3
    assert len(axes.collections) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rate = 0.01", "rate = 0.03", "rate = 0.1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
