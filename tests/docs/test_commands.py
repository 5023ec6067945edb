"""Every `lox` command on the page about reading runs works, on the runs that the page makes."""

import re
import shlex

import pytest

from lox.loggers._cli.main import main
from tests.docs.test_pages import evaluate
from tests.packaging.wheels import ROOT

PAGE = ROOT / "docs" / "reading.md"


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        evaluate(PAGE)
    return folder


def test_the_page_has_commands():
    assert len(commands()) > 10


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_page_works(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    name, *arguments = shlex.split(command)
    assert name == "lox"
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out or "-o" in arguments


def test_the_picture_of_the_page_has_three_curves(folder, monkeypatch):
    """A 3 x 4 sweep: a curve with an interval and an entry of the legend for each rate."""
    monkeypatch.chdir(folder)
    import lox.loggers

    (axes,) = lox.loggers.load("runs/reading/sweep").plot("loss", by="rate", band="ci95").axes
    assert len(axes.get_lines()) == 3
    assert len(axes.collections) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["rate = 0.01", "rate = 0.03", "rate = 0.1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
