"""Draws the picture of docs/architecture.md: the ten stages of its table, and how one leads to the next.

python -m scripts.architecture_picture
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).parents[1] / "docs" / "_static" / "architecture.svg"
WIDTH, HEIGHT = 760, 640
INK, NOTE, GREY = "#1c2b3a", "#44566a", "#5b6b7c"
MONOSPACE = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"


class Box(NamedTuple):
    """A stage: where it is, the number it has in the table, its files, and what it does."""

    x: float
    y: float
    width: float
    number: str
    title: str
    note: str
    border: str
    fill: str = "#fff"
    height: float = 52

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


class Zone(NamedTuple):
    y: float
    height: float
    fill: str
    text: str
    text_x: float
    anchor: str


ZONES = (
    Zone(14, 92, "#f7f7f4", "your function", 28, "start"),
    Zone(116, 262, "#f4f8fd", "", 0, "start"),
    Zone(388, 92, "#f3faf4", "the compiled program runs", 380, "middle"),
    Zone(490, 136, "#fdf7f0", "the host", 28, "start"),
)

_YOURS, _TRACED, _RUNNING, _HOST = "#b9b9ae", "#7fa3c7", "#8fbf95", "#d9a86c"
LOG = Box(70, 40, 250, "1", "_log.py", "check the values, find the line", _YOURS)
MARK = Box(440, 40, 250, "2", "_marks/", "bind the mark, if lox is tracing", _YOURS)
PROGRAM = Box(50, 144, 190, "3", "program.py", "trace once, and keep", _TRACED, "#eef4fb")
SURVEY = Box(285, 144, 190, "4", "survey.py", "what, from where, how often", _TRACED, "#eef4fb")
PLAN = Box(520, 144, 190, "5", "plan.py", "how each key is stored", _TRACED, "#eef4fb")
COLLECT = Box(190, 228, 380, "6", "collect.py + rules/", "evaluate again, equation by equation", _TRACED, "#eef4fb")
SPOOL = Box(70, 312, 270, "7a", "_spool.py, _storage/", "rows, stores, packed words → logdict", _TRACED, "#eef4fb")
TAP = Box(420, 312, 270, "7b", "_tap.py, _tapping/", "each record or batch → host call", _TRACED, "#eef4fb")
RESULT = Box(70, 412, 270, "", "(out, logs)", "arrays on the device", _RUNNING)
HOST = Box(420, 412, 270, "8", "_host/primitive.py", "one call for all lanes", _RUNNING)
DELIVER = Box(420, 516, 270, "9", "loggers/_delivery/", "runs, bounded queue, thread", _HOST)
WRITE = Box(70, 516, 270, "10", "loggers/_backends/", "write(logs): columns of numpy", _HOST)
BOXES = (LOG, MARK, PROGRAM, SURVEY, PLAN, COLLECT, SPOOL, TAP, RESULT, HOST, DELIVER, WRITE)

ARROWS = (
    (320, 66, 438, 66),  # 1 to 2
    (565, 92, 180, 142),  # 2 to 3
    (240, 170, 283, 170),  # 3 to 4
    (475, 170, 518, 170),  # 4 to 5
    (615, 196, 480, 226),  # 5 to 6
    (320, 280, 230, 310),  # 6 to 7a
    (440, 280, 530, 310),  # 6 to 7b
    (205, 364, 205, 410),  # 7a to the logs
    (555, 364, 555, 410),  # 7b to 8
    (340, 438, 418, 438),  # the logs to 8, by logger.spool
    (555, 464, 555, 514),  # 8 to 9
    (418, 542, 342, 542),  # 9 to 10
    (205, 568, 205, 582),  # 10 to a file
)

LABELS = (
    (105, 238, 12.5, "lox/_interpret/", GREY),
    (105, 254, 12.5, "a transformation traces", GREY),
    (105, 270, 12.5, "and rebuilds it, once", GREY),
    (105, 286, 12.5, "per signature", GREY),
    (380, 428, 12.5, "logger.spool", GREY),
    (205, 596, 13, "a file, a page, a service", NOTE),
    (555, 596, 13, "or your callback(logs)", NOTE),
)


def draw() -> str:
    """The picture as SVG. It names no font file and loads nothing."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="14.5" role="img">',
        "<title>How a mark travels from lox.log to a file, in ten stages</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L10 5 L0 10 z" fill="{GREY}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
        *[part for zone in ZONES for part in _zone(zone)],
        *[part for box in BOXES for part in _box(box)],
        *[
            f'<path d="M{x} {y} L{to_x} {to_y}" stroke="{GREY}" stroke-width="1.6" fill="none" marker-end="url(#tip)"/>'
            for x, y, to_x, to_y in ARROWS
        ],
        *[_text(x, y, text, size=size, colour=colour) for x, y, size, text, colour in LABELS],
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _zone(zone: Zone) -> list[str]:
    parts = [f'<rect x="14" y="{zone.y}" width="{WIDTH - 28}" height="{zone.height}" rx="8" fill="{zone.fill}"/>']
    if zone.text:
        parts.append(_text(zone.text_x, zone.y + 19, zone.text, anchor=zone.anchor))
    return parts


def _box(box: Box) -> list[str]:
    parts = [
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" '
        f'fill="{box.fill}" stroke="{box.border}"/>',
        f'<text x="{box.middle}" y="{box.y + 21}" text-anchor="middle" font-family="{MONOSPACE}" font-weight="600" '
        f'fill="{INK}">{box.title}</text>',
        _text(box.middle, box.y + 40, box.note, size=13, colour=NOTE),
    ]
    if box.number:
        parts.append(_text(box.x + 8, box.y + 17, box.number, anchor="start"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: float = 12.5, colour: str = GREY) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{text}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
