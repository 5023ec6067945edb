"""The site builds without a warning, and its pages load nothing from outside."""

import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tests.packaging.wheels import ROOT

pytest.importorskip("furo", reason="needs the documentation's tools: hatch run docs:pytest tests/docs")
pytest.importorskip("myst_parser")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q", ROOT / "docs", folder]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    return folder


class Loads(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag in {"script", "img", "iframe", "source", "object", "embed"}:
            self.addresses.append(attributes.get("src") or attributes.get("data") or "")
        if tag == "link" and attributes.get("rel") in {"stylesheet", "icon", "preload", "preconnect"}:
            self.addresses.append(attributes.get("href", ""))


def test_pages_load_nothing_from_outside(site):
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.addresses
        assert [address for address in loads.addresses if "//" in address] == [], page.name


def test_styles_and_pictures_load_nothing_from_outside(site):
    styles = [*site.rglob("*.css"), *(site / "_static").glob("*.svg")]
    assert styles
    for style in styles:
        text = style.read_text()
        assert "url(http" not in text.replace('"', "").replace("'", ""), style.name
        assert "@import" not in text, style.name
