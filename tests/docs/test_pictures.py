"""The picture of docs/architecture.md is the one that its script draws, and shows the stages of the page's table."""

import re

from scripts import architecture_picture
from tests.packaging.wheels import ROOT


def test_the_picture_is_the_one_that_the_script_draws():
    assert architecture_picture.PICTURE.read_text() == architecture_picture.draw()


def test_the_picture_has_the_stages_of_the_table():
    rows = re.findall(r"^\| (\d+[ab]?)\. [^|]*\| ([^|]*)\|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    boxes = {box.number: box for box in architecture_picture.BOXES if box.number}
    assert boxes.keys() == {number for number, _ in rows}
    for number, places in rows:
        drawn = re.findall(r"[\w/]+(?:\.py|/)", boxes[number].title)
        assert drawn
        for place in drawn:
            assert re.search(rf"/{re.escape(place)}`", places), (number, place)
