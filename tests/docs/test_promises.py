"""The tests that docs/promises.md and docs/architecture.md point at are there."""

import re

from tests.packaging.wheels import ROOT


def test_every_test_file_that_is_named_exists():
    named = re.findall(r"`(tests/[\w/.]+)(?:::\w+)?`", (ROOT / "docs/promises.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_single_test_that_is_named_exists():
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", (ROOT / "docs/promises.md").read_text())
    assert len(named) > 20
    missing = [test for file, test in named if not re.search(rf"^ *def {test}\(", (ROOT / file).read_text(), re.M)]
    assert missing == []


def test_every_source_file_that_is_named_exists():
    page = (ROOT / "docs/architecture.md").read_text()
    sources = [ROOT / "packages/lox-core/src/lox", ROOT / "packages/lox-loggers/src/lox/loggers"]
    named = re.findall(r"`(?:lox/loggers/)?(_\w+\.py)`", page)
    assert len(named) > 20
    assert [name for name in named if not any((source / name).exists() for source in sources)] == []
