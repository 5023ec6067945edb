"""The tests that docs/promises.md names exist, and so do the files that docs/architecture.md and CONTRIBUTING.md name."""

import re

import pytest

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


# Paths such as `lox/_log.py` and `lox/_storage/` start at the src folder of a package; a bare `loops.py` is in a folder
# that the same line names.
PLACE = re.compile(r"`((?:lox|packages)/[\w./-]*)`")
BARE = re.compile(r"`(\w+\.py)`")


def missing_places(line: str) -> list[str]:
    places = PLACE.findall(line)
    roots = [ROOT, *ROOT.glob("packages/*/src")]
    found = {place: [root / place for root in roots if (root / place).exists()] for place in places}
    folders = [path for paths in found.values() for path in paths if path.is_dir()]
    bare = [name for name in BARE.findall(line) if not any((folder / name).exists() for folder in folders)]
    return [place for place, paths in found.items() if not paths] + bare


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_source_file_that_is_named_exists(page):
    text = (ROOT / page).read_text()
    assert len(PLACE.findall(text)) > 10
    assert [place for line in text.splitlines() for place in missing_places(line)] == []


def test_a_source_file_that_does_not_exist_is_noticed():
    assert missing_places("`lox/_log.py` and `lox/_storage/`, with `rows.py`") == []
    assert missing_places("`lox/_gone.py` and `lox/_storage/`, with `gone.py`") == ["lox/_gone.py", "gone.py"]


def test_the_functions_and_classes_that_the_architecture_page_names_exist():
    named = re.findall(r"`([\w.]+)` in `(lox/[\w./]+)`", (ROOT / "docs/architecture.md").read_text())
    assert named
    for name, file in named:
        (path,) = [path for source in ROOT.glob("packages/*/src") if (path := source / file).exists()]
        for part in name.split("."):
            assert re.search(rf"^ *(?:def|class) {part}\b", path.read_text(), re.M), (name, file)
