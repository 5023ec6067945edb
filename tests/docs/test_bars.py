"""The bars on the page about seeing inside look as lox draws them."""

import re

import pytest

from lox.loggers._backends.display.bars import Bar, TerminalBars
from tests.packaging.wheels import ROOT

DRAWN = [Bar("simulate", 0, None, 0.0, compiling=True), Bar("simulate", 812, 2000, 12.15)]
WRITTEN = [Bar("simulate", 200, 2000, 3.0), Bar("simulate", 400, 2000, 6.0)]


def blocks():
    """The lines of each text block of the page."""
    page = (ROOT / "docs" / "inside.md").read_text()
    return [block.splitlines() for block in re.findall(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]


def drawn(bar):
    pytest.importorskip("pty")  # Windows has none
    from tests.loggers.terminal import Terminal

    terminal = Terminal(columns=100)
    place = TerminalBars(terminal.file)
    place.show([bar])
    place.close()
    return next(filter(None, terminal.lines()))


def test_the_bars_of_the_page_are_those_of_a_terminal():
    assert list(map(drawn, DRAWN)) == blocks()[0]


def test_the_lines_of_the_page_are_those_of_a_log_file():
    assert [bar.line for bar in WRITTEN] == blocks()[1]


def test_nothing_else_on_the_page_is_unchecked():
    assert len(blocks()) == 2
