"""Tables as HTML.

They have to look right on light and dark pages without knowing which one they are on. So text inherits its colour, lines and
shades are translucent, and the few other colours are readable on both.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

LINE = "#3b8eea"
"""The colour of curves and bars."""
_LONGEST = 48  # characters of a text that are shown, at most
_LONGEST_HINT = 400
# Notebooks style tables too. The repeated class makes these rules win.
_STYLE = """
.lox.lox{font-size:13px;line-height:1.45;overflow-x:auto;color:inherit}
.lox.lox table{border-collapse:collapse;border:0;margin:4px 0 2px;font-size:inherit;color:inherit;background:none;\
font-variant-numeric:tabular-nums;width:auto}
.lox.lox th,.lox.lox td{border:0;border-bottom:1px solid rgba(128,128,128,.18);padding:2px 10px;height:26px;text-align:right;\
white-space:nowrap;vertical-align:middle;color:inherit;background:none;max-width:none}
.lox.lox th{font-weight:600;opacity:.62;border-bottom-color:rgba(128,128,128,.5)}
.lox.lox .t,.lox.lox td:first-child,.lox.lox th:first-child{text-align:left}
.lox.lox svg{display:block;overflow:visible}
.lox.lox .p{border:0}
.lox.lox .d{opacity:.62}
.lox.lox .w{color:#e5484d;opacity:1}
"""


class Markup(str):
    """Text that is HTML already. Everything else is escaped."""

    __slots__ = ()


class Cell(NamedTuple):
    """A cell with classes: ``t`` is aligned to the left, ``p`` has no line below it."""

    content: str
    kind: str = ""


def text(value: str, most: int = _LONGEST) -> Markup:
    """Escaped text. A long one is shortened to its two ends, with the whole text in a tooltip."""
    if isinstance(value, Markup):
        return value
    shown = value if len(value) <= most else f"{value[: most // 3]}…{value[most // 3 + 1 - most :]}"
    escaped = html.escape(_visible(shown))
    if shown is value:
        return Markup(escaped)
    return Markup(f'<span title="{attribute(value)}">{escaped}</span>')


def attribute(value: str) -> str:
    """Text for the value of an attribute."""
    return html.escape(_visible(value if len(value) <= _LONGEST_HINT else f"{value[:_LONGEST_HINT]}…"))


def dim(content: str) -> Markup:
    return Markup(f'<span class="d">{text(content, _LONGEST_HINT)}</span>')


def warning(content: str) -> Markup:
    return Markup(f'<span class="w">{text(content)}</span>')


def table(columns: Sequence[str | Cell], rows: Iterable[Sequence[str | Cell]]) -> Markup:
    head = "".join(map(_head, columns))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return Markup(f"<table>{f'<thead><tr>{head}</tr></thead>' if columns else ''}<tbody>{body}</tbody></table>")


def block(*parts: str) -> str:
    """Parts, one below the other, with the style that they need."""
    inside = "".join(part if isinstance(part, Markup) else f"<div>{text(part, _LONGEST_HINT)}</div>" for part in parts)
    return f'<div class="lox"><style>{_STYLE}</style>{inside}</div>'


def title(name: str, *notes: str) -> Markup:
    """A bold name, followed by notes."""
    return Markup(f"<div><b>{text(name)}</b> {dim(' · '.join(filter(None, notes)))}</div>")


def more(number: int, what: str) -> str:
    """``and 7 more keys``, or nothing if nothing was left out."""
    return Markup(f'<div class="d">and {number} more {text(what)}</div>') if number > 0 else Markup("")


def _head(cell: str | Cell) -> str:
    return _cell(cell, "th")


def _cell(cell: str | Cell, tag: str = "td") -> str:
    content, kind = cell if isinstance(cell, Cell) else (cell, "")
    return f'<{tag} class="{kind}">{text(content)}</{tag}>' if kind else f"<{tag}>{text(content)}</{tag}>"


def _visible(value: str) -> str:
    """The text without invisible characters and without those that change its direction."""
    return value if value.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
